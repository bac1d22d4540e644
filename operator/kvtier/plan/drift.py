"""Comparing what is wanted with what is there.

The intent is a full server-side-apply configuration; the live object has more (defaults, status,
fields of other managers). There is drift when the intent is not contained in the live object.
"""

from collections.abc import Mapping
from typing import Any

# Keys that identify the items of list-maps in the kinds that kvtier renders. Lists of anything
# else are atomic: the whole value is ours.
_ITEM_KEYS = ("uid", "name", "containerPort", "mountPath", "key", "port", "type")
# Maps that server-side apply replaces as a whole: one key more selects something else.
_ATOMIC_MAPS = frozenset({"selector", "nodeSelector"})


def first_difference(intent: Any, live: Any, path: str = "") -> str | None:
    """The path of the first part of ``intent`` that ``live`` lacks, None when it has all of it."""
    if isinstance(intent, Mapping):
        if not isinstance(live, Mapping):
            return path or "."
        if path.rpartition(".")[2] in _ATOMIC_MAPS and intent.keys() != live.keys():
            return path
        for key, value in intent.items():
            below = f"{path}.{key}" if path else str(key)
            if key not in live:
                # An empty map or list that was asked for may be left out by the server.
                if value in ({}, []):
                    continue
                return below
            found = first_difference(value, live[key], below)
            if found:
                return found
        return None
    if isinstance(intent, list):
        return _list_difference(intent, live, path)
    return None if intent == live else (path or ".")


def _list_difference(intent: list[Any], live: Any, path: str) -> str | None:
    if not isinstance(live, list):
        return path
    key = _item_key(intent)
    if key is None:
        if len(intent) != len(live):
            return path
        pairs = list(zip(intent, live, strict=True))
    else:
        by_key = {item.get(key): item for item in live if isinstance(item, Mapping)}
        pairs = [(item, by_key.get(item[key])) for item in intent]
    for index, (item, other) in enumerate(pairs):
        label = f"{path}[{item[key] if key else index}]"
        found = first_difference(item, other, label)
        if found:
            return found
    return None


def _item_key(items: list[Any]) -> str | None:
    """The key that tells the items of a list-map apart, None for an atomic list."""
    if not items or not all(isinstance(item, Mapping) for item in items):
        return None
    for key in _ITEM_KEYS:
        values = [item.get(key) for item in items]
        if None not in values and len(set(values)) == len(values):
            return key
    return None


def contains(live: Any, intent: Any) -> bool:
    """Whether nothing needs to be applied."""
    return first_difference(intent, live) is None
