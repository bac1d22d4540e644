"""Looks at every tier's admission every few seconds, beside all reconciles: what limiters say, or
without any the operator's own machine, fed with what the reconciler and the engines have told.

It asks the API server for nothing and writes nothing: a tier whose status would say something new
is reconciled.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC
from typing import Any, Final

from kvtier.admission.signals import RankSignal, Signals
from kvtier.admission.storm import Cause, State, Storm, advance, limit
from kvtier.api.load import InvalidTier, parse_tier
from kvtier.api.reasons import ADMISSION_ENFORCED, WARM
from kvtier.api.types import KVCacheTier
from kvtier.metrics import Metrics
from kvtier.plan.admission import (
    View,
    admission_status,
    hits_before,
    peak_before,
    planned_before,
    sizes,
)
from kvtier.plan.admission_told import admission_enforced, warm
from kvtier.plan.limiters import Limiters, TierTold, together
from kvtier.plan.probing import seconds_of
from kvtier.reconcile.clock import Clock
from kvtier.reconcile.memory import Key, Memory, TierMemory

log = logging.getLogger(__name__)

INTERVAL: Final = 5.0
PEAK_SECONDS: Final = 3600.0
"""Time constant with which the peak of what came in is forgotten."""
ASSUMED_KEYS: Final = 1000
"""What a rank is taken to hold: the operator does not ask, and to the machine a rank that holds
nothing is no loss."""
SILENT: Final = 600.0
"""Seconds after which engines that have told nothing tell of no hits."""
LATELY: Final = 600.0
"""Time constant of the share of hits that the status goes by."""


@dataclass(slots=True)
class _Tier:
    """One tier between two looks. ``hit`` and ``peak`` are smoothed, ``told`` is when
    engines last told of hits; times are monotonic."""

    memory: TierMemory
    storm: Storm
    looked: float
    tier: KVCacheTier | None = None
    parsed: object = None
    ranks: dict[int, RankSignal] = field(default_factory=dict)
    hit: float | None = None
    told: float = -math.inf
    peak: float | None = None


class AdmissionWatcher:
    """``read`` asks the limiters, None where there are none; ``changed`` is told of a tier to look
    at again."""

    def __init__(
        self,
        *,
        memory: Memory,
        read: Callable[[], Awaitable[Limiters]] | None,
        changed: Callable[[Key], None],
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._memory = memory
        self._read = read
        self._changed = changed
        self._clock = clock
        self._metrics = metrics
        self._tiers: dict[Key, _Tier] = {}
        memory.limiters = Limiters(told=read is not None)

    async def run(self, stop: asyncio.Event) -> None:
        """Look after look until ``stop`` is set."""
        while not await self._clock.wait(stop, INTERVAL):
            try:
                await self.look()
            except Exception:
                # Nobody waits for this task, so nobody would hear of its end.
                log.exception("no look at admission")

    async def ask(self) -> Limiters:
        """What limiters say now; the memory knows it then."""
        if self._read is not None:
            self._memory.limiters = (await self._read()).after(self._memory.limiters)
        return self._memory.limiters

    async def look(self) -> None:
        limiters = await self.ask()
        known = self._memory.keys()
        self._tiers = {key: tier for key, tier in self._tiers.items() if key in known}
        for key in known:
            try:
                self._look(key, limiters)
            except Exception:
                log.exception("%s/%s: no look at its admission", *key)

    def _look(self, key: Key, limiters: Limiters) -> None:
        memory, now = self._memory.find(key), self._clock.monotonic()
        if memory is None or memory.body is None:
            return
        known = self._tiers.get(key)
        if known is None or known.memory is not memory:
            begun = _begun(memory, now=now, wall=self._clock.now().timestamp())
            known = _Tier(memory, begun, looked=now)
            known.hit, known.told = hits_before(memory.body.get("status") or {}), now
            self._tiers[key] = known
        tier = _parsed(known)
        if tier is None:
            return
        view = replace(
            self._follow(known, tier, limiters.of(key), now=now),
            enforcement=replace(limiters.enforcement(key), policy=memory.gateway.told),
        )
        known.looked = now
        memory.view = view
        engines = sum(engine.ready for engine in memory.engines.values())
        shown = admission_status(
            tier,
            engines=engines,
            seen=memory.seen,
            view=view,
            planned=planned_before(tier.status),
            now=self._clock.now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        )
        self._metrics.admission.show(
            *key, admission=shown, view=view, enforces=tier.spec.admission.enforces
        )
        wanted = _told(tier, shown, view=view)
        if memory.admission_told is None:
            memory.admission_told = _in_status(tier)
        if wanted != memory.admission_told and memory.ranks:
            memory.admission_told = wanted
            self._changed(key)

    def _follow(self, known: _Tier, tier: KVCacheTier, told: list[TierTold], *, now: float) -> View:
        """What limiters say; else what the operator's own machine makes of what it knows."""
        memory, step = known.memory, max(0.0, now - known.looked)
        tokens, memory.tokens = memory.tokens, None
        if tokens is not None:
            known.told = now
        elif now - known.told > SILENT:
            known.hit = None
        if tokens is not None and tokens.prompt > 0:
            share = min(1.0, tokens.hit / tokens.prompt)
            known.hit = _smooth(known.hit, share, step=tokens.seconds, constant=LATELY)
        signals = Signals(
            ranks=self._ranks(known, now=now),
            engines=sum(engine.ready for engine in memory.engines.values()),
            engines_at=now,
            tokens=tokens,
            counts_tokens=known.hit is not None,
            planned=planned_before(tier.status),
        )
        size = sizes(tier.spec, seen=memory.seen)
        known.storm = advance(known.storm, now=now, signals=signals, sizes=size)
        view = together(told)
        if view is None:
            allowed = limit(known.storm, now=now, signals=signals, sizes=size)
            cause = known.storm.cause
            view = View(
                state=known.storm.state,
                cause=cause.value if cause and known.storm.state is not State.OPEN else None,
                offered=known.storm.offered,
                limit=allowed.tokens_per_second,
            )
        if view.offered is not None:
            before = peak_before(tier, size) if known.peak is None else known.peak
            known.peak = max(before * math.exp(-step / PEAK_SECONDS), view.offered)
        hit = known.hit if known.hit is not None else view.hit
        return replace(view, hit=hit, peak=known.peak)

    def _ranks(self, known: _Tier, *, now: float) -> tuple[RankSignal, ...]:
        """The ranks as the reconciler saw them last. Run and readiness only: what they hold, it
        does not ask."""
        for state in known.memory.ranks:
            before = known.ranks.get(state.rank)
            if state.ready and state.pod_uid:
                run = f"{state.pod_uid}/{state.container}"
                signal = RankSignal(
                    state.rank, asked=now, answers=True, at=now, run_id=run, keys=ASSUMED_KEYS
                )
            else:
                signal = RankSignal(
                    state.rank,
                    asked=now,
                    answers=False,
                    at=before.at if before else None,
                    run_id=before.run_id if before else "",
                    keys=before.keys if before else 0,
                )
            known.ranks[state.rank] = signal
        return tuple(known.ranks[rank] for rank in sorted(known.ranks))


