"""One tier judged by all that is known of it: its spec, what was measured, and where it runs."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from kvtier.api.types import KVCacheTier
from kvtier.placement.judgement import Judgement, judge, shown_before
from kvtier.plan.observed import RankState
from kvtier.reconcile.memory import TierMemory


def judged(memory: TierMemory, tier: KVCacheTier, states: Sequence[RankState]) -> Judgement:
    """By the newest measured link of ``memory``, which then knows what is shown.

    metadata.generation stands for the spec.
    """
    on_nodes = Counter(state.node for state in states if state.node)
    placed = states and on_nodes.total() == len(states)
    known: dict[str, Any] = {
        "generation": tier.metadata.generation,
        "link": memory.link,
        "ranks_together": max(on_nodes.values()) if placed else None,
    }
    # Up to 20 ms of arithmetic, which most reconciles would only repeat.
    if memory.judged is not None and memory.judged[0] == known:
        return memory.judged[1]
    before = memory.shown or shown_before(tier.status)
    judgement = judge(tier.spec, before=before, **known)
    memory.shown, memory.judged = judgement.shown, (known, judgement)
    return judgement
