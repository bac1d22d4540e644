"""Waiting in front of the GPU and of the link: what a request rate adds to the time of a hit.

Each stage serves one request after another, and requests come at random (a Poisson process). The
mean wait in front of such a stage is the Pollaczek-Khinchine formula of the M/G/1 queue (L.
Kleinrock, "Queueing Systems", volume 1, Wiley 1975, chapter 5):

    W = rate x E[S^2] / (2 (1 - rho)),  rho = rate x E[S]

Stages that follow each other are taken to be independent. The stream that leaves a busy stage is
more even than one that arrives at random, so a second stage waits less than this says.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kvtier.breakeven.checks import not_negative, positive, share

_STEPS = 60


@dataclass(frozen=True, slots=True)
class Service:
    """How long one stage takes for a request: mean [s] and mean of the square [s^2]."""

    mean: float
    square: float

    def utilisation(self, rate: float) -> float:
        """rho: the share of time in which the stage is busy; from 1 on its queue only grows."""
        not_negative(rate=rate)
        return rate * self.mean

    def wait(self, rate: float) -> float:
        """Mean seconds in the queue at ``rate`` requests/s; infinite from rho = 1 on."""
        rho = self.utilisation(rate)
        return rate * self.square / (2 * (1 - rho)) if rho < 1 else math.inf


def service(times: Iterable[float]) -> Service:
    """Of equally likely times [s]. Raises ValueError without any, or for a negative one."""
    known = list(times)
    positive(times=len(known))
    for time in known:
        not_negative(time=time)
    return Service(
        mean=math.fsum(known) / len(known),
        square=math.fsum(time * time for time in known) / len(known),
    )


@dataclass(frozen=True, slots=True)
class Duplex:
    """A link: two stages side by side, since it carries reads one way and writes the other."""

    read: Service
    written: Service

    @property
    def busier(self) -> Service:
        return max(self.read, self.written, key=lambda way: way.mean)

    @property
    def limit(self) -> float:
        """Requests/s from which one way is full."""
        busier = self.busier.mean
        return 1 / busier if busier else math.inf

    def utilisation(self, rate: float) -> float:
        """rho of the busier way."""
        return self.busier.utilisation(rate)


def gpu_seconds(*, hit_rate: float, recompute: float, held: float) -> float:
    """(1 - h) n/R + held: how long a request keeps its engine's GPU busy.

    ``recompute`` is n/R of the whole prompt, ``held`` what a hit holds the GPU for: hitEngineTime
    where loads are asynchronous, the whole fetch where they are not. Raises ValueError for figures
    out of range.
    """
    share(hit_rate=hit_rate)
    not_negative(recompute=recompute, held=held)
    return (1 - hit_rate) * recompute + held


def threshold_rate(
    local: Service,
    *,
    stages: Sequence[Service],
    queues: Sequence[Service] = (),
    bounds: Sequence[Service] = (),
    fixed: float = 0.0,
) -> float | None:
    """Requests/s of one engine from which hits are the faster way: waits counted, on average.

    ``local`` is the prefill of whole prompts. ``stages`` are what a hit passes one after the other,
    ``queues`` where it waits only (its own time there is in ``fixed``), ``fixed`` [s] what it takes
    besides. ``bounds`` are what the request needs too, without waiting for it. 0 when the hit is
    faster at every rate; None when no rate is enough: some stage is at its limit before the prefill
    would be, or one of ``bounds`` before hits are the faster way.

    Exact: the difference of the two times, with every stage's limit above the prefill's, falls
    first if at all, and then rises to infinity. So from its lowest point on it crosses zero at most
    once, and bisection finds both. Raises ValueError for a negative ``fixed``.
    """
    not_negative(fixed=fixed)

    def ahead(rate: float) -> float:
        passed = fixed + math.fsum(stage.mean for stage in stages)
        waited = math.fsum(stage.wait(rate) for stage in (*stages, *queues))
        return local.mean + local.wait(rate) - passed - waited

    def rises(rate: float) -> bool:
        others = math.fsum(stage.square * _slope(stage, rate) for stage in (*stages, *queues))
        return local.square * _slope(local, rate) >= others

    if any(stage.mean >= local.mean for stage in (*stages, *queues)):
        return None
    limit = 1 / local.mean

    def turn(holds: Callable[[float], bool], *, above: float) -> tuple[float, float]:
        """Rates on either side of that from which it holds: as near as floats are, below limit."""
        low, high = above, limit
        for _ in range(_STEPS):
            middle = (low + high) / 2
            if middle * local.mean >= 1 or holds(middle):
                high = middle
            else:
                low = middle
        return low, high

    lowest = 0.0 if rises(0) else turn(rises, above=0.0)[0]
    if ahead(lowest) >= 0:
        return 0.0
    _, high = turn(lambda rate: ahead(rate) > 0, above=lowest)
    full = high >= limit or any(stage.utilisation(high) >= 1 for stage in bounds)
    return None if full else high


def _slope(stage: Service, rate: float) -> float:
    """How fast its wait grows with the rate, in units of half E[S^2]."""
    return (1 - rate * stage.mean) ** -2