def _told(tier: KVCacheTier, shown: Mapping[str, Any], *, view: View) -> object:
    """What the status is to say, without since when."""
    said = [warm(tier, shown, view=view), admission_enforced(tier, view=view)]
    reasons = [(each.type, each.reason, each.message) for each in said]
    return {**shown, "since": None}, reasons


def _in_status(tier: KVCacheTier) -> object:
    """The same, of what it says."""
    found = [
        (each["type"], each["reason"], each["message"])
        for each in tier.status.get("conditions", ())
        if each["type"] in (WARM, ADMISSION_ENFORCED)
    ]
    return {**(tier.status.get("admission") or {}), "since": None}, found


def _smooth(before: float | None, value: float, *, step: float, constant: float) -> float:
    if before is None:
        return value
    return before + (value - before) * -math.expm1(-step / constant)


def _parsed(known: _Tier) -> KVCacheTier | None:
    """The tier; parsed anew only if it is another one. None if it is refused."""
    body = known.memory.body
    assert body is not None
    now = (body["metadata"].get("generation"), body.get("status"))
    if known.parsed != now:
        try:
            known.tier = parse_tier(body)
        except InvalidTier:
            known.tier = None
        known.parsed = now
    return known.tier


def _begun(memory: TierMemory, *, now: float, wall: float) -> Storm:
    """A machine that goes on from what the status says: a new process has seen nothing yet."""
    assert memory.body is not None
    kept = (memory.body.get("status") or {}).get("admission") or {}
    state, cause = kept.get("state"), kept.get("reason")
    if state not in set(State) or state == State.OPEN:
        return Storm()
    ago = max(0.0, wall - seconds_of(kept.get("since")))
    return Storm(
        state=State(state),
        cause=Cause(cause) if cause in set(Cause) else None,
        since=now - ago,
        struck=now - ago,
        looked=now,
    )
