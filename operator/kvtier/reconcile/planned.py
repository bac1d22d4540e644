"""Planned work of the tiers of one process, and their admission as a reconcile sees it."""

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC
from typing import Any, Final

from kvtier.admission.storm import Cause, State
from kvtier.api.types import KVCacheTier
from kvtier.placement.findings import Finding
from kvtier.plan.admission import admission_status, planned_before
from kvtier.plan.admission_told import undersized
from kvtier.plan.limiters import Limiters
from kvtier.plan.observed import Plan, RankState
from kvtier.plan.planned import (
    TURN_LOOK,
    TURN_SECONDS,
    Case,
    OtherWork,
    announces,
    asked,
    asked_in,
    gated,
    turn_before,
)
from kvtier.plan.probing import seconds_of
from kvtier.reconcile.clock import Clock
from kvtier.reconcile.memory import Key, Memory, TierMemory

ReadLimiters = Callable[[], Awaitable[Limiters]]
NO_TRAFFIC: Final = 1.0
"""Prompt tokens/s below which nobody uses a tier."""


class PlannedWork:
    """``read`` asks the limiters, None where there are none."""

    def __init__(self, *, memory: Memory, read: ReadLimiters | None, clock: Clock) -> None:
        self._memory = memory
        self._read = read
        self._clock = clock
        self._began = math.inf

    def to_restart(
        self, memory: TierMemory, tier: KVCacheTier, states: Sequence[RankState]
    ) -> frozenset[str]:
        """The uids of ranks' pods that somebody asked to restart."""
        memory.planned.asked = asked(
            tier, states, now=self._clock.now(), before=memory.planned.asked
        )
        return memory.planned.asked.pods if memory.planned.asked else frozenset()

    def admission(self, memory: TierMemory, tier: KVCacheTier, *, planned: bool) -> dict[str, Any]:
        """What ``status.admission`` is to say."""
        return admission_status(
            tier,
            engines=_ready(memory),
            seen=memory.seen,
            view=memory.view,
            planned=planned,
            now=self._clock.now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        )

    def findings(self, memory: TierMemory, tier: KVCacheTier) -> tuple[Finding, ...]:
        figures = self.admission(memory, tier, planned=planned_before(tier.status))
        return undersized(tier, figures, engines=_ready(memory))

    async def gate(
        self, key: Key, memory: TierMemory, tier: KVCacheTier, plan: Plan
    ) -> tuple[Plan, bool]:
        """The plan with its restarts, or without until they may come; and whether planned work of
        this tier is announced or under way, which the status then says."""
        # A process may wait for hours before it leads.
        self._began = min(self._began, self._clock.monotonic())
        was, engines = planned_before(tier.status), _ready(memory)
        self._restore(memory, tier, plan)
        memory.ranks = plan.ranks
        wait = asked_in(tier, now=self._clock.now())
        if wait is not None:
            plan = replace(plan, requeue_after=min(filter(None, (plan.requeue_after, wait))))
        planned = was and (not _all_ready(plan) or bool(plan.outdated and not tier.spec.paused))
        if plan.restarts:
            case = await self._case(key, memory, tier, engines=engines)
            plan = gated(plan, case)
            planned = announces(plan, case) or bool(plan.restarts and (engines or was))
        if planned and memory.view is not None:
            # Until somebody looks again, what was seen before says nothing of after.
            memory.view = replace(memory.view, state=State.STORM, cause=Cause.PLANNED.value)
        now = self._clock.monotonic()
        if planned and memory.planned.announced is None:
            # Before the status says so: another tier that is looked at meanwhile waits.
            memory.planned.announced = now
        going = frozenset(each.uid for each in plan.restarts)
        if engines and not going <= memory.planned.gone:
            memory.planned.rolled, memory.planned.gone = now, going
        if not planned:
            memory.planned.announced = None
            if (tier.status.get("admission") or {}).get("state") == State.OPEN:
                memory.planned.rolled = None
        return plan, planned

    async def _case(self, key: Key, memory: TierMemory, tier: KVCacheTier, *, engines: int) -> Case:
        limiters = Limiters()
        if tier.spec.admission.enforces and self._read is not None:
            limiters = await self._read()
        # Nothing is waited for from here to where the announcement is taken down.
        announced, since = memory.planned.announced, None
        if planned_before(tier.status):
            since = (str(tier.status["admission"].get("since", "")), key)
        waited = None
        if since is not None and announced is not None:
            waited = self._clock.monotonic() - announced
        return Case(
            engines=engines,
            enforces=tier.spec.admission.enforces,
            limiters=len(limiters.replicas),
            before=turn_before(since, self._others(key)),
            settled=since is not None or self._clock.monotonic() - self._began >= TURN_LOOK,
            waited=waited,
            lacking=limiters.without_plan(key),
        )

    def _others(self, key: Key) -> dict[Key, OtherWork]:
        """The planned work of other tiers that is not over, by tier."""
        known, found = self._memory.keys(), {}
        for other in known:
            memory = self._memory.find(other)
            work = None if other == key or memory is None else self._work(memory)
            if work is not None:
                found[other] = work
        return found

    def _work(self, memory: TierMemory) -> OtherWork | None:
        began = memory.planned.rolled or memory.planned.announced
        if began is None or memory.body is None or not _ready(memory):
            return None
        if self._clock.monotonic() - began > TURN_SECONDS:
            return None
        offered = memory.view.offered if memory.view else None
        if offered is not None and offered < NO_TRAFFIC:
            return None
        kept = (memory.body.get("status") or {}).get("admission") or {}
        return OtherWork(since=str(kept.get("since", "")), rolled=memory.planned.rolled is not None)

    def _restore(self, memory: TierMemory, tier: KVCacheTier, plan: Plan) -> None:
        """Take up what the process before this one had begun."""
        kept = tier.status.get("admission") or {}
        if memory.ranks or kept.get("state", State.OPEN) == State.OPEN:
            return
        ago = max(0.0, self._clock.now().timestamp() - seconds_of(kept.get("since")))
        began = self._clock.monotonic() - ago
        if kept.get("reason") == Cause.PLANNED:
            memory.planned.announced = began
            memory.planned.rolled = None if plan.restarts else began
        elif kept.get("reason") == Cause.RANK_RESTARTED:
            memory.planned.rolled = began


def _ready(memory: TierMemory) -> int:
    return sum(engine.ready for engine in memory.engines.values())


def _all_ready(plan: Plan) -> bool:
    return all(state.ready for state in plan.ranks)
