"""What ``kvtier generation`` says of a tier's identity, and of the difference between two."""

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvtier.api.types import KVCacheTier
from kvtier.generation.changes import SALT, FieldChange, changes
from kvtier.generation.identity import canonical_json, id_of
from kvtier.render.names import engine_secret_name

_WIDTH = 92
_ABSENT = "-"
_PLAIN = re.compile(r"[!-~]+")
_IMMUTABLE = ("ranks", "striping")


@dataclass(frozen=True, slots=True)
class Named:
    """A tier and the identity of its KV; ``path`` is where it was read."""

    path: str
    tier: KVCacheTier
    identity: Mapping[str, Any]

    @property
    def id(self) -> str:
        return id_of(self.identity)

    @property
    def secret(self) -> str:
        return engine_secret_name(self.tier.metadata.name, self.id)

    @property
    def place(self) -> str:
        return f"{self.tier.metadata.namespace}/{self.tier.metadata.name}"


def differ(old: Named, new: Named) -> bool:
    """Whether engines of ``old`` need another Secret for ``new``."""
    return (old.id, old.place) != (new.id, new.place)


def identity_document(named: Named) -> dict[str, Any]:
    return {"id": named.id, "secretName": named.secret, "identity": named.identity}


def difference_document(old: Named, new: Named) -> dict[str, Any]:
    """``changes`` is empty when both are the same generation of KV."""
    found = changes(old.identity, new.identity)
    return {
        "old": {"tier": old.place, "id": old.id, "secretName": old.secret},
        "new": {"tier": new.place, "id": new.id, "secretName": new.secret},
        "changes": [{"field": each.field, "old": each.old, "new": each.new} for each in found],
    }


def difference_text(old: Named, new: Named) -> str:
    """The whole text, ending in a newline."""
    found = changes(old.identity, new.identity)
    heads = [("", "id", "engine Secret", "file")]
    heads += [
        (name, each.id, each.secret, each.path) for name, each in (("old", old), ("new", new))
    ]
    lines = _columns(heads)
    if found:
        rows = [("field", "old", "new")]
        rows += [(_cell(each.field), _cell(each.old), _cell(each.new)) for each in found]
        lines += ["", *_columns(rows)]
    for sentence in _meaning(old, new, found):
        lines += ["", *textwrap.wrap(sentence, _WIDTH, break_on_hyphens=False)]
    return "\n".join(lines) + "\n"


def _meaning(old: Named, new: Named, found: Sequence[FieldChange]) -> list[str]:
    """What becomes of a tier whose spec is ``old`` and then ``new``, in sentences."""
    if old.place != new.place:
        return [
            f"Two tiers: {old.place} and {new.place} share no Secret and no KV. Engines move by"
            f" mounting {new.secret}."
        ]
    if not found:
        return ["The same generation: engines keep their Secret and what is cached."]
    fields = {each.field for each in found}
    if refused := [name for name in _IMMUTABLE if name in fields]:
        return [
            f"Refused: {' and '.join(refused)} of a tier cannot change. Apply a tier with another"
            " name, move the engines to it, then delete this one."
        ]
    begins = f"A new generation, with keys of its own: engines need the Secret {new.secret}."
    if SALT in fields:
        return [
            begins,
            "The salt differs: the old generation is fenced at once, whoever uses it. Its engines"
            " get no hit until they have the new Secret.",
        ]
    return [
        begins,
        "The old generation is fenced once Ready engines have used the new one for"
        f" {new.tier.spec.rollout.drain_timeout} (spec.rollout.drainTimeout), and kept while none"
        " does. Writing the old values again before that rolls back, with the old cache.",
    ]


def _cell(value: Any) -> str:
    """One value in one line; quoted where plain text could be taken for something else."""
    if value is None:
        return _ABSENT
    plain = isinstance(value, str) and value != _ABSENT and _PLAIN.fullmatch(value) is not None
    return value if plain else canonical_json(value)


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
