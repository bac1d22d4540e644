"""Pure: from readings of a tier's engines to what the storm machine is told of tokens.

It also sees what an engine really prefills: an engine that has prompts waiting for its GPU at both
ends of an interval computes all the time in between, so that computed tokens / wall seconds is R.
"""

import math
import statistics
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from kvtier.admission.signals import TokenSignal
from kvtier.engines.hits import TokenCounters, TokenWork, tokens_between

TELLS: Final = 60.0
"""Seconds after its last reading for which a pool counts as one that tells hits."""
BUSY_WINDOW: Final = 120.0
"""Seconds of readings that count together for R."""
LEAST_BUSY: Final = 20.0
"""Seconds of one engine: what it computes is counted prompt by prompt, when each ends."""
LEAST_PROMPTS: Final = 8.0
"""In these seconds: the one at either end that counts too much or too little is an eighth."""
DISAGREES: Final = 0.25
"""Share by which a rate that was seen must differ from the declared one to count."""
MOST_UNEVEN: Final = 2.0
"""How many times what waits in the middle engine counts of any: what waits for an engine that hangs
is no queue that letting fewer in would shorten, and the others are idle meanwhile."""


@dataclass(frozen=True, slots=True)
class Reading:
    """``at`` is seconds of whatever clock the source has: only differences count."""

    counters: TokenCounters
    at: float


@dataclass(frozen=True, slots=True)
class _Busy:
    at: float
    seconds: float
    computed: float
    requests: float


@dataclass(slots=True)
class _Engine:
    reading: Reading
    busy: list[_Busy] = field(default_factory=list)

    def rate(self) -> float | None:
        seconds = math.fsum(each.seconds for each in self.busy)
        prompts = math.fsum(each.requests for each in self.busy)
        if seconds < LEAST_BUSY or prompts < LEAST_PROMPTS:
            return None
        return math.fsum(each.computed for each in self.busy) / seconds


class PoolTokens:
    """One tier's engines, as their readings come in."""

    def __init__(self) -> None:
        self._engines: dict[str, _Engine] = {}
        self._told_at = -math.inf
        self._pending: TokenSignal | None = None
        self.waiting: float | None = None
        """Requests that wait in all engines, evenly more or less; None where nothing tells."""

    def take(self, readings: Mapping[str, Reading], *, alive: Collection[str], now: float) -> None:
        """Readings of one look by engine, of those that are ``alive``. Who was not asked, or did
        not answer, does as the others do."""
        self._engines = {name: each for name, each in self._engines.items() if name in alive}
        engines = len(alive)
        scale = max(1.0, engines / len(readings)) if readings else 1.0
        work = []
        for name, reading in readings.items():
            done = self._take_one(name, reading)
            if done is not None:
                work.append(done)
        waits = [each.counters.waiting for each in readings.values()]
        told = [each for each in waits if each is not None]
        self.waiting = _queue(told) * scale if told else None
        if any(each.counters.source for each in readings.values()):
            self._told_at = now
        self._pending = _merged(
            self._pending, _signal(work, scale=scale, waiting=self.waiting, engines=engines)
        )

    def fresh(self) -> TokenSignal | None:
        """What has come since the last call, None if nothing has."""
        pending, self._pending = self._pending, None
        return pending

    def tells(self, *, now: float) -> bool:
        """Whether engines tell hits of a tier at all."""
        return now - self._told_at <= TELLS

    def computed_rate(self) -> float | None:
        """R [tokens/s]: the median of engines that were seen busy for long enough."""
        rates = [rate for each in self._engines.values() if (rate := each.rate()) is not None]
        return statistics.median(rates) if rates else None

    def _take_one(self, name: str, reading: Reading) -> TokenWork | None:
        engine = self._engines.get(name)
        if engine is None:
            self._engines[name] = _Engine(reading)
            return None
        seconds = reading.at - engine.reading.at
        if seconds <= 0:
            # The source has nothing newer.
            return None
        done = tokens_between(engine.reading.counters, reading.counters, seconds=seconds)
        engine.reading = reading
        if done is None or not done.busy:
            # What was computed before a pause says nothing of the prompts after it.
            engine.busy.clear()
            return done
        engine.busy.append(_Busy(reading.at, seconds, done.computed, done.requests))
        engine.busy = [each for each in engine.busy if reading.at - each.at < BUSY_WINDOW]
        return done


def believed(declared: float, seen: float | None) -> float:
    """R [tokens/s] to go by: the declared one, or the smaller while the two disagree."""
    if seen is None or abs(seen - declared) <= DISAGREES * declared:
        return declared
    return min(declared, seen)


def _queue(waits: list[float]) -> float:
    """The sum, with what waits in one engine bounded by what waits in the others."""
    most = MOST_UNEVEN * max(1.0, statistics.median_low(waits))
    return math.fsum(min(each, most) for each in waits)


def _signal(
    work: list[TokenWork], *, scale: float, waiting: float | None, engines: int
) -> TokenSignal | None:
    """Only of engines that tell hits, by the metric that most of them tell."""
    sources = [each.source for each in work if each.source]
    if not sources:
        return None
    source = statistics.mode(sources)
    parts = [each for each in work if each.source == source]
    return TokenSignal(
        prompt=math.fsum(each.prompt for each in parts) * scale,
        hit=math.fsum(each.hit for each in parts) * scale,
        computed=math.fsum(each.computed for each in parts) * scale,
        seconds=math.fsum(each.seconds for each in parts) / len(parts),
        engines=min(engines, max(1, round(len(parts) * scale))),
        waiting=waiting,
        source=source,
        busy=_all([each.prefill for each in parts], scale=scale),
    )


def _merged(before: TokenSignal | None, after: TokenSignal | None) -> TokenSignal | None:
    if before is None or after is None or before.source != after.source:
        return after or before
    return replace(
        after,
        prompt=before.prompt + after.prompt,
        hit=before.hit + after.hit,
        computed=before.computed + after.computed,
        seconds=before.seconds + after.seconds,
        busy=_all([before.busy, after.busy]),
    )


def _all(these: list[float | None], *, scale: float = 1.0) -> float | None:
    """The sum, None if one of them is not known."""
    known = [each for each in these if each is not None]
    return math.fsum(known) * scale if len(known) == len(these) else None
