"""What a reconcile found, as metrics."""

from collections.abc import Sequence

from kvtier.api.scalars import parse_duration
from kvtier.api.types import KVCacheTier
from kvtier.metrics import Metrics
from kvtier.placement.judgement import Judgement
from kvtier.placement.topology_checks import Placed
from kvtier.plan.observed import RankState
from kvtier.reconcile.memory import Key, TierMemory


def show_ranks(metrics: Metrics, key: Key, ranks: Sequence[RankState]) -> None:
    """How many there are, and how many are ready."""
    metrics.set_tier(*key, ranks=len(ranks), ready=sum(state.ready for state in ranks))


def show(
    metrics: Metrics,
    key: Key,
    memory: TierMemory,
    tier: KVCacheTier,
    *,
    ranks: Sequence[RankState],
    judgement: Judgement,
    place: Placed | None,
) -> None:
    """One tier as it was just brought about."""
    show_ranks(metrics, key, ranks)
    metrics.set_paused(*key, paused=tier.spec.paused)
    metrics.set_findings(*key, findings=judgement.findings)
    metrics.set_certificate_expiry(*key, ends=memory.certificate_ends(ranks))
    target = tier.spec.workload.target_ttft if tier.spec.workload else None
    metrics.verdict.show(
        *key,
        judgement=judgement,
        target_ttft=None if target is None else parse_duration(target),
        probe_interval=tier.spec.placement.probe.interval_seconds,
    )
    if place is not None:
        metrics.set_placement(
            *key,
            engines=sum(engine.ready for engine in place.topology.engines),
            engines_outside=len(place.engines_outside),
            ranks_outside=len(place.ranks_outside),
        )
