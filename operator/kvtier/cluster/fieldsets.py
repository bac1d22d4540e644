"""Field ownership of server-side apply, enough of it for the in-memory cluster.

A path is a tuple of field names, and of keys where a list is merged by key. The rules are those
of Kubernetes' structured merge: a field that one applier drops and nobody else owns is removed.
"""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

Path = tuple[Any, ...]

# Lists that Kubernetes merges by key; every other list is atomic.
_LIST_KEYS: dict[str, tuple[str, ...]] = {
    "conditions": ("type",),
    "containers": ("name",),
    "env": ("name",),
    "generations": ("id",),
    "imagePullSecrets": ("name",),
    "initContainers": ("name",),
    "ownerReferences": ("uid",),
    "perLength": ("tokens",),
    "ports": ("containerPort", "port", "protocol"),
    "rankStates": ("rank",),
    "volumeMounts": ("mountPath",),
    "volumes": ("name",),
}

# What identifies an object is nobody's field.
_IDENTITY = {
    ("apiVersion",),
    ("kind",),
    ("metadata", "name"),
    ("metadata", "namespace"),
    ("metadata", "uid"),
    ("metadata", "resourceVersion"),
    ("metadata", "generation"),
    ("metadata", "creationTimestamp"),
}


def paths(obj: Mapping[str, Any]) -> set[Path]:
    """Every field that an object states, without what identifies it."""
    return set(_walk(obj, ())) - _IDENTITY


def merge(live: dict[str, Any], intent: Mapping[str, Any]) -> None:
    """Lay the intent over the live object, in place."""
    for name, wanted in intent.items():
        present = live.get(name)
        keys = _LIST_KEYS.get(name)
        if isinstance(wanted, Mapping) and isinstance(present, dict):
            merge(present, wanted)
        elif keys and _keyed(wanted) and isinstance(present, list) and _keyed(present):
            by_key = {_key(item, keys): item for item in present}
            for item in wanted:
                if (match := by_key.get(_key(item, keys))) is None:
                    present.append(copy.deepcopy(item))
                else:
                    merge(match, item)
        else:
            live[name] = copy.deepcopy(wanted)


def lookup(obj: Any, path: Path) -> Any:
    """The value at a path, None if there is none."""
    for depth, step in enumerate(path):
        obj = _step(obj, step, path[depth - 1] if depth else "")
        if obj is None:
            return None
    return obj


def remove(obj: Any, path: Path) -> None:
    """Take a field out, and every parent that this leaves empty."""
    for depth in range(len(path), 0, -1):
        parent = lookup(obj, path[: depth - 1])
        step = path[depth - 1]
        if isinstance(parent, dict):
            parent.pop(step, None)
        elif isinstance(parent, list):
            keys = _LIST_KEYS[path[depth - 2]]
            parent[:] = [item for item in parent if _key(item, keys) != step]
        if parent or depth == 1:
            return


def owned_below(owned: set[Path], path: Path) -> bool:
    """Whether the path, or a field below it, is in the set."""
    return any(each[: len(path)] == path for each in owned)


def _walk(value: Any, path: Path) -> Iterator[Path]:
    keys = _LIST_KEYS.get(path[-1]) if path and isinstance(path[-1], str) else None
    if isinstance(value, dict) and value:
        for name, child in value.items():
            yield from _walk(child, (*path, name))
    elif keys and value and _keyed(value):
        for item in value:
            here = (*path, _key(item, keys))
            yield here
            yield from _walk(item, here)
    else:
        yield path


def _keyed(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def _key(item: Mapping[str, Any], keys: tuple[str, ...]) -> Path:
    defaults = {"protocol": "TCP"}
    return tuple(item.get(key, defaults.get(key)) for key in keys)


def _step(value: Any, step: Any, field: Any) -> Any:
    if isinstance(value, dict):
        return value.get(step)
    if isinstance(value, list):
        keys = _LIST_KEYS.get(field, ())
        return next((item for item in value if _key(item, keys) == step), None)
    return None
