"""How long fences and purges take, and generations as metrics."""

from collections import Counter
from collections.abc import Callable

from kvtier.api import reasons
from kvtier.api.types import KVCacheTier
from kvtier.generation.acl import fenced_tokens
from kvtier.generation.case import Fences
from kvtier.generation.entry import GenerationState
from kvtier.generation.identity import identity
from kvtier.generation.record import Record
from kvtier.generation.step import Step
from kvtier.metrics_generations import STAGES, GenerationMetrics
from kvtier.plan.pool_findings import drifted, unreadable
from kvtier.plan.probing import seconds_of
from kvtier.reconcile.fencing import EMPTYING, Purges
from kvtier.reconcile.memory import Key, TierMemory

ACCESS_GONE, FILES_LOADED = STAGES


class Measuring:
    """Writes to ``metrics``; what is under way is in a tier's memory."""

    def __init__(self, metrics: GenerationMetrics, *, monotonic: Callable[[], float]) -> None:
        self._metrics = metrics
        self._monotonic = monotonic

    def fenced(
        self, memory: TierMemory, key: Key, before: Record, step: Step, fences: Fences
    ) -> None:
        """Take down which fences were decided by this look, and which are proven by now."""
        now = self._monotonic()
        had = {entry.id for entry in before.generations if entry.has_access}
        for entry in step.record.generations:
            for stage in STAGES:
                if entry.has_access:
                    memory.fencing.pop((entry.id, stage), None)
                elif entry.id in had:
                    memory.fencing[entry.id, stage] = memory.looked_at or now
        for told in step.told:
            if told.reason == reasons.GENERATION_CONTAMINATED:
                self._metrics.count_contamination(*key)
        reached = {ACCESS_GONE: fences.ranks <= fences.gone, FILES_LOADED: fences.hold}
        for generation, stage in list(memory.fencing):
            if reached[stage]:
                began = memory.fencing.pop((generation, stage))
                self._metrics.observe_fence(now - began, stage=stage)

    def purged(
        self,
        memory: TierMemory,
        key: Key,
        tier: KVCacheTier,
        record: Record,
        purges: Purges,
        fences: Fences,
    ) -> None:
        """Count what was deleted, and show the tier's generations as they are."""
        now = self._monotonic()
        for generation, keys in purges.keys.items():
            self._metrics.count_purged(*key, keys=keys)
            memory.purge_began.setdefault(generation, now - purges.seconds.get(generation, 0.0))
        emptying = {entry.id for entry in record.generations if entry.state in EMPTYING}
        for generation, began in list(memory.purge_began.items()):
            if generation not in emptying:
                del memory.purge_began[generation]
            elif purges.keys and fences.ranks <= fences.purged.get(generation, frozenset()):
                self._metrics.observe_purge(now - began)
        self._show(memory, key, tier, record, fences)

    def _show(
        self, memory: TierMemory, key: Key, tier: KVCacheTier, record: Record, fences: Fences
    ) -> None:
        pods = list(memory.pool.values())
        engines = Counter(
            generation for pod in pods if pod.ready for generation in pod.identity.generations
        )
        proven = fences.gone & fences.delivered
        self._metrics.show(
            *key,
            generations=record.generations,
            engines=engines,
            unproven=len(fences.ranks - proven) if any(fenced_tokens(record)) else 0,
            drifted=len(drifted(identity(tier.spec, version=record.identity_version), pods)),
            unreadable=len(unreadable(record, pods)),
            drain_seconds=tier.spec.rollout.drain_seconds,
            drains_since={
                entry.id: seconds_of(entry.since)
                for entry in record.generations
                if entry.state is GenerationState.DRAINING and entry.since
            },
        )
