"""One reconcile: observe, plan, carry out, write the status."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from typing import Protocol

from kvtier.api import reasons
from kvtier.api.load import InvalidTier, parse_tier
from kvtier.api.types import KVCacheTier
from kvtier.cluster.protocol import (
    NODE,
    POD,
    TIER,
    Cluster,
    Conflict,
    Object,
)
from kvtier.generation.record import Record
from kvtier.metrics import Metrics
from kvtier.placement.judgement import Judgement
from kvtier.plan.admission_told import storm_events
from kvtier.plan.lost_nodes import look_again, lost_pods
from kvtier.plan.observed import EventSpec, EventType, Observed, Plan, RankState
from kvtier.plan.placement import placed
from kvtier.plan.plan import make_plan
from kvtier.plan.ranks import rank_states
from kvtier.plan.status import project, refused
from kvtier.plan.verdict import verdict_events
from kvtier.reconcile.clock import Clock
from kvtier.reconcile.execute import Executor, Report
from kvtier.reconcile.fencing import Purger, fences
from kvtier.reconcile.gateway import GatewayPolicies
from kvtier.reconcile.generations import events, found_in_pool, look, next_look, sooner
from kvtier.reconcile.judging import judged
from kvtier.reconcile.measuring import Measuring
from kvtier.reconcile.memory import Key, Memory, TierMemory
from kvtier.reconcile.observe import LISTED_CHILDREN, Observer
from kvtier.reconcile.placing import ENGINE, Placer
from kvtier.reconcile.planned import PlannedWork, ReadLimiters
from kvtier.reconcile.probing import Prober
from kvtier.reconcile.queue import Result
from kvtier.reconcile.record import RecordLost, is_recorded, resolve, secret_names, unread_names
from kvtier.reconcile.showing import show, show_ranks
from kvtier.reconcile.statuses import StatusWriter
from kvtier.reconcile.telling import (
    chosen,
    done,
    lost_and_back,
    newly_found,
    outcome,
    problems,
    subject,
)
from kvtier.render.render import RenderSettings
from kvtier.store.protocol import Connect

CHILD_KINDS = frozenset(kind.kind for kind in LISTED_CHILDREN) | {ENGINE}
EARLIEST_RESYNC = 0.9
"""Share of the resync's interval after which the next one may come."""
MOST_REREADS = 3
REREAD_DELAY = 0.2
"""Seconds until a second look after another writer was in between."""
WAITING_POLL = (5.0, 60.0)
"""Least and most seconds between two looks at pods that are not ready; it grows with the wait."""


class EventSink(Protocol):
    """Where events go. It never raises: an event that cannot be told costs no reconcile."""

    async def record(self, obj: Object, event: EventSpec) -> None: ...


@dataclass(frozen=True, slots=True)
class ReconcilerSettings:
    """``resync`` is in seconds: how long what sends no event may go unseen. ``envoy_gateway``: its
    policies may be written."""

    render: RenderSettings
    resync: float = 300.0
    envoy_gateway: bool = False


