"""One tier judged by all that is known of it: its spec, what was measured, and where it runs."""

from collections.abc import Sequence
from typing import Any

from kvtier.api.types import KVCacheTier
from kvtier.breakeven.observed import counted, rate_off, seen_before
from kvtier.placement.findings import Finding
from kvtier.placement.judgement import Judgement, judge, shown_before
from kvtier.placement.topology_checks import Placed, check
from kvtier.plan.probing import link_of
from kvtier.reconcile.memory import TierMemory


def judged(
    memory: TierMemory, tier: KVCacheTier, place: Placed, *, others: Sequence[Finding] = ()
) -> Judgement:
    """By the newest measured link of ``memory``, which then knows what is shown; without one by the
    link that is declared for where engines and ranks are.

    metadata.generation stands for the spec. ``others`` are findings of what the pool runs.
    """
    # The status is where a measured link is kept.
    memory.link = memory.link or link_of(tier.status, ranks=tier.spec.pool.ranks)
    kept = seen_before(tier.spec, tier.status) if memory.watches_engines else None
    memory.seen = memory.seen or kept
    known: dict[str, Any] = {
        "generation": tier.metadata.generation,
        "link": memory.link,
        "reach": place.topology.farthest_link(),
        "engines": len(place.topology.engines) or None,
        "ranks_together": place.topology.ranks_together(tier.spec.pool.ranks),
        "seen": memory.seen,
        "others": (*check(place), *others),
    }
    # Up to 20 ms of arithmetic, which most reconciles would only repeat.
    if memory.judged is not None and memory.judged[0] == known:
        return memory.judged[1]
    before = memory.shown or shown_before(tier.status, rate=counted(rate_off(tier.spec, kept)))
    judgement = judge(tier.spec, before=before, **known)
    memory.shown, memory.judged = judgement.shown, (known, judgement)
    return judgement
