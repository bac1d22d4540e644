"""Pure: from readings of engines to bounds of the prefill rate of one engine.

R is tokens that were prefilled over the seconds in which an engine had a prompt to work on. No
engine counts those seconds. What vLLM counts is each request's own time, and requests that share
steps share time: the sum is too long. What a clock counts is all the time, idle or not: too long
too. So

    R >= computed / request seconds,  R >= computed / wall seconds

and the greater of the two is what R is **at least**. Let L be request seconds / wall seconds, the
requests in prefill at a time on average, and rho the share of time with any. Served one by one
rho = L; sharing the processor, arriving at random, rho = L / (1 + L) (M/G/1-PS, insensitive to the
lengths: L. Kleinrock, "Queueing Systems", volume 2, 1976, chapter 4). Then

    R <= computed / request seconds + computed / wall seconds

and that is what R is **at most**, where requests really do come one by one: bursts that are
prefilled in one step would make it too low, and so would time in which a hit is waited for, or in
which others decode.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kvtier.engines.exposition import Counters, Kind

WINDOW: Final = 1800.0
"""Seconds of readings that count together: what came before may have been another load."""
LEAST_REQUESTS: Final = 50
"""Rates of single requests differ by half; of so many the mean is known to 7 %."""
LEAST_BUSY: Final = 10.0
"""Seconds of prefill: a hundred steps and more, so that the first and the last do not count."""
SHORTEST: Final = 1024
"""Mean tokens of a prompt below which a step's fixed cost counts, and no tier would fetch."""
MOST_HITS: Final = 0.1
"""Share of hits above which prefill seconds are not only prefill: a connector may load in them, and
what is left of a prompt comes after a long prefix."""
LEAST_ENDS: Final = 0.8
"""Steps that end prefills, for each prefill, below which requests share steps."""
MOST_GENERATED: Final = 2.0
"""Tokens for each request above which an engine decodes as well."""
MOST_RATE: Final = 1e9
"""Tokens/s that no engine has: whoever says more has made it up."""


@dataclass(frozen=True, slots=True)
class Work:
    """What engines did between two readings. ``wall`` is seconds of one engine, summed."""

    kind: Kind
    wall: float
    requests: float
    prompt: float
    hits: float
    computed: float
    busy: float | None
    ends: float
    generated: float


@dataclass(frozen=True, slots=True)
class Bounds:
    """R of one engine [tokens/s] for prompts of ``prompt_tokens`` on average; ``at_most`` is None
    where nothing bounds it."""

    at_least: float
    at_most: float | None
    prompt_tokens: float


def between(before: Counters, after: Counters, *, seconds: float) -> Work | None:
    """What a pod did in ``seconds`` between two readings; None if it was started in between."""
    if (before.kind, before.series, before.started) != (after.kind, after.series, after.started):
        return None
    fields = ("requests", "prompt", "hits", "computed", "ends", "generated")
    more = {name: getattr(after, name) - getattr(before, name) for name in fields}
    # ``hits`` and ``generated`` are differences of counters: only what is counted never shrinks.
    shrunk = min(more[name] for name in ("requests", "prompt", "computed", "ends"))
    busy = None
    if before.busy is not None and after.busy is not None:
        busy = after.busy - before.busy
        shrunk = min(shrunk, busy)
    if shrunk < 0 or seconds <= 0:
        return None
    more["hits"], more["generated"] = max(0.0, more["hits"]), max(0.0, more["generated"])
    return Work(kind=after.kind, wall=seconds * after.series, busy=busy, **more)


def together(work: Iterable[Work]) -> Work | None:
    """All of it, by tokens; None for nothing, or for engines of two kinds."""
    parts = list(work)
    if len({part.kind for part in parts}) != 1:
        return None
    fields = ("wall", "requests", "prompt", "hits", "computed", "ends", "generated")
    sums = {name: math.fsum(getattr(part, name) for part in parts) for name in fields}
    busy = [part.busy for part in parts if part.busy is not None]
    whole = math.fsum(busy) if len(busy) == len(parts) else None
    return Work(kind=parts[0].kind, busy=whole, **sums)


def bounds(work: Work) -> Bounds | None:
    """What the work bounds R to, None if it is too little to say."""
    found = _bounds(work)
    return found if found is not None and found.at_least <= MOST_RATE else None


def _bounds(work: Work) -> Bounds | None:
    if work.requests < LEAST_REQUESTS or work.prompt < SHORTEST * work.requests:
        return None
    if work.computed <= 0 or work.wall < LEAST_BUSY:
        return None
    by_clock, mean = work.computed / work.wall, work.prompt / work.requests
    if work.busy is None:
        return Bounds(at_least=by_clock, at_most=None, prompt_tokens=mean)
    if work.busy < LEAST_BUSY:
        return None
    by_request = work.computed / work.busy
    few_hits = work.hits <= MOST_HITS * (work.hits + work.computed)
    if work.kind is Kind.SGLANG:
        # The GPU's own seconds: nothing overlaps in them.
        at_most = by_request if few_hits else None
        return Bounds(at_least=by_request, at_most=at_most, prompt_tokens=mean)
    one_by_one = work.ends >= LEAST_ENDS * work.requests
    only_prefill = work.generated <= MOST_GENERATED * work.requests
    known = few_hits and one_by_one and only_prefill
    return Bounds(
        at_least=max(by_request, by_clock),
        at_most=by_request + by_clock if known else None,
        prompt_tokens=mean,
    )
