"""Pure: edits of a document, kept as a JSON patch (RFC 6902)."""

import copy
from collections.abc import Mapping
from typing import Any

Operation = Mapping[str, Any]
Path = tuple[str | int, ...]
"""Of field names without ``/`` and ``~``, and indices."""


class Draft:
    """A copy of a document that is edited, and the operations that do the same elsewhere."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document: dict[str, Any] = copy.deepcopy(dict(document))
        self._operations: list[Operation] = []

    @property
    def operations(self) -> tuple[Operation, ...]:
        return tuple(self._operations)

    def at(self, path: Path) -> Any:
        """What is at ``path``, None where it ends early."""
        value: Any = self.document
        for step in path:
            if isinstance(step, int):
                value = value[step] if isinstance(value, list) and step < len(value) else None
            else:
                value = value.get(step) if isinstance(value, dict) else None
        return value

    def append(self, path: Path, *values: Any) -> None:
        """Add to the list at ``path``, which is made if there is none."""
        found = self.at(path)
        if found is None:
            self.at(path[:-1])[path[-1]] = list(values)
            self._note("add", path, list(values))
            return
        for value in values:
            found.append(value)
            self._note("add", (*path, "-"), value)

    def replace(self, path: Path, value: Any) -> None:
        """Put ``value`` in the place of what is at ``path``."""
        self.at(path[:-1])[path[-1]] = value
        self._note("replace", path, value)

    def _note(self, op: str, path: Path, value: Any) -> None:
        pointer = "".join(f"/{step}" for step in path)
        # A copy: later edits of the document are operations of their own.
        self._operations.append({"op": op, "path": pointer, "value": copy.deepcopy(value)})
