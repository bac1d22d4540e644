"""A storm on paper: Poisson arrivals, engines, a tier that is wiped, and the machine in the loop.

The machine and the bucket are the limiter's own, told what a limiter is told: engines' counters
and its own arrivals once a second, ranks three seconds late. Nothing here reads a clock; chance is
handed in, so that the same seed gives the same curves.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from kvtier.admission.fleet import Chance, Counters, Fleet, Kind, Request
from kvtier.admission.ranks import FEW_KEYS
from kvtier.admission.signals import RankSignal, Signals, Sizes, TokenSignal
from kvtier.admission.storm import Limit, State, Storm, advance, limit
from kvtier.limiter.bucket import Bucket, Queue

LOOK_SECONDS: Final = 1.0
"""The limiter looks that often."""
PING_DELAY: Final = 3.0
"""Seconds after which a limiter knows what became of a rank, at worst."""
_ARRIVAL, _END, _LOOK, _WIPE = range(4)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to simulate. ``kinds`` are equally likely prompts, at the rate that engines really have;
    ``sizes`` what the machine believes. Times in seconds, ``wipe_at`` and ``duration`` from the
    start, with all ``prefixes`` stored then. Without ``admission`` everything is let in."""

    kinds: tuple[Kind, ...]
    sizes: Sizes
    engines: int
    requests_per_second: float
    prefixes: int
    wipe_at: float
    duration: float
    admission: bool = True


@dataclass(frozen=True, slots=True)
class Look:
    """The machine once a second, and what engines did in that second."""

    at: float
    state: State
    limit: float | None
    why: str
    waiting: int
    queue_seconds: float
    prompt: float
    hit: float
    computed: float


@dataclass(slots=True)
class Run:
    """What happened: requests that were let in, those that were not (when, tokens), and looks."""

    admitted: list[Request] = field(default_factory=list)
    shed: list[tuple[float, int]] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)


class _Door:
    """The limiter's rule: a bucket at the limit, and no more than may wait."""

    def __init__(self, sizes: Sizes) -> None:
        self._mean = sizes.mean_prompt
        self._bucket: Bucket | None = None
        self._queue = Queue(drain=1.0, now=0.0)
        self._most: float | None = None

    def change(self, limited: Limit, *, waiting: int, now: float) -> None:
        rate = limited.tokens_per_second
        self._most = limited.max_queued
        if rate is None or rate <= 0:
            self._bucket = None
            return
        if self._bucket is None:
            self._bucket = Bucket(rate=rate, prompt=self._mean, now=now)
        self._bucket.change(rate=rate, prompt=self._mean, now=now)
        self._queue.change(drain=rate, now=now)
        self._queue.correct(seen=waiting * self._mean, now=now)

    def passes(self, tokens: int, now: float) -> bool:
        if self._bucket is None:
            return True
        if not self._bucket.passes(now):
            return False
        if self._most is not None and self._queue.at(now) > self._most:
            return False
        self._bucket.charge(tokens)
        self._queue.tokens += tokens
        return True


