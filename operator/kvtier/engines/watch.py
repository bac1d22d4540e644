"""Looks at engines once a minute, beside all reconciles, and leaves what they show in memory.

It asks the API server for nothing: the engines are those that the reconciler has read.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from kvtier.admission.signals import TokenSignal
from kvtier.api.load import InvalidTier, parse_tier
from kvtier.breakeven.load import prefill_points
from kvtier.breakeven.observed import SeenRate, hold, slowest
from kvtier.breakeven.rates import prefill_rate
from kvtier.engines.endpoint import Endpoint
from kvtier.engines.exposition import Counters, parse
from kvtier.engines.loads import failed_loads, more
from kvtier.engines.rates import WINDOW, Bounds, Work, between, bounds, together
from kvtier.metrics import Metrics
from kvtier.placement.topology import Engine, evenly
from kvtier.reconcile.clock import Clock
from kvtier.reconcile.memory import Key, Memory, TierMemory

log = logging.getLogger(__name__)

INTERVAL: Final = 60.0
"""Seconds from the end of one round to the start of the next, give or take a tenth."""
MOST_ENGINES: Final = 8
"""Engines of one tier that are asked: all of them do the same work."""
MOST_SKIPPED: Final = 15
"""Rounds after which an engine is asked again at the latest that gave no figures."""


@dataclass(slots=True)
class _Reading:
    """The last one of an engine. ``at`` is monotonic; ``skip`` is how many rounds to leave it."""

    endpoint: Endpoint
    counters: Counters | None = None
    at: float = 0.0
    failures: int = 0
    skip: int = 0
    failed: float | None = None
    """Chunks that it could not load, None where it does not tell."""


@dataclass(frozen=True, slots=True)
class _Told:
    """What one text tells: the counters of an engine, chunks that could not be loaded."""

    counters: Counters | None = None
    failed: float | None = None


@dataclass(frozen=True, slots=True)
class _Answer:
    """Whether an engine ``gave`` figures, None if it was not its turn; what it did since the last
    time, and how many chunks it could not load."""

    gave: bool | None = None
    work: Work | None = None
    failed: float | None = None


@dataclass(slots=True)
class _Tier:
    memory: TierMemory
    readings: dict[str, _Reading] = field(default_factory=dict)
    work: list[tuple[float, Work]] = field(default_factory=list)
    looked: float | None = None


class EngineWatcher:
    """``read`` gives an engine's text or None, ``changed`` is told of a tier to look at again, and
    ``apart`` runs a function where it keeps nobody waiting."""

    def __init__(
        self,
        *,
        memory: Memory,
        read: Callable[[Endpoint], Awaitable[str | None]],
        changed: Callable[[Key], None],
        clock: Clock,
        metrics: Metrics,
        jitter: Callable[[], float],
        apart: Callable[[Callable[[str], _Told], str], Awaitable[_Told]] = asyncio.to_thread,
    ) -> None:
        self._memory = memory
        self._read = read
        self._changed = changed
        self._clock = clock
        self._metrics = metrics
        self._jitter = jitter
        self._apart = apart
        self._tiers: dict[Key, _Tier] = {}
        memory.watches_engines = True

    async def run(self, stop: asyncio.Event) -> None:
        """Round after round until ``stop`` is set."""
        while not await self._clock.wait(stop, INTERVAL * (0.9 + 0.2 * self._jitter())):
            await self.look()

    async def look(self) -> None:
        """One round: every tier by itself, so that none waits for another's engines."""
        known = self._memory.keys()
        self._tiers = {key: tier for key, tier in self._tiers.items() if key in known}
        await asyncio.gather(*(self._guarded(key) for key in known))

    async def _guarded(self, key: Key) -> None:
        try:
            await self._look(key)
        except Exception:
            log.exception("%s/%s: no look at its engines", *key)

    async def _look(self, key: Key) -> None:
        memory = self._memory.find(key)
        if memory is None:
            return
        tier = self._tiers.get(key)
        if tier is None or tier.memory is not memory:
            tier = self._tiers[key] = _Tier(memory)
        engines = evenly(
            sorted(
                (each for each in memory.engines.values() if each.metrics is not None),
                key=lambda each: each.name,
            ),
            most=MOST_ENGINES,
        )
        names = {engine.name for engine in engines}
        tier.readings = {name: each for name, each in tier.readings.items() if name in names}
        found = await asyncio.gather(*(self._ask(tier, engine) for engine in engines))
        if self._memory.find(key) is not memory:
            # Deleted meanwhile: no series of it may come back.
            return
        self._count(key, found)
        now = self._clock.monotonic()
        memory.tokens = _tokens(
            [each.work for each in found if each.work is not None],
            seconds=0.0 if tier.looked is None else now - tier.looked,
            ready=sum(each.ready for each in memory.engines.values()),
        )
        tier.looked = now
        tier.work += [(now, each.work) for each in found if each.work is not None]
        tier.work = [(at, work) for at, work in tier.work if now - at <= WINDOW]
        whole = together(work for _, work in tier.work)
        shown = bounds(whole) if whole is not None else None
        if shown is not None:
            self._metrics.engines.set_rate(*key, at_least=shown.at_least, at_most=shown.at_most)
            self._take(key, memory, shown, now=now)

    def _count(self, key: Key, found: Iterable[_Answer]) -> None:
        metrics = self._metrics.engines
        for each in found:
            if each.gave is not None:
                metrics.count_scrape(*key, result="success" if each.gave else "error")
            if each.work is not None:
                prompt, computed = each.work.prompt, each.work.computed
                metrics.count_tokens(*key, prompt=prompt, recomputed=computed)
            if each.failed is not None:
                metrics.count_failed_loads(*key, chunks=each.failed)

    async def _ask(self, tier: _Tier, engine: Engine) -> _Answer:
        assert engine.metrics is not None
        last = tier.readings.get(engine.name)
        if last is None or last.endpoint != engine.metrics:
            last = tier.readings[engine.name] = _Reading(engine.metrics)
        if last.skip:
            last.skip -= 1
            return _Answer()
        text = await self._read(engine.metrics)
        at = self._clock.monotonic()
        # Of many engines at once it takes long enough to keep a Lease from being renewed.
        told = _Told() if text is None else await self._apart(_read, text)
        if told == _Told():
            last.skip = min(2**last.failures, MOST_SKIPPED)
            last.failures += 1
            return _Answer(gave=False)
        before, since, failed = last.counters, last.at, None
        if told.failed is not None:
            failed = more(last.failed, told.failed)
        last.counters, last.at, last.failures, last.failed = told.counters, at, 0, told.failed
        work = None
        if before is not None and told.counters is not None:
            work = between(before, told.counters, seconds=at - since)
        return _Answer(gave=True, work=work, failed=failed)

    def _take(self, key: Key, memory: TierMemory, shown: Bounds, *, now: float) -> None:
        """Hold it against what was known; the tier is looked at again only if that moves."""
        if memory.body is None:
            return
        try:
            spec = parse_tier(memory.body).spec
        except InvalidTier:
            return
        # Of prompts of another length than those for which the least is declared.
        share = slowest(spec) / prefill_rate(prefill_points(spec), shown.prompt_tokens)
        new = SeenRate(
            at_least=shown.at_least * share,
            at_most=None if shown.at_most is None else shown.at_most * share,
            at=now,
        )
        seen = hold(memory.seen, new)
        if seen != memory.seen:
            memory.seen = seen
            self._changed(key)


def _read(text: str) -> _Told:
    return _Told(counters=parse(text), failed=failed_loads(text))


def _tokens(work: list[Work], *, seconds: float, ready: int) -> TokenSignal | None:
    """What all Ready engines did since the last round, by those that told; None if none did.

    Hits are what was not computed: engines' own caches are in it.
    """
    if not work or seconds <= 0:
        return None
    share = max(1.0, ready / len(work))
    return TokenSignal(
        prompt=share * sum(each.prompt for each in work),
        hit=share * sum(max(0.0, each.prompt - each.computed) for each in work),
        computed=share * sum(each.computed for each in work),
        seconds=seconds,
        engines=len(work),
        source="prompt tokens that were not computed",
    )
