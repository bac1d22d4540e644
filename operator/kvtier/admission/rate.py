"""R as engines show it in a storm, where it is not as declared.

While requests wait in every engine, what they computed over wall time *is* R: half an hour of
samples, as ``kvtier.engines.rates`` asks for, is too long for a storm. Seconds that requests spent
in prefill are too many if anything, so tokens over them are what R is at least; tokens over wall
time are that too.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

from kvtier.admission.signals import Sizes, TokenSignal

LEAST_PROMPTS: Final = 8.0
"""Prompts of mean length that a sample of R needs, and of each engine ``LEAST_EACH``. Counters tick
when a prefill ends, so that each engine's last prompt is in it or not: an error of 5 %."""
LEAST_EACH: Final = 3.0
LEAST_SECONDS: Final = 4.0
PROVEN_PROMPTS: Final = 30.0
"""Prompts before anything may raise R above the declared rate."""
MOST_HITS: Final = 0.25
"""Share of hits above which a busy GPU may be loading rather than computing."""
KEPT: Final = 900.0
"""Seconds for which a sample counts."""
MOST_FACTOR: Final = 10.0
"""How far R may be from the declared one; beyond it the counters are wrong."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Tokens computed, and how long it took: ``seconds`` of one engine, summed, ``busy`` of one
    request, summed (0 where nothing tells), ``wall`` by the clock."""

    computed: float = 0.0
    seconds: float = 0.0
    busy: float = 0.0
    wall: float = 0.0

    def plus(self, tokens: TokenSignal) -> "Sample":
        return Sample(
            computed=self.computed + tokens.computed,
            seconds=self.seconds + tokens.engines * tokens.seconds,
            busy=self.busy + (tokens.busy or 0.0),
            wall=self.wall + tokens.seconds,
        )


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of R [tokens/s]: ``full`` the most that full engines did of late, ``at_least``
    what it is surely. The rest are samples that are not yet large enough."""

    full: float | None = None
    full_at: float = 0.0
    at_least: float | None = None
    at_least_at: float = 0.0
    waiting: float | None = None
    filling: Sample = Sample()
    busy: Sample = Sample()
    clock: Sample = Sample()


def observe(seen: Seen, tokens: TokenSignal, *, now: float, mean_prompt: float) -> Seen:
    """Add what engines counted since the last look."""
    if tokens.engines < 1 or tokens.seconds <= 0 or tokens.computed < 0:
        return seen
    few_hits = tokens.hit <= MOST_HITS * tokens.prompt
    full = _all_wait(seen.waiting, tokens) and _all_wait(tokens.waiting, tokens) and few_hits
    seen = replace(
        seen,
        waiting=tokens.waiting,
        filling=seen.filling.plus(tokens) if full else Sample(),
        clock=seen.clock.plus(tokens),
        busy=seen.busy if tokens.busy is None else seen.busy.plus(tokens),
    )
    seen = _take_full(seen, now=now, mean_prompt=mean_prompt)
    return _take_at_least(seen, now=now, mean_prompt=mean_prompt)


def engine_rate(seen: Seen, sizes: Sizes, *, now: float) -> float:
    """R of one engine [tokens/s]: as declared, corrected by what engines show.

    The smaller of declared and shown, unless busy seconds prove that it is more.
    """
    rate = sizes.engine_rate
    if seen.full is not None and now - seen.full_at <= KEPT:
        rate = min(rate, seen.full)
    if seen.at_least is not None and now - seen.at_least_at <= KEPT:
        rate = max(rate, seen.at_least)
    return min(max(rate, sizes.engine_rate / MOST_FACTOR), sizes.engine_rate * MOST_FACTOR)


def _all_wait(waiting: float | None, tokens: TokenSignal) -> bool:
    """Whether so many wait that every engine has something to do.

    Requests that are spread by chance leave engines idle that others' queues know nothing of. Where
    engines tell their busy seconds, these are left out anyway.
    """
    each = 2 if tokens.busy is None else 1
    return waiting is not None and waiting >= each * tokens.engines


def _take_full(seen: Seen, *, now: float, mean_prompt: float) -> Seen:
    sample = seen.filling
    least = max(LEAST_PROMPTS, LEAST_EACH * sample.seconds / max(sample.wall, 1e-9))
    if sample.computed < least * mean_prompt or sample.wall < LEAST_SECONDS:
        return seen
    rate = sample.computed / sample.seconds
    if sample.busy:
        rate = max(rate, sample.computed / sample.busy)
    seen = replace(seen, filling=Sample())
    if seen.full is not None and now - seen.full_at <= KEPT and rate < seen.full:
        # An engine that hangs with a queue makes the others look slow, and a limit that followed it
        # would make them slower still: what they did once they can do.
        return seen
    return replace(seen, full=rate, full_at=now)


def _take_at_least(seen: Seen, *, now: float, mean_prompt: float) -> Seen:
    least = PROVEN_PROMPTS * mean_prompt
    found: list[float] = []
    if seen.busy.computed >= least and seen.busy.busy > 0:
        found.append(seen.busy.computed / seen.busy.busy)
        seen = replace(seen, busy=Sample())
    if seen.clock.computed >= least:
        # The number of prompts that end in a time is as sure as its root.
        prompts = seen.clock.computed / mean_prompt
        sure = max(0.0, 1 - 2 / math.sqrt(prompts))
        found.append(sure * seen.clock.computed / seen.clock.seconds)
        seen = replace(seen, clock=Sample())
    if not found:
        return seen
    rate = max(found)
    old = seen.at_least if now - seen.at_least_at <= KEPT else None
    if old is not None and rate < old:
        return seen
    return replace(seen, at_least=rate, at_least_at=now)
