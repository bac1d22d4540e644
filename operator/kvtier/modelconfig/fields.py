"""Fields of a config.json, each read once with what it must be, and refused by its path."""

from collections.abc import Mapping
from typing import Any

from kvtier.api.scalars import shown

MOST = 1 << 24
"""No size in a model's config is larger."""


class UnreadableConfig(ValueError):
    """A config that says too little, or what kvtier does not know. One line, naming the field."""


class Fields:
    """One object of a config, and where it stands in the file."""

    def __init__(self, values: Mapping[str, Any], *, path: str = "") -> None:
        self._values = values
        self._path = path

    def at(self, name: str) -> str:
        """The path of the field ``name``."""
        return f"{self._path}.{name}" if self._path else name

    def get(self, name: str) -> Any:
        """The raw value; None when it is absent or null, which mean the same in these files."""
        return self._values.get(name)

    def size(self, name: str, *, least: int = 1) -> int:
        """A whole number from ``least`` on. Raises UnreadableConfig, also when it is missing."""
        value = self.get(name)
        if value is None:
            raise self.bad(name, "missing; use the model's own config.json")
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST:
            raise self.bad(name, f"{shown(value)} is no whole number from {least} to {MOST}")
        return value

    def optional_size(self, name: str, *, least: int = 1) -> int | None:
        return None if self.get(name) is None else self.size(name, least=least)

    def part(self, name: str) -> "Fields":
        """A nested object. Raises UnreadableConfig when there is none."""
        value = self.get(name)
        if not isinstance(value, Mapping):
            what = "missing" if value is None else f"{shown(value)} is no object"
            raise self.bad(name, f"{what}; use the model's own config.json")
        return Fields(value, path=self.at(name))

    def each_layer(self, name: str, *, layers: int) -> list[Any]:
        """A list with one entry for each layer. Raises UnreadableConfig when it is not that."""
        value = self.get(name)
        if value is None:
            raise self.bad(name, "missing; use the model's own config.json")
        if not isinstance(value, list) or len(value) != layers:
            has = f"{len(value)} entries" if isinstance(value, list) else shown(value)
            raise self.bad(name, f"has {has}, and the model {layers} layers; correct one of them")
        return value

    def bad(self, name: str, problem: str) -> UnreadableConfig:
        return UnreadableConfig(f"{self.at(name)}: {problem}")
