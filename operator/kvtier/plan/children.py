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
from kvtier.plan.ranks import RESTARTED_AT, restart_hash
from kvtier.render.names import CONTAINER, RESTART_HASH, TLS_VOLUME, acl_name


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
    either, since the tokens in it would be nobody's; only the record is, which may fence something.
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
        record = ("Secret", acl_name(tier.metadata.name))
        creates, applies = [], [each for each in applies if child_key(each.intent) == record]
    return ChildPlan(tuple(creates), tuple(applies), tuple(conflicts), tuple(leftovers))


def _differing_field(intent: Object, found: Object) -> str:
    """The first field that differs; the restart hash differs with any, so it comes last."""
    shown: dict[str, Any] = copy.deepcopy(dict(intent))
    if intent["kind"] == "StatefulSet":
        shown["spec"]["template"]["metadata"].pop("annotations", None)
    return first_difference(shown, found) or first_difference(intent, found) or "."


def restart_field(intents: Sequence[Object], live: Mapping[ChildKey, Object]) -> str | None:
    """The fields of the spec whose change asks for a restart, None if none does."""
    for intent in intents:
        found = live.get(child_key(intent))
        if intent["kind"] != "StatefulSet" or found is None:
            continue
        if restart_hash(found) == restart_hash(intent):
            continue
        wanted, running = _by_field(intent), _by_field(found)
        changed = [field for field, value in wanted.items() if value != running[field]]
        # What no pod template shows is a setting that is read from a file at the start.
        return " and ".join(changed) or "spec.store.ioThreads"
    return None


def _by_field(statefulset: Object) -> dict[str, Any]:
    """What the pod template has from each field of the spec; empty and absent are one."""
    template = statefulset["spec"]["template"]
    metadata, pod = template["metadata"], template["spec"]
    container: Mapping[str, Any] = next(
        (each for each in pod["containers"] if each["name"] == CONTAINER), {}
    )
    limits = container.get("resources", {}).get("limits", {})
    tls = [
        volume["secret"]["secretName"]
        for volume in pod.get("volumes") or ()
        if volume["name"] == TLS_VOLUME
    ]
    annotations = metadata.get("annotations") or {}
    values = {
        "image or version": container.get("image"),
        "memoryPerRank": limits.get("memory"),
        "cpu": limits.get("cpu"),
        "tolerations": pod.get("tolerations"),
        "nodeSelector": pod.get("nodeSelector"),
        "priorityClassName": pod.get("priorityClassName"),
        "imagePullSecrets": pod.get("imagePullSecrets"),
        "labels": metadata.get("labels"),
        "annotations": {
            name: value
            for name, value in annotations.items()
            if name not in (RESTART_HASH, RESTARTED_AT)
        },
        "tls": tls,
    }
    return {f"spec.store.{field}": value or None for field, value in values.items()}
