"""Pure: rank pods whose node is gone, so that nobody would ever report them gone.

A StatefulSet makes no new pod while the old one is there, and an old one on a node that does not
answer stays until somebody deletes it by force. A rank has no storage that two pods could damage,
and one lost rank is the whole tier, so kvtier does it.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from kvtier.api.conditions import find
from kvtier.plan.observed import Delete, NodeFacts, Object, RankState
from kvtier.plan.placement import memory_bytes

OVERDUE = timedelta(seconds=30)
"""How long a pod may outlive its deletion on a node that does not report: the node may be back."""
_UNREACHABLE = "node.kubernetes.io/unreachable"
_LIVES_ON = (
    "If that machine still runs, so does the old process, with the users that it had; whoever "
    "connects now reaches the new one."
)


def node_facts(node: Object | None) -> NodeFacts:
    """What is known of a node; None is one that does not exist."""
    if node is None:
        return NodeFacts(exists=False)
    ready = find(node.get("status", {}).get("conditions", ()), "Ready")
    taints = node.get("spec", {}).get("taints", ())
    allocatable = node.get("status", {}).get("allocatable", {})
    return NodeFacts(
        labels=node["metadata"].get("labels", {}),
        ready=ready.get("status"),
        since=ready.get("lastTransitionTime"),
        unreachable=any(taint["key"] == _UNREACHABLE for taint in taints),
        cordoned=bool(node.get("spec", {}).get("unschedulable")),
        allocatable_memory=memory_bytes(allocatable.get("memory")),
    )


def needs_its_node(state: RankState, *, now: datetime) -> bool:
    """Whether only the rank's node can tell what became of its pod.

    It is so for a server that was ready and is not, and for a pod that should be gone: then the
    node is read each time. Ranks that start or restart cost no request.
    """
    overdue = state.leaves_at is not None and now >= _time(state.leaves_at)
    return state.node is not None and (state.fell_silent or overdue)


def lost_pods(
    states: Sequence[RankState], *, nodes: Mapping[str, NodeFacts], now: datetime
) -> tuple[Delete, ...]:
    """The pods to delete by force, never one of a node that reports, nor one a second time.

    ``now`` is compared with the API server's times: a clock that is ahead deletes earlier what
    was being deleted anyway.
    """
    return tuple(
        Delete(kind="Pod", name=state.pod, uid=str(state.pod_uid), why=_why(state, node))
        for state in states
        if (node := nodes.get(state.node or "")) is not None
        and state.pod is not None
        and _is_lost(state, node, now)
    )


def look_again(
    states: Sequence[RankState], *, nodes: Mapping[str, NodeFacts], now: datetime
) -> float | None:
    """Seconds until a pod that is being deleted should be gone, or may be deleted by force."""
    waits = []
    for state in states:
        if state.leaves_at is None or state.held:
            continue
        due = _time(state.leaves_at)
        node = nodes.get(state.node or "")
        if due <= now and node is not None and not node.reports:
            due += OVERDUE
        if due > now:
            waits.append((due - now).total_seconds())
    # The server's times are whole seconds.
    return min(waits) + 1 if waits else None


def _is_lost(state: RankState, node: NodeFacts, now: datetime) -> bool:
    # Facts of other ranks' nodes may be as old as the last full read.
    if node.reports or state.held or not needs_its_node(state, now=now):
        return False
    if not node.exists:
        return True
    return state.leaves_at is not None and now >= _time(state.leaves_at) + OVERDUE


def _why(state: RankState, node: NodeFacts) -> str:
    what = f"has not reported since {node.since}" if node.exists else "does not exist any more"
    return (
        f"Deleted pod {state.pod} by force: its node {state.node} {what}. {_LIVES_ON} "
        "Until it has filled again, prompts are recomputed in full."
    )


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
