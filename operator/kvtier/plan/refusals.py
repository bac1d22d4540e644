"""Pure: why a rank has no pod, in the words of whoever refused it."""

import re
from collections.abc import Mapping, Sequence

from kvtier.plan.observed import Object, RankState
from kvtier.render.names import rank_name

# "Create Pod chat-r0-0 in StatefulSet chat-r0 failed error: <what the API server said>"; the verb's
# case is another in other releases of Kubernetes.
_PREFACE = re.compile(r"^[Cc]reate Pod \S+ in StatefulSet \S+ failed error: ")


def refusals(
    tier: str,
    *,
    events: Sequence[Object],
    states: Sequence[RankState],
    children: Mapping[tuple[str, str], Object],
) -> dict[int, str]:
    """By rank without a pod: what its StatefulSet was last told when it asked for one.

    ``events`` are those of the namespace's StatefulSets. Empty where the last attempt succeeded.
    """
    found = {}
    for state in states:
        name = rank_name(tier, state.rank)
        owner = children.get(("StatefulSet", name))
        if state.pod is not None or owner is None:
            continue
        about = [event for event in events if event["involvedObject"].get("uid") == _uid(owner)]
        newest = max(about, key=_when, default=None)
        if newest is not None and newest.get("reason") == "FailedCreate":
            said = _PREFACE.sub("", newest.get("message", ""))
            found[state.rank] = said.replace(f"{name}-0", "<pod>")
    return found


def _uid(obj: Object) -> str:
    uid: str = obj["metadata"]["uid"]
    return uid


def _when(event: Object) -> str:
    """RFC 3339, in UTC: sorts as text. Recorders fill in different fields."""
    series = event.get("series") or {}
    times = (
        series.get("lastObservedTime"),
        event.get("lastTimestamp"),
        event.get("eventTime"),
        event["metadata"].get("creationTimestamp"),
    )
    return max(time for time in (*times, "") if time is not None)
