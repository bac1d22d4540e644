"""One tier judged by all that is known of it: its spec, what was measured, and where it runs."""

from collections import Counter
from collections.abc import Sequence

from kvtier.api.types import KVCacheTier
from kvtier.placement.judgement import Judgement, judge, shown_before
from kvtier.plan.observed import RankState
from kvtier.reconcile.memory import TierMemory


def judged(memory: TierMemory, tier: KVCacheTier, states: Sequence[RankState]) -> Judgement:
    """By the newest measured link of ``memory``, which then knows what is shown."""
    on_nodes = Counter(state.node for state in states if state.node)
    placed = states and on_nodes.total() == len(states)
    judgement = judge(
        tier.spec,
        generation=tier.metadata.generation,
        link=memory.link,
        before=memory.shown or shown_before(tier.status),
        ranks_together=max(on_nodes.values()) if placed else None,
    )
    memory.shown = judgement.shown
    return judgement