class _Simulation:
    def __init__(self, plan: Plan, chance: Chance) -> None:
        self.plan, self.chance = plan, chance
        self.fleet = Fleet(engines=plan.engines)
        self.kinds = [_drawn(plan.kinds, chance) for _ in range(plan.prefixes)]
        self.fleet.stored = {
            number: kind.prefix for number, kind in enumerate(self.kinds) if kind.prefix
        }
        self.events: list[tuple[float, int, int, int]] = []
        self.count = 0
        self.door = _Door(plan.sizes)
        self.storm = Storm()
        self.offered = 0.0
        self.told = Counters()
        self.run = Run()

    def play(self) -> Run:
        self._schedule(self.chance.expovariate(self.plan.requests_per_second), _ARRIVAL)
        self._schedule(self.plan.wipe_at, _WIPE)
        self._schedule(LOOK_SECONDS, _LOOK)
        while self.events:
            now, what, _, engine = heapq.heappop(self.events)
            if what == _ARRIVAL:
                self._arrive(now)
            elif what == _END:
                _, end = self.fleet.end(engine, now)
                if end is not None:
                    self._schedule(end, _END, engine)
            elif what == _LOOK:
                self._look(now)
            else:
                self.fleet.wipe()
        return self.run

    def _schedule(self, at: float, what: int, engine: int = 0) -> None:
        # Arrivals and looks end with the run; what was let in is served to the end.
        if what == _END or at <= self.plan.duration:
            self.count += 1
            heapq.heappush(self.events, (at, what, self.count, engine))

    def _arrive(self, now: float) -> None:
        prefix = int(self.chance.random() * len(self.kinds))
        request = Request(kind=self.kinds[prefix], prefix=prefix, arrived=now)
        self.offered += request.kind.tokens
        if self.door.passes(request.kind.tokens, now):
            self.run.admitted.append(request)
            began = self.fleet.arrive(request, now)
            if began is not None:
                engine, end = began
                self._schedule(end, _END, engine)
        else:
            self.run.shed.append((now, request.kind.tokens))
        self._schedule(now + self.chance.expovariate(self.plan.requests_per_second), _ARRIVAL)

    def _look(self, now: float) -> None:
        plan, counted = self.plan, self.fleet.counters
        new = counted.since(self.told)
        self.told = Counters(counted.prompt, counted.hit, counted.computed, counted.busy)
        waiting = self.fleet.waiting
        signals = Signals(
            ranks=self._ranks(now),
            engines=plan.engines,
            engines_at=now,
            tokens=TokenSignal(
                prompt=new.prompt,
                hit=new.hit,
                computed=new.computed,
                busy=new.busy,
                seconds=LOOK_SECONDS,
                engines=plan.engines,
                waiting=waiting,
                source="simulated",
            ),
            counts_tokens=True,
            offered=self.offered / LOOK_SECONDS,
        )
        self.offered = 0.0
        self.storm = advance(self.storm, now=now, signals=signals, sizes=plan.sizes)
        limited = limit(self.storm, now=now, signals=signals, sizes=plan.sizes)
        if plan.admission:
            self.door.change(limited, waiting=waiting, now=now)
        self.run.looks.append(
            Look(
                at=now,
                state=self.storm.state,
                limit=limited.tokens_per_second,
                why=limited.why,
                waiting=waiting,
                queue_seconds=self.fleet.queue_seconds(),
                prompt=new.prompt,
                hit=new.hit,
                computed=new.computed,
            )
        )
        self._schedule(now + LOOK_SECONDS, _LOOK)

    def _ranks(self, now: float) -> tuple[RankSignal, ...]:
        """Rank 0 restarts with the wipe; the others keep what no prompt reaches any more."""
        wiped = now >= self.plan.wipe_at + PING_DELAY
        whole = sum(kind.prefix for kind in self.kinds)
        held = sum(self.fleet.stored.values()) if wiped else whole
        return tuple(
            RankSignal(
                rank=rank,
                asked=now,
                answers=True,
                at=now,
                run_id="second" if wiped and rank == 0 else "first",
                keys=FEW_KEYS + (whole if rank else held),
                used_bytes=whole if rank else held,
            )
            for rank in range(self.plan.sizes.ranks)
        )


def simulate(plan: Plan, *, chance: Chance) -> Run:
    """Play it to the end: arrivals until ``duration``, then until all that was let in is served."""
    return _Simulation(plan, chance).play()


def zero_hit_seconds(plan: Plan) -> float:
    """Seconds of the prefill of a long prompt (the 99th of 100) of which nothing hits."""
    return quantile([kind.prefill for kind in plan.kinds], 0.99)


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest of ``values`` that is not below ``share`` of them; NaN without any."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def _drawn(kinds: Sequence[Kind], chance: Chance) -> Kind:
    return kinds[int(chance.random() * len(kinds))]
