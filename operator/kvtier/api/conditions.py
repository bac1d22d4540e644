"""Kubernetes conditions as plain data."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_MESSAGE = 1024
"""Longest message, in characters: the status schema's bound."""

_STATUS = {True: "True", False: "False", None: "Unknown"}


@dataclass(frozen=True, slots=True)
class Condition:
    """What one condition should say; ``status`` None is ``Unknown``."""

    type: str
    status: bool | None
    reason: str
    message: str


def find(conditions: Iterable[Mapping[str, Any]], kind: str) -> Mapping[str, Any]:
    """The condition of this type, of a tier, a pod or a node; empty if there is none."""
    return next((each for each in conditions if each["type"] == kind), {})


def merge(
    previous: Sequence[Mapping[str, Any]],
    wanted: Sequence[Condition],
    *,
    observed_generation: int,
    now: str,
) -> list[dict[str, Any]]:
    """The condition list to write, in the order of ``wanted``.

    ``lastTransitionTime`` moves to ``now`` (RFC 3339) only when a condition's status changes. A
    condition in which nothing changed is the previous one, so that an unchanged list compares
    equal and is not written. Types that are not wanted any more are dropped.
    """
    before = {condition["type"]: condition for condition in previous}
    return [
        _merge_one(
            before.get(condition.type, {}),
            condition,
            observed_generation=observed_generation,
            now=now,
        )
        for condition in wanted
    ]


def _merge_one(
    old: Mapping[str, Any], condition: Condition, *, observed_generation: int, now: str
) -> dict[str, Any]:
    status = _STATUS[condition.status]
    unchanged_status = old.get("status") == status
    new = {
        "type": condition.type,
        "status": status,
        "reason": condition.reason,
        "message": bounded(condition.message),
        "observedGeneration": observed_generation,
        "lastTransitionTime": old.get("lastTransitionTime", now) if unchanged_status else now,
    }
    return old if isinstance(old, dict) and old == new else new


def bounded(message: str) -> str:
    """The message, cut where the API server would refuse it."""
    return message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 1] + "…"
