"""Pods against the identity of a generation, and against each other. Only what is certain."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvtier.generation.pods.canonical import NotCanonical, bounded, canonical, decoded
from kvtier.generation.pods.engines import FIELDS
from kvtier.generation.pods.reading import ARGUMENTS

NOT_SAID: Final = "(not said)"
_COMMIT: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_REVISIONS: Final = frozenset({"revision", "tokenizerRevision"})
_OF_THE_PLACE: Final = frozenset({"image", "modelIn", "kvCacheDtype"})
"""Settings that are no setting of the engine's."""


@dataclass(frozen=True, slots=True)
class PodIdentity:
    """What one pod's KV would be, as far as its manifest and status tell.

    ``generations``: ids of those whose Secret the pod has. ``fields``: names of
    ``identity.identity`` (``parallelism.tensor`` and so on with a dot), only what is certain.
    ``settings``: what else changes the bytes, in one spelling. ``unreadable``: name -> why;
    ``arguments`` if all or some of them cannot be read. ``declared``: an annotation said something.
    """

    generations: frozenset[str]
    fields: Mapping[str, str | int]
    settings: Mapping[str, str]
    unreadable: Mapping[str, str]
    declared: bool


@dataclass(frozen=True, slots=True)
class Difference:
    """A pod certainly ``runs`` something else than the generation's identity has ``declared``."""

    field: str
    runs: str
    declared: str

    def __str__(self) -> str:
        return f"{self.field} is {self.runs}, not {self.declared}"


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Pods of one generation differ in ``field``: value -> names of pods, sorted."""

    field: str
    values: Mapping[str, tuple[str, ...]]


def differences(identity: Mapping[str, Any], pod: PodIdentity) -> tuple[Difference, ...]:
    """In what the pod certainly differs; empty if it does not, or if nothing is certain."""
    found = [
        Difference(name, str(runs), str(declared))
        for name, runs in sorted(pod.fields.items())
        if (declared := _declared(identity, name)) is not None
        and _differs(name, runs, declared, pod)
    ]
    settings = {_folded(name): name for name in pod.settings}
    declared_map = identity.get("identity")
    for key, value in sorted(declared_map.items() if isinstance(declared_map, Mapping) else ()):
        name = settings.get(_folded(str(key)))
        if name is not None and _setting_differs(pod.settings[name], str(value)):
            found.append(Difference(str(key), pod.settings[name], str(value)))
    return tuple(found)


def has_drifted(wanted: Mapping[str, Any], pod: PodIdentity) -> bool:
    """Whether the pod uses no generation and certainly runs another identity than ``wanted``."""
    return not pod.generations and bool(differences(wanted, pod))


def unknowns(identity: Mapping[str, Any], pod: PodIdentity) -> Mapping[str, str]:
    """Name -> why the pod does not tell whether it has what the identity says of it."""
    found = dict(pod.unreadable)
    for name in sorted(_REVISIONS & pod.fields.keys()):
        runs, declared = pod.fields[name], _declared(identity, name)
        if declared not in (None, runs) and not _revision_differs(str(runs), str(declared)):
            found[name] = f"{runs} and {declared} may be the same"
    return found


def disagreements(pods: Mapping[str, PodIdentity]) -> tuple[Disagreement, ...]:
    """In what pods of one generation differ that its identity does not decide.

    That is settings and, since a name and a commit cannot be compared, revisions by name. A pod
    that does not tell a setting for certain is left out of its row.
    """
    names = {name for pod in pods.values() for name in pod.settings} - _OF_THE_PLACE
    rows = [_row(name, pods) for name in sorted(names)]
    in_image = {name: pod for name, pod in pods.items() if "modelIn" in pod.settings}
    rows.append(_row("image", in_image))
    for name in sorted(_REVISIONS):
        by_name = {
            key: pod
            for key, pod in pods.items()
            if name in pod.fields and not _COMMIT.fullmatch(str(pod.fields[name]))
        }
        rows.append(_row(name, by_name))
    return tuple(row for row in rows if len(row.values) > 1)


def _row(name: str, pods: Mapping[str, PodIdentity]) -> Disagreement:
    values: dict[str, list[str]] = {}
    for pod_name, pod in sorted(pods.items()):
        if name in pod.unreadable:
            continue
        told = pod.settings.get(name, pod.fields.get(name) if name in _REVISIONS else None)
        if told is None and (ARGUMENTS in pod.unreadable or name == "image"):
            continue
        values.setdefault(NOT_SAID if told is None else str(told), []).append(pod_name)
    return Disagreement(name, {value: tuple(names) for value, names in sorted(values.items())})


def _declared(identity: Mapping[str, Any], name: str) -> str | int | None:
    head, dot, tail = name.partition(".")
    value = identity.get(head)
    if dot:
        value = value.get(tail) if isinstance(value, Mapping) else None
    return value if name in FIELDS and isinstance(value, str | int) else None


def _differs(name: str, runs: str | int, declared: str | int, pod: PodIdentity) -> bool:
    if runs == declared:
        return False
    if name in _REVISIONS:
        return _revision_differs(str(runs), str(declared))
    if name == "modelName":
        # A directory may hold any model, and engines may name a model by it.
        return not str(declared).startswith(("/", ".", "~"))
    if name == "kvCacheDtype" and pod.settings.get("kvCacheDtype") == "auto":
        # A checkpoint with scales of its own makes auto FP8.
        return not str(declared).startswith("fp8")
    return True


def _revision_differs(runs: str, declared: str) -> bool:
    """Two commits, two digests or two names do; a name and a commit may be one thing."""
    return runs.lower() != declared.lower() and _kind(runs) == _kind(declared)


def _kind(revision: str) -> str:
    if _COMMIT.fullmatch(revision.lower()):
        return "commit"
    return "digest" if revision.startswith("sha256:") else "name"


def _folded(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _setting_differs(runs: str, declared: str) -> bool:
    """Objects with objects, plain values with plain values; else they cannot be compared."""
    mine, theirs = _object(runs), _object(declared)
    if (mine is None) != (theirs is None) or runs.startswith("sha256:"):
        return runs.startswith("sha256:") and theirs is not None and _hashed(declared) != runs
    if mine is not None:
        return bool(mine != theirs)
    return canonical("word", [runs]) != canonical("word", [declared])


def _hashed(declared: str) -> str:
    return bounded(canonical("json", [declared]))


def _object(value: str) -> Any:
    """Of JSON that is an object or a list; None for other text."""
    if not value.lstrip().startswith(("{", "[")):
        return None
    try:
        return decoded(value)
    except NotCanonical:
        return None
