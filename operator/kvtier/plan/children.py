"""Which children to create, which to bring back to the intent, and which to leave alone."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvtier.api.types import KVCacheTier
from kvtier.plan.drift import first_difference
from kvtier.plan.observed import (
    Apply,
    ChildKey,
    Object,
    child_key,
    is_leftover,
    is_owned_by,
)
from kvtier.plan.ranks import restart_hash


@dataclass(frozen=True, slots=True)
class ChildPlan:
    """See ``observed.Plan``."""

    creates: tuple[Object, ...]
    applies: tuple[Apply, ...]
    conflicts: tuple[ChildKey, ...]
    leftovers: tuple[ChildKey, ...]


def plan_children(
    intents: Sequence[Object], *, live: Mapping[ChildKey, Object], tier: KVCacheTier
) -> ChildPlan:
    """Compare every intent with the object that has its name.

    ``live`` holds the tier's own children and whatever else occupies one of their names. An object
    that the tier does not control is never touched. If that is a Secret, nothing else is written
    either: the tokens in it would be nobody's.
    """
    creates: list[Object] = []
    applies: list[Apply] = []
    conflicts: list[ChildKey] = []
    leftovers: list[ChildKey] = []
    for intent in intents:
        key = child_key(intent)
        found = live.get(key)
        if found is None:
            creates.append(intent)
        elif is_leftover(found, tier):
            leftovers.append(key)
        elif not is_owned_by(found, tier.metadata.uid):
            conflicts.append(key)
        elif first_difference(intent, found):
            uid = found["metadata"]["uid"]
            applies.append(Apply(intent=intent, uid=uid, field=_differing_field(intent, found)))
    if any(kind == "Secret" for kind, _ in (*conflicts, *leftovers)):
        creates, applies = [], []
    return ChildPlan(tuple(creates), tuple(applies), tuple(conflicts), tuple(leftovers))


def _differing_field(intent: Object, found: Object) -> str:
    """The first field that differs; the restart hash differs with any, so it comes last."""
    shown: dict[str, Any] = copy.deepcopy(dict(intent))
    if intent["kind"] == "StatefulSet":
        shown["spec"]["template"]["metadata"].pop("annotations", None)
    return first_difference(shown, found) or first_difference(intent, found) or "."


def restart_field(intents: Sequence[Object], live: Mapping[ChildKey, Object]) -> str | None:
    """The first field of the pod template whose change asks for a restart, None if none does."""
    for intent in intents:
        found = live.get(child_key(intent))
        if intent["kind"] != "StatefulSet" or found is None:
            continue
        if restart_hash(found) == restart_hash(intent):
            continue
        field = _differing_field(intent, found)
        prefix = "spec.template.spec."
        return (
            f"the pods' {field.removeprefix(prefix)}" if field.startswith(prefix) else "a setting"
        )
    return None
