"""In what two identities differ, field by field."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from kvtier.generation.identity import canonical_json

SALT = "salt"
_GROUPS = "layout.groups"


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One field of an identity (``layout.gqa.kvHeads``); None where the identity lacks it."""

    field: str
    old: Any
    new: Any


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[FieldChange, ...]:
    """Every field that differs, in the order of the identities; empty exactly when they are equal.

    ``layout.groups`` has no order: of its groups those that only one side has are given, whole.
    """
    one, other = dict(_flat(old)), dict(_flat(new))
    # A list is no value to look up and not to compare by its order: it is taken apart below.
    groups = one.pop(_GROUPS, []), other.pop(_GROUPS, [])
    names = dict.fromkeys((*one, *other))
    found = [
        FieldChange(name, one.get(name), other.get(name))
        for name in names
        if one.get(name) != other.get(name)
    ]
    return (*found, *_group_changes(*groups))


def _flat(fields: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


def _group_changes(old: list[Any], new: list[Any]) -> Iterator[FieldChange]:
    gone, come = (
        (Counter(map(canonical_json, each)) - Counter(map(canonical_json, rest))).elements()
        for each, rest in ((old, new), (new, old))
    )
    texts = {canonical_json(group): group for group in (*old, *new)}
    for before, after in zip_longest(gone, come):
        yield FieldChange(_GROUPS, texts.get(before), texts.get(after))
