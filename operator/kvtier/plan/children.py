"""Which children to create, to bring back to the intent, to prune, and which to leave alone."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvtier.plan.drift import contains, first_difference
from kvtier.plan.observed import Apply, ChildKey, Delete, Object, child_key, is_owned_by
from kvtier.plan.ranks import restart_hash
from kvtier.render.names import TEMPLATE_HASH


@dataclass(frozen=True, slots=True)
class ChildPlan:
    creates: tuple[Object, ...]
    applies: tuple[Apply, ...]
    prunes: tuple[Delete, ...]
    conflicts: tuple[ChildKey, ...]


def plan_children(
    intents: Sequence[Object], *, live: Mapping[ChildKey, Object], uid: str
) -> ChildPlan:
    """Compare every intent with the object that has its name.

    ``live`` holds the tier's own children and whatever else occupies one of their names. An object
    that the tier (``uid``) does not control is never touched: it is a conflict.
    """
    creates: list[Object] = []
    applies: list[Apply] = []
    conflicts: list[ChildKey] = []
    for wanted in intents:
        key = child_key(wanted)
        found = live.get(key)
        if found is None:
            creates.append(wanted)
        elif not is_owned_by(found, uid):
            conflicts.append(key)
        else:
            intent = hold_template(wanted, found)
            if not contains(found, intent):
                applies.append(
                    Apply(
                        intent=intent,
                        uid=found["metadata"]["uid"],
                        field=_differing_field(intent, found),
                    )
                )
    wanted_keys = {child_key(wanted) for wanted in intents}
    prunes = tuple(
        Delete(kind=key[0], name=key[1], uid=found["metadata"]["uid"])
        for key, found in live.items()
        if key not in wanted_keys and is_owned_by(found, uid)
    )
    return ChildPlan(tuple(creates), tuple(applies), prunes, tuple(conflicts))


def _differing_field(intent: Object, found: Object) -> str:
    """The first field that differs; the hashes differ whenever anything does, so they come last."""
    shown: dict[str, Any] = copy.deepcopy(dict(intent))
    shown["metadata"].pop("annotations", None)
    if intent["kind"] == "StatefulSet":
        shown["spec"]["template"]["metadata"].pop("annotations", None)
    return first_difference(shown, found) or first_difference(intent, found) or "."


def hold_template(intent: Object, live: Object) -> Object:
    """The intent, with the pod template left as it is when only kvtier's rendering has changed.

    Another release may render another template from the same spec. With the same restart hash
    nothing that the user asked for differs, so the template waits for the next restart that is
    asked for. The same rendering (equal template hash) that differs is drift, and is repaired.
    """
    if intent["kind"] != "StatefulSet":
        return intent
    rendered = live["metadata"].get("annotations", {}).get(TEMPLATE_HASH)
    wanted = intent["metadata"]["annotations"][TEMPLATE_HASH]
    if rendered is None or rendered == wanted or restart_hash(live) != restart_hash(intent):
        return intent
    held: dict[str, Any] = copy.deepcopy(dict(intent))
    held["metadata"]["annotations"][TEMPLATE_HASH] = rendered
    held["spec"]["template"] = copy.deepcopy(live["spec"]["template"])
    # What others annotated (kubectl rollout restart does) must not become ours: the next full
    # intent would prune it, and that would be another template.
    ours = intent["spec"]["template"]["metadata"]["annotations"]
    annotations = held["spec"]["template"]["metadata"].get("annotations", {})
    held["spec"]["template"]["metadata"]["annotations"] = {
        key: value for key, value in annotations.items() if key in ours
    }
    return held


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
