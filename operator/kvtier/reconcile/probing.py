"""Probing tiers: one Job at a time for each of them, a few at a time for all.

The status keeps what was found, the Job's pod what was not read yet. All else can be lost.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from kvtier.api import reasons
from kvtier.api.types import KVCacheTier
from kvtier.breakeven.assessment import LinkFigures
from kvtier.breakeven.words import gigabits
from kvtier.cluster.protocol import (
    JOB,
    POD,
    AlreadyExists,
    ApiError,
    Cluster,
    Forbidden,
    Invalid,
    Object,
)
from kvtier.metrics import Metrics
from kvtier.placement.topology import Topology
from kvtier.plan.observed import EventSpec, EventType, Plan, RankState, is_owned_by
from kvtier.plan.probing import (
    REQUESTED,
    NodeResult,
    Places,
    as_kept,
    created,
    due_in,
    is_finished,
    places,
    result_of,
    retry_in,
    seconds_of,
    slowest,
    why_now,
)
from kvtier.reconcile.clock import Clock
from kvtier.reconcile.execute import NotLeading, Report
from kvtier.reconcile.memory import Key, ProbeMemory, TierMemory
from kvtier.render.names import probe_name
from kvtier.render.probe import NODE_ANNOTATION, PROBE_LABEL, probe_job

log = logging.getLogger(__name__)

MOST_AT_ONCE = 2
"""Probes of all tiers together: what they read is taken from engines."""
POLL_SECONDS = 5.0
TURN_SECONDS = 10.0
"""Until a tier asks again whether it is its turn."""


@dataclass(slots=True)
class Progress:
    """What one look brought: a link to judge by, events, and when to look again."""

    link: LinkFigures | None = None
    events: list[EventSpec] = field(default_factory=list)
    requeue_after: float | None = None

    def sooner(self, plan: Plan) -> Plan:
        """The plan, with the next look no later than the probe asks for."""
        waits = (plan.requeue_after, self.requeue_after)
        return replace(plan, requeue_after=min(filter(None, waits), default=None))


class Prober:
    """Makes, reads and deletes Jobs. ``image`` is kvtier's own; None: nothing is ever probed."""

    def __init__(
        self, *, cluster: Cluster, image: str | None, leads: Callable[[], bool], metrics: Metrics
    ) -> None:
        self._cluster = cluster
        self._image = image
        self._leads = leads
        self._metrics = metrics
        self._running: set[Key] = set()
        metrics.probes_running.set_function(lambda: len(self._running))

    def forget(self, key: Key) -> None:
        """The tier is gone, and its Job with it."""
        self._running.discard(key)

    async def look(
        self,
        key: Key,
        memory: TierMemory,
        tier: KVCacheTier,
        *,
        topology: Topology,
        plan: Plan,
        report: Report,
        clock: Clock,
    ) -> Progress:
        """One look at a tier's probe; ``memory.link`` is then the newest link. A request that the
        API server does not answer costs this look and nothing else. Raises NotLeading.
        """
        ranks = tier.spec.pool.ranks
        # Only of a rank that is as wanted it is known that the probe can log in.
        settled = not (report.failures or plan.restarts or plan.outdated or plan.moving)
        settled = settled and len(memory.proven) == ranks
        progress = Progress()
        try:
            progress = await self._advance(
                key,
                memory.probe,
                tier,
                wanted=places(topology),
                states=plan.ranks,
                settled=settled and all(state.ready for state in plan.ranks),
                now=clock.now(),
                monotonic=clock.monotonic(),
            )
        except ApiError as error:
            log.warning("%s/%s: no look at the probe: %s", *key, error)
            # Perhaps it was made, or deleted, all the same.
            if memory.probe.job is not None:
                memory.probe.pending.insert(0, memory.probe.node)
            memory.probe.looked, memory.probe.job = False, None
            progress.requeue_after = max(POLL_SECONDS, error.retry_after or 0.0)
        link = memory.link = progress.link or memory.link
        if link is not None:
            self._metrics.verdict.set_probed(
                *key,
                bytes_per_second=link.bytes_per_second,
                round_trip=link.round_trip_seconds,
                at=seconds_of(link.at),
            )
        return progress

    async def _advance(
        self,
        key: Key,
        memory: ProbeMemory,
        tier: KVCacheTier,
        *,
        wanted: Places,
        states: Sequence[RankState],
        settled: bool,
        now: datetime,
        monotonic: float,
    ) -> Progress:
        progress = Progress()
        if self._image is None or tier.spec.paused or not wanted.engines:
            if memory.job is None:
                self._running.discard(key)
            return progress
        if not memory.looked:
            await self._adopt(key, memory, tier)
        if memory.job is not None:
            if monotonic < memory.next_look:
                # Events of the tier come in between.
                progress.requeue_after = memory.next_look - monotonic
                return progress
            await self._look(key, memory, tier, progress, now=now)
            memory.next_look = monotonic + POLL_SECONDS
        if memory.job is None and not memory.pending and not memory.results:
            self._begin(memory, tier, wanted=wanted, states=states, now=now, monotonic=monotonic)
        if memory.job is None and memory.pending:
            if settled:
                await self._start(key, memory, tier, progress)
                memory.next_look = monotonic + POLL_SECONDS
            elif not memory.results:
                memory.pending.clear()
        if memory.job is None and not memory.pending and memory.results:
            self._finish(memory, tier, progress, monotonic=monotonic)
        if progress.requeue_after is None and memory.job is None:
            waits = [memory.not_before - monotonic] if memory.not_before > monotonic else []
            if (interval := due_in(tier, now=now)) is not None and not progress.link:
                waits.append(interval + 1)
            progress.requeue_after = min(waits, default=None)
        return progress

    async def _adopt(self, key: Key, memory: ProbeMemory, tier: KVCacheTier) -> None:
        """A Job that this process did not make, or does not know to have made."""
        namespace, name = tier.metadata.namespace, probe_name(tier.metadata.name)
        found = await self._cluster.get(JOB, namespace, name)
        memory.looked = True
        memory.taken = found is not None and not is_owned_by(found, tier.metadata.uid)
        if found is not None and not memory.taken:
            memory.job, memory.began = found["metadata"]["uid"], created(found)
            memory.node = found["metadata"].get("annotations", {}).get(NODE_ANNOTATION, "")
            memory.pending = [node for node in memory.pending if node != memory.node]
            self._running.add(key)

    def _begin(
        self,
        memory: ProbeMemory,
        tier: KVCacheTier,
        *,
        wanted: Places,
        states: Sequence[RankState],
        now: datetime,
        monotonic: float,
    ) -> None:
        why = why_now(
            tier,
            wanted=wanted,
            measured=memory.places,
            states=states,
            began=memory.began,
            asked=memory.asked,
            now=now,
        )
        request = tier.metadata.annotations.get(REQUESTED)
        anew = request is not None and request != memory.asked
        if why is None or (monotonic < memory.not_before and not anew):
            if memory.places is None and why is None:
                memory.places = wanted
            return
        memory.asked, memory.began = request, now
        memory.places = wanted
        memory.pending = [node for node, _ in wanted.engines]

    async def _start(
        self, key: Key, memory: ProbeMemory, tier: KVCacheTier, progress: Progress
    ) -> None:
        if key not in self._running and len(self._running) >= MOST_AT_ONCE:
            progress.requeue_after = TURN_SECONDS
            return
        node = memory.pending[0]
        if not self._leads():
            raise NotLeading
        assert self._image is not None
        try:
            made = await self._cluster.post(probe_job(tier, node, image=self._image))
        except AlreadyExists:
            if memory.taken:
                name = probe_name(tier.metadata.name)
                self._give_up(memory, f"Job {name} exists and is not this tier's")
                return
            memory.looked = False
            progress.requeue_after = POLL_SECONDS
            return
        except (Forbidden, Invalid) as error:
            # A quota, an admission policy, roles of an earlier release: no try soon mends it.
            self._give_up(memory, str(error))
            return
        memory.pending.pop(0)
        memory.job, memory.node = made["metadata"]["uid"], node
        memory.taken = False
        self._running.add(key)
        progress.requeue_after = POLL_SECONDS

    def _give_up(self, memory: ProbeMemory, why: str) -> None:
        for node in memory.pending:
            memory.results.append(self._result(memory, node, why))
        memory.pending.clear()

    @staticmethod
    def _result(memory: ProbeMemory, node: str, found: object) -> NodeResult:
        level = memory.places.level(node) if memory.places else ""
        return NodeResult(node=node, level=level, found=found)  # type: ignore[arg-type]

    async def _look(
        self,
        key: Key,
        memory: ProbeMemory,
        tier: KVCacheTier,
        progress: Progress,
        *,
        now: datetime,
    ) -> None:
        namespace, name = tier.metadata.namespace, probe_name(tier.metadata.name)
        job = await self._cluster.get(JOB, namespace, name)
        if job is None or job["metadata"]["uid"] != memory.job:
            found: object = "its Job was deleted"
        elif not is_finished(job):
            progress.requeue_after = POLL_SECONDS
            return
        else:
            selector = f"{PROBE_LABEL}={tier.metadata.name}"
            pods = await self._cluster.list(POD, namespace, selector)
            found = result_of(job, pods, now=now)
            await self._delete(job)
        memory.results.append(self._result(memory, memory.node, found))
        memory.job = None
        self._running.discard(key)

    async def _delete(self, job: Object) -> None:
        if not self._leads():
            raise NotLeading
        metadata = job["metadata"]
        await self._cluster.delete(
            JOB, metadata["namespace"], metadata["name"], uid=metadata["uid"]
        )

    def _finish(
        self, memory: ProbeMemory, tier: KVCacheTier, progress: Progress, *, monotonic: float
    ) -> None:
        namespace, name = tier.metadata.namespace, tier.metadata.name
        results, memory.results = memory.results, []
        for each in results:
            trouble = each.trouble
            self._metrics.verdict.count_probe(
                namespace, name, result="error" if trouble else "success"
            )
            if trouble:
                text = f"The probe has no figure {trouble}."
                progress.events.append(EventSpec(EventType.WARNING, reasons.PROBE_FAILED, text))
        link = slowest(results)
        for each in results:
            if link is not None and each.link == link and not isinstance(each.found, str):
                ranks = [(of.rank, of.bytes_per_second, of.round_trip) for of in each.found.ranks]
                self._metrics.ranks.show_probed(namespace, name, ranks=ranks)
        if link is None:
            memory.failures += 1
            memory.not_before = monotonic + retry_in(memory.failures)
            return
        memory.failures, memory.not_before = 0, 0.0
        progress.link = as_kept(link, ranks=tier.spec.pool.ranks)
        least = "at least " if link.lower_bound else ""
        text = (
            f"Measured from {link.node}: {least}{gigabits(link.bytes_per_second)}, round trip "
            f"{1e3 * link.round_trip_seconds:.2g} ms."
        )
        progress.events.append(EventSpec(EventType.NORMAL, reasons.PROBED, text))
