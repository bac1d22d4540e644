"""What is measured, and how measures of several engines become one."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from kvtier.store.failure import Kind

Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Outage:
    """From a rank's first failed request to its first good one, in seconds since the epoch.

    ``end`` is None while it lasts. ``reason`` is what the first failure said.
    """

    rank: int
    kind: Kind
    reason: str
    begin: float
    end: float | None = None


@dataclass(slots=True)
class RankMeasures:
    """One rank, in bytes and seconds, as one engine saw it.

    An error is a look-up, fetch or store that the rank did not do; a stall is a request's
    wait for the rank of more than ``STALL_SECONDS``, in silence or in vain.
    """

    rank: int
    bytes_read: int = 0
    bytes_written: int = 0
    errors: int = 0
    stalls: int = 0
    stall_seconds: float = 0.0
    longest_stall: float = 0.0
    corrupt: int = 0
    foreign: int = 0
    stale: int = 0
    answered: bool = False


@dataclass(frozen=True, slots=True)
class HitTimes:
    """What a hit took an engine that had nothing else to do, and what its tokens would have taken.

    ``fetch`` is look-up, fetch and T0, ``recompute`` the hit's tokens at the engine's rate; both in
    seconds.
    """

    fetch: float
    recompute: float


@dataclass(frozen=True, slots=True)
class Completed:
    """A request that got its first token. ``at`` is in seconds since the epoch."""

    at: float
    ttft: float
    tokens: int
    hit_tokens: int
    hit: HitTimes | None = None


STALL_SECONDS = 0.1


def percentile(values: Sequence[float], share: float) -> float | None:
    """The nearest-rank percentile: the least value that ``share`` of all do not exceed.

    Always one of ``values``, and None if there are none. Raises ValueError unless 0 < share <= 1.
    """
    if not 0 < share <= 1:
        raise ValueError(f"share must be above 0 and at most 1, not {share}")
    if not values:
        return None
    # What floats make of 0.99 x 100 must not be a place higher.
    place = math.ceil(round(share * len(values), 9))
    return sorted(values)[place - 1]


def covered(spans: Iterable[Span]) -> float:
    """Seconds that the union of ``spans`` covers."""
    total, reached = 0.0, -math.inf
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


class Cover:
    """``covered`` of spans that come by and by, without keeping them all."""

    def __init__(self) -> None:
        self._total = 0.0
        self._settled = -math.inf
        self._open: list[Span] = []

    def add(self, spans: Iterable[Span]) -> None:
        self._open += spans

    def settle(self, moment: float) -> None:
        """Nothing that comes later reaches back before ``moment``."""
        before = [(begin, min(end, moment)) for begin, end in self._open if begin < moment]
        self._total += covered((max(begin, self._settled), end) for begin, end in before)
        self._open = [(max(begin, moment), end) for begin, end in self._open if end > moment]
        self._settled = moment

    def seconds(self) -> float:
        return self._total + covered(self._open)


def merge_ranks(engines: Sequence[Sequence[RankMeasures]]) -> list[RankMeasures]:
    """Each rank as all engines saw it. Every engine has the same ranks in the same order."""
    return [
        RankMeasures(
            rank=seen[0].rank,
            bytes_read=sum(each.bytes_read for each in seen),
            bytes_written=sum(each.bytes_written for each in seen),
            errors=sum(each.errors for each in seen),
            stalls=sum(each.stalls for each in seen),
            stall_seconds=sum(each.stall_seconds for each in seen),
            longest_stall=max(each.longest_stall for each in seen),
            corrupt=sum(each.corrupt for each in seen),
            foreign=sum(each.foreign for each in seen),
            stale=sum(each.stale for each in seen),
            answered=any(each.answered for each in seen),
        )
        for seen in zip(*engines, strict=True)
    ]


def merge_outages(outages: Iterable[Outage]) -> list[Outage]:
    """Outages of one rank that overlap are one, named after the first; in the order they began."""
    merged: list[Outage] = []
    last: dict[int, int] = {}
    for outage in sorted(outages, key=lambda each: each.begin):
        place = last.get(outage.rank)
        before = None if place is None else merged[place]
        if place is None or before is None or _ended(before, outage.begin):
            last[outage.rank] = len(merged)
            merged.append(outage)
        elif before.end is not None:
            end = None if outage.end is None else max(before.end, outage.end)
            merged[place] = replace(before, end=end)
    return merged


def _ended(outage: Outage, moment: float) -> bool:
    return outage.end is not None and outage.end < moment