class Reconciler:
    """Brings one tier at a time to its spec. Holds nothing that cannot be read again."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        connect: Connect,
        recorder: EventSink,
        settings: ReconcilerSettings,
        clock: Clock,
        metrics: Metrics,
        leads: Callable[[], bool],
        jitter: Callable[[], float],
        read_limiters: ReadLimiters | None = None,
    ) -> None:
        self._cluster = cluster
        self._connect = connect
        self._recorder = recorder
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self._jitter = jitter
        self._observer = Observer(cluster=cluster, connect=connect)
        self._placer = Placer(cluster=cluster, connect=connect)
        self._leads = leads
        self._prober = Prober(
            cluster=cluster, image=settings.render.probe_image, leads=leads, metrics=metrics
        )
        self._executor = Executor(
            cluster=cluster, connect=connect, leads=leads, monotonic=clock.monotonic
        )
        self._purger = Purger(connect=connect, leads=leads)
        self._measuring = Measuring(metrics.generations, monotonic=clock.monotonic)
        self._statuses = StatusWriter(cluster=cluster, leads=leads, metrics=metrics)
        self.memory = Memory()
        self._planned = PlannedWork(memory=self.memory, read=read_limiters, clock=clock)
        self._gateway = GatewayPolicies(
            cluster if settings.envoy_gateway else None, leads=leads, clock=clock, metrics=metrics
        )

    async def reconcile(self, key: Key, dirty: frozenset[str]) -> Result:
        """Handle one key of the queue. Raises ApiError for what a later try may mend."""
        memory = self.memory.of(key)
        full = memory.needs_full_read(
            now=self._clock.monotonic(), every=EARLIEST_RESYNC * self._settings.resync
        )
        if full or TIER.kind in dirty:
            body = await self._cluster.get(TIER, *key)
            if body is None or "deletionTimestamp" in body["metadata"]:
                # The garbage collector takes the children by their owner references.
                self.memory.forget(key)
                self._prober.forget(key)
                self._metrics.forget_tier(*key)
                return Result()
            before, memory = memory, self.memory.renew(key, body)
            full = full or memory is not before
        assert memory.body is not None
        try:
            tier = parse_tier(memory.body)
        except InvalidTier as error:
            survivors = await self._observer.read_survivors(memory, memory.body)
            return await self._refuse(memory, reasons.INVALID_SPEC, str(error), ranks=survivors)
        await self._read(memory, tier, kinds=CHILD_KINDS if full else dirty, full=full)
        states = rank_states(tier, children=memory.children, pods=memory.pods)
        try:
            record = await resolve(tier, memory=memory, states=states, connect=self._connect)
        except RecordLost as error:
            return await self._refuse(memory, reasons.RECORD_UNREADABLE, str(error), ranks=states)
        return await self._bring_about(key, memory, tier, record)

    async def _read(
        self, memory: TierMemory, tier: KVCacheTier, *, kinds: frozenset[str], full: bool
    ) -> None:
        if full or NODE.kind in kinds:
            memory.nodes.clear()
            memory.stale_nodes.clear()
            memory.candidates = None
        if full:
            memory.proven.clear()
            memory.check_access()
            memory.futile.clear()
            await self._observer.read_foreign(memory, tier)
        if full or memory.may_lack_secrets(now=self._clock.monotonic()):
            memory.secrets_at = self._clock.monotonic()
            await self._observer.read_secrets(memory, tier, names=secret_names(tier))
            await self._observer.read_secrets(memory, tier, names=unread_names(tier, memory))
        tls = tier.spec.store.tls
        if full or memory.tls_secret != (tls.secret_name if tls else None):
            await self._observer.read_tls(memory, tier)
        if memory.waiting_since is not None:
            # Pods send no events, and why one waits changes without its StatefulSet.
            kinds |= {POD.kind}
        assert memory.body is not None
        await self._observer.read_children(memory, memory.body["metadata"], kinds=kinds)
        if ENGINE in kinds:
            await self._placer.read_engines(memory, tier)
        if full:
            memory.full_at = self._clock.monotonic()

    async def _bring_about(
        self, key: Key, memory: TierMemory, tier: KVCacheTier, record: Record
    ) -> Result:
        states = rank_states(tier, children=memory.children, pods=memory.pods)
        now = self._clock.now()
        await self._observer.read_nodes(memory, states, now=now)
        await self._placer.read_candidates(memory, tier, states=states)
        before = record
        record, keys = await self._placer.place(memory, tier, record, states=states)
        step = look(
            memory,
            tier,
            record,
            states=states,
            monotonic=self._clock.monotonic(),
            now=self._now(),
        )
        record = step.record
        await self._observer.read_stores(
            memory, tier, record=record, states=states, now=self._clock.monotonic()
        )
        observed = Observed(
            tier=tier,
            record=record,
            children=dict(memory.children),
            pods=tuple(memory.pods),
            nodes=dict(memory.nodes),
            stores=dict(memory.stores),
            tls=memory.tls,
            engines=tuple(memory.engines.values()),
            keys=keys,
            candidates=memory.candidates,
            leaving=step.leaving,
            fences=fences(memory, tier, record, states=states),
            to_restart=self._planned.to_restart(memory, tier, states),
        )
        if self._lack_pods(memory, states):
            refused_pods = await self._observer.read_refusals(memory, tier, states=states)
            observed = replace(observed, refusals=refused_pods)
        place = placed(observed, states)
        around = (
            *found_in_pool(memory, tier, record),
            *self._planned.findings(memory, tier),
        )
        judgement = judged(memory, tier, place, others=around)
        plan = make_plan(
            observed,
            settings=self._settings.render,
            now=now,
            restart_reason=memory.restart_reason,
            rejected=judgement.rejected,
        )
        plan, planned = await self._planned.gate(key, memory, tier, plan)
        report = await self._executor.carry_out(plan, tier=tier, record=record, memory=memory)
        recorded = is_recorded(memory, tier, record)
        if recorded:
            memory.record = record
            proven = fences(memory, tier, record, states=states)
            observed = replace(observed, fences=proven)
            self._measuring.fenced(memory, key, before, step, proven)
        memory.restart_reason = None if plan.restarts else plan.restart_reason
        probed = await self._prober.look(
            key, memory, tier, topology=place.topology, plan=plan, report=report, clock=self._clock
        )
        judgement = judged(memory, tier, place, others=around)
        admission = self._planned.admission(memory, tier, planned=planned)
        policy = await self._gateway.look(key, memory, tier, admission)
        changed = await self._write_status(memory, observed, plan, report, judgement, admission)
        told = chosen(before, record, place=place) if recorded else ()
        changes = done(report, tier=tier, new_record=record != before)
        await self._tell(tier, [*told, *plan.events, *changes, *probed.events, *policy.events])
        if recorded:
            await self._tell(tier, events(step.told))
        await self._tell_forced(memory, report)
        if changed:
            said = verdict_events(tier.status, memory.written or {}, judgement=judgement)
            ranks = lost_and_back(memory, tier.status, plan.ranks, plan=plan)
            await self._tell(tier, [*ranks, *problems(plan, report), *said])
            await self._tell(tier, newly_found(tier.status, around))
            was = tier.status.get("admission") or {}
            await self._tell(tier, storm_events(tier, was, admission, view=memory.view))
        show(self._metrics, key, memory, tier, ranks=plan.ranks, judgement=judgement, place=place)
        memory.note_waiting(plan.ranks, now=self._clock.monotonic())
        plan = policy.sooner(probed.sooner(plan))
        if recorded:
            purges = await self._purger.work(
                memory, tier, record, states=states, now=self._clock.monotonic()
            )
            plan = sooner(plan, next_look(record, step=step, unfinished=purges.unfinished))
            self._measuring.purged(
                memory, key, tier, record, purges, fences(memory, tier, record, states=states)
            )
        return self._next(memory, plan, report)

    def _lack_pods(self, memory: TierMemory, states: Sequence[RankState]) -> bool:
        """Whether ranks have been without a pod for longer than making one takes."""
        since, now = memory.waiting_since, self._clock.monotonic()
        waited = since is not None and now - since >= WAITING_POLL[0]
        return waited and any(state.pod is None for state in states)

    def _next(self, memory: TierMemory, plan: Plan, report: Report) -> Result:
        """When to look again. Raises the error that asks for a backoff."""
        if report.retry is not None:
            memory.forget_full_read()
            raise report.retry
        if report.reread is not None:
            memory.forget_full_read()
            memory.rereads += 1
            if memory.rereads > MOST_REREADS:
                raise report.reread
            return Result(requeue_after=REREAD_DELAY)
        memory.rereads = 0
        if plan.waits_for or report.untrusted:
            # The second: perhaps a rank has started with what is in it by now.
            memory.tls_secret = None
        if plan.conflicts or plan.leftovers or report.taken:
            # What others do to their objects sends no event.
            memory.forget_full_read()
        return self._later(memory, plan.requeue_after or (1.0 if report.taken else None))

    async def _write_status(
        self,
        memory: TierMemory,
        observed: Observed,
        plan: Plan,
        report: Report,
        judgement: Judgement,
        admission: Object,
    ) -> bool:
        status = project(
            observed,
            plan=plan,
            outcome=outcome(report),
            judgement=judgement,
            admission=admission,
            view=memory.view,
            now=self._now(),
        )
        assert memory.body is not None
        try:
            return await self._statuses.apply(memory, memory.body, status)
        except Conflict as error:
            report.reread = report.reread or error
            return False

    async def _refuse(
        self,
        memory: TierMemory,
        reason: str,
        message: str,
        *,
        ranks: Sequence[RankState] | None = None,
    ) -> Result:
        """Say that the spec is not accepted; nothing that runs is touched."""
        body = memory.body
        assert body is not None
        await self._gateway.withdraw(memory, body)
        report, wait, before = Report(), None, body.get("status") or {}
        if ranks is not None:
            namespace, now = body["metadata"]["namespace"], self._clock.now()
            await self._observer.read_nodes(memory, ranks, now=now)
            # Healing what runs needs no spec.
            lost = lost_pods(ranks, nodes=memory.nodes, now=now)
            await self._executor.free(lost, namespace=namespace, report=report)
            wait = look_again(ranks, nodes=memory.nodes, now=now)
            show_ranks(self._metrics, (namespace, body["metadata"]["name"]), ranks)
            memory.note_waiting(ranks, now=self._clock.monotonic())
        status = refused(
            body, reason=reason, message=message, now=self._now(), ranks=ranks, nodes=memory.nodes
        )
        if await self._statuses.apply(memory, body, status):
            told = [EventSpec(type=EventType.WARNING, reason=reason, message=message)]
            for event in [*told, *lost_and_back(memory, before, ranks or ())]:
                await self._recorder.record(body, event)
        await self._tell_forced(memory, report)
        result = self._later(memory, wait)
        # Events that come until the spec is accepted are not looked into.
        memory.forget_full_read()
        if report.retry is not None:
            raise report.retry
        return result

    async def _tell_forced(self, memory: TierMemory, report: Report) -> None:
        """Count and tell the pods that were deleted by force."""
        assert memory.body is not None
        metadata = memory.body["metadata"]
        for deletion in report.forced:
            self._metrics.count_forced_deletion(metadata["namespace"], metadata["name"])
            event = EventSpec(EventType.WARNING, reasons.NODE_LOST, deletion.why)
            await self._recorder.record(memory.body, event)

    async def _tell(self, tier: KVCacheTier, events: Iterable[EventSpec]) -> None:
        """Events for what a person would want to find afterwards."""
        for event in events:
            await self._recorder.record(subject(tier), event)

    def _later(self, memory: TierMemory, requeue_after: float | None = None) -> Result:
        """The resync, spread so that tiers do not meet, or what comes before it."""
        now = self._clock.monotonic()
        spread = EARLIEST_RESYNC + 2 * (1 - EARLIEST_RESYNC) * self._jitter()
        read_at = memory.full_at if math.isfinite(memory.full_at) else now
        waits = [max(read_at + spread * self._settings.resync - now, REREAD_DELAY)]
        if requeue_after is not None:
            waits.append(requeue_after)
        if memory.waiting_since is not None:
            least, most = WAITING_POLL
            waits.append(min(max((now - memory.waiting_since) / 2, least), most))
        return Result(requeue_after=min(waits))

    def _now(self) -> str:
        return self._clock.now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
