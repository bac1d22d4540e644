"""Pure: why ranks are not ready, in words for the condition's message."""

from collections.abc import Mapping, Sequence

from kvtier.plan.observed import NodeFacts, RankState


def not_ready(ranks: Sequence[RankState], *, nodes: Mapping[str, NodeFacts], ready: int) -> str:
    """How many are ready, and each cause once with the ranks that it holds up.

    Times in it are those at which something began, so that it does not change by waiting.
    """
    causes: dict[str, list[str]] = {}
    for state in ranks:
        if not state.ready:
            causes.setdefault(_cause(state, nodes), []).append(str(state.rank))
    told = [f"rank {', '.join(held)}: {cause}" for cause, held in causes.items()]
    return f"{ready} of {len(ranks)} ranks are ready ({'; '.join(told)})."


def _cause(state: RankState, nodes: Mapping[str, NodeFacts]) -> str:
    node = nodes.get(state.node or "", NodeFacts())
    if state.held:
        return "deleted by force, but finalizers keep its pod"
    if state.leaving or state.fell_silent:
        trouble = _node_trouble(state, node)
        if trouble:
            return f"stopping, but {trouble}" if state.leaving else trouble
    if state.leaving:
        return "stopping"
    if state.waiting:
        # The text names the pod: without it, ranks that wait for the same are told of together.
        return state.waiting.replace(state.pod or "<pod>", "<pod>")
    if state.fell_silent:
        return (
            f"its server runs on {state.node} and has not answered since {state.unready_since}: "
            "it hangs, or has far too much to do"
        )
    return "starting" if state.pod else "no pod yet"


def _node_trouble(state: RankState, node: NodeFacts) -> str | None:
    if not node.exists:
        return f"its node {state.node} does not exist any more"
    if not node.reports:
        return f"its node {state.node} has not reported since {node.since}"
    if node.ready == "False":
        return f"its node {state.node} is not ready since {node.since}"
    return None
