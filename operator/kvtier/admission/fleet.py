"""Engines, their store and their requests, as a simulation has them: events in order of time.

An engine prefills one prompt after another. It looks up a prompt's prefix when its turn has come,
as schedulers do, and a prefix that was computed is stored when that prompt's prefill ends. A hit
holds the GPU for hitEngineTime, and the rest of its fetch (latency, round trip, transfer) passes
beside other requests' work: the two queues of ``kvtier.breakeven.queueing``, the link's without
its wait.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol


class Chance(Protocol):
    """What a simulation draws from: a seeded ``random.Random``."""

    def random(self) -> float:
        """From 0 to 1, evenly."""

    def expovariate(self, lambd: float, /) -> float:
        """Seconds to the next event of a Poisson process of ``lambd`` events/s."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A prompt: its tokens and those of its prefix; seconds of its whole prefill, for which a hit
    holds the GPU, and for which its fetch takes besides."""

    tokens: int
    prefix: int
    prefill: float
    held: float = 0.0
    fetch: float = 0.0


@dataclass(slots=True)
class Request:
    """One prompt on its way; ``ttft`` is None until its first token is there."""

    kind: Kind
    prefix: int
    arrived: float
    hit: int = 0
    service: float = 0.0
    ended: float | None = None
    ttft: float | None = None


@dataclass(slots=True)
class Engine:
    waiting: deque[Request] = field(default_factory=deque)
    running: Request | None = None

    @property
    def load(self) -> int:
        return len(self.waiting) + (self.running is not None)


@dataclass(slots=True)
class Counters:
    """What all engines have counted since the start: tokens, and seconds in prefill."""

    prompt: float = 0.0
    hit: float = 0.0
    computed: float = 0.0
    busy: float = 0.0

    def since(self, before: "Counters") -> "Counters":
        return Counters(
            prompt=self.prompt - before.prompt,
            hit=self.hit - before.hit,
            computed=self.computed - before.computed,
            busy=self.busy - before.busy,
        )


class Fleet:
    """All engines of a pool and the tier that they share.

    ``begins`` and ``ends`` return what is to be scheduled: the moment at which the prefill that
    began ends, None if nothing began.
    """

    def __init__(self, *, engines: int) -> None:
        self.engines = [Engine() for _ in range(engines)]
        self.stored: dict[int, int] = {}
        self.counters = Counters()
        self._next = 0

    def arrive(self, request: Request, now: float) -> tuple[int, float] | None:
        """Give it to the engine with the fewest requests. (engine, end) if it began at once."""
        count = len(self.engines)
        order = ((self._next + step) % count for step in range(count))
        chosen = min(order, key=lambda index: self.engines[index].load)
        self._next = (chosen + 1) % count
        engine = self.engines[chosen]
        engine.waiting.append(request)
        if engine.running is not None:
            return None
        return chosen, self._begin(engine, now)

    def end(self, index: int, now: float) -> tuple[Request, float | None]:
        """The prefill that ended, and when the next of this engine ends."""
        engine = self.engines[index]
        done = engine.running
        if done is None:
            raise ValueError(f"engine {index} prefills nothing")
        engine.running = None
        self.counters.computed += done.kind.tokens - done.hit
        self.counters.busy += done.service
        done.ended = now
        done.ttft = now - done.arrived + (done.kind.fetch if done.hit else 0.0)
        if not done.hit and done.kind.prefix:
            self.stored[done.prefix] = done.kind.prefix
        return done, self._begin(engine, now) if engine.waiting else None

    def wipe(self) -> None:
        """Every prefix ends at the lost rank's first chunk: nothing hits."""
        self.stored.clear()

    @property
    def waiting(self) -> int:
        return sum(len(engine.waiting) for engine in self.engines)

    def queue_seconds(self) -> float:
        """Seconds of GPU work that wait in an engine on average, by what is stored now."""
        work = sum(self._seconds(request) for engine in self.engines for request in engine.waiting)
        return work / len(self.engines)

    def _begin(self, engine: Engine, now: float) -> float:
        request = engine.waiting.popleft()
        engine.running = request
        request.hit = self.stored.get(request.prefix, 0)
        request.service = self._seconds(request)
        self.counters.prompt += request.kind.tokens
        self.counters.hit += request.hit
        return now + request.service

    def _seconds(self, request: Request) -> float:
        kind, hit = request.kind, self.stored.get(request.prefix, 0)
        missed = (kind.tokens - hit) / kind.tokens * kind.prefill
        return missed + (kind.held if hit else 0.0)
