"""One engine: its requests, its W ranks and its one worker, in a process of its own."""

import heapq
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field

from kvtier.breakeven.rates import prefill_rate
from kvtier.loadtest import striping
from kvtier.loadtest.connection import Connection
from kvtier.loadtest.keys import chunk_hashes
from kvtier.loadtest.measures import Completed, HitTimes, Outage, RankMeasures, Span
from kvtier.loadtest.objects import Held, flat, objects, pack, unpack
from kvtier.loadtest.rank import Budget, Done, Rank, connect_seconds
from kvtier.loadtest.workload import Workload, arrivals, prompt

TELL_SECONDS = 1.0
POLL_SECONDS = 0.02
CONNECT_SLACK = 0.5
MENDERS_SECONDS = 0.5
"""What is left of trying to connect at the end has so long; nothing depends on it."""
LOADED_AHEAD = 1024
"""So many loaded requests wait for the worker at most; the others wait to be looked up. More than
any worker takes within T0, few enough for the memory of a small pod."""
STORES_AHEAD = 64
"""So many requests' chunks wait to be stored at most; those of the next are not stored."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """``run`` is a word that no other run has. ``max_bytes`` are this engine's alone."""

    number: int
    run: str
    connection: Connection
    workload: Workload
    seconds: float
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What an engine tells: ranks and outages as they are by now, the rest since the last time.

    ``errors`` are moments in seconds since the epoch, ``reading`` by rank the spans of the
    monotonic clock in which reads were in flight.
    """

    engine: int
    final: bool
    arrived: int
    stores_dropped: int
    completed: tuple[Completed, ...]
    errors: tuple[float, ...]
    ranks: tuple[RankMeasures, ...]
    reading: tuple[tuple[Span, ...], ...]
    outages: tuple[Outage, ...]
    spent: bool


@dataclass(order=True, slots=True)
class _Request:
    """A request on its way to the worker; the earliest that is ready comes first."""

    ready: float
    number: int
    arrived: float = field(compare=False)
    prefix: int = field(compare=False)
    hit_tokens: int = field(compare=False)
    loading: float = field(compare=False)
    """Seconds that looking up and fetching took."""
    store: tuple[int, ...] = field(compare=False)
    """By rank what to store afterwards, as ``pack`` has it."""


class Engine:
    """Requests come (open loop), are looked up and fetched one after another on all ranks at once,
    wait for the worker, are computed, and store what was missing.

    Loading is asynchronous: it does not hold the worker. Sleeping stands for computing.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._connection = settings.connection
        self._budget = Budget(settings.max_bytes)
        self._stop = self._budget.stop
        writer = f"{settings.run}/{settings.number}"
        self.ranks = [
            Rank(self._connection, address, writer=writer, budget=self._budget)
            for address in self._connection.ranks
        ]
        self._storing: queue.Queue[_Request | None] = queue.Queue(STORES_AHEAD)
        self._waiting: list[_Request] = []
        self._ready = threading.Condition()
        self._lock = threading.Lock()
        self._begin = 0.0
        self._arrived = 0
        self.stores_dropped = 0
        self._completed: list[Completed] = []
        self._errors: list[float] = []
        self._errors_told = 0

    def connect(self) -> None:
        """Return once each rank has been tried, or has had the time for it, or at ``stop``;
        whether that worked is part of the report."""
        for rank in self.ranks:
            rank.start()
        deadline = time.monotonic() + connect_seconds(self._connection) + CONNECT_SLACK
        while time.monotonic() < deadline and not all(rank.tried for rank in self.ranks):
            if self._stop.wait(POLL_SECONDS):
                return

    def run(self, tell: Callable[[Snapshot], None], *, begin: float) -> None:
        """Run until the time is over, the bytes are spent, or ``stop``; ``tell`` hears of it.

        ``begin`` is on the monotonic clock, which all processes of a machine share.
        """
        self._begin = begin
        threads = [
            threading.Thread(target=each, name=each.__name__, daemon=True)
            for each in (self._arrive, self._load_all, self._compute_all, self._store_all)
        ]
        for thread in threads:
            thread.start()
        end = begin + self._settings.seconds
        next_tell = begin + TELL_SECONDS
        while not self._stop.wait(max(0.0, min(next_tell, end) - time.monotonic())):
            if time.monotonic() >= end:
                break
            next_tell += TELL_SECONDS
            tell(self._snapshot(final=False))
        self._stop.set()
        for rank in self.ranks:
            rank.end()
        # If it is full the storing thread does not wait, and sees the stop.
        with suppress(queue.Full):
            self._storing.put_nowait(None)
        with self._ready:
            self._ready.notify_all()
        for thread in threads:
            thread.join()
        deadline = time.monotonic() + MENDERS_SECONDS
        for rank in self.ranks:
            rank.close(deadline=deadline)
        tell(self._snapshot(final=True))

    def stop(self) -> None:
        self._stop.set()

    def _arrive(self) -> None:
        for _ in self._arrivals():
            with self._lock:
                self._arrived += 1

    def _arrivals(self) -> Iterator[tuple[float, int]]:
        """When a request comes on the monotonic clock, and its prefix, each not before it comes.

        Who is behind goes on where it was: requests that wait need no memory.
        """
        for at, prefix in arrivals(self._settings.workload, engine=self._settings.number):
            if self._stop.wait(max(0.0, self._begin + at - time.monotonic())):
                return
            yield self._begin + at, prefix

    def _load_all(self) -> None:
        for number, (arrived, prefix) in enumerate(self._arrivals()):
            with self._ready:
                while len(self._waiting) >= LOADED_AHEAD and not self._stop.is_set():
                    self._ready.wait()
            if self._stop.is_set():
                return
            loaded = self._load(number, arrived, prefix)
            with self._ready:
                heapq.heappush(self._waiting, loaded)
                self._ready.notify_all()

    def _load(self, number: int, arrived: float, prefix: int) -> _Request:
        """Look up, then fetch what is a hit."""
        connection = self._connection
        begin = time.monotonic()
        keys = self._objects(number, prefix)
        there = self._on_all_ranks(
            [[rank.look_up(flat(mine))] for rank, mine in zip(self.ranks, keys, strict=True)]
        )
        chunks = self._settings.workload.prompt_tokens // connection.chunk_tokens
        hit = self._hit(keys, there, chunks=chunks)
        wanted = [[key for index in mine if index < hit for key in mine[index]] for mine in keys]
        read = self._on_all_ranks(
            [rank.fetch(mine) for rank, mine in zip(self.ranks, wanted, strict=True)]
        )
        first = [{index: mine[index] for index in mine if index < hit} for mine in keys]
        hit = self._hit(first, read, chunks=hit)
        self._note_errors()
        lacking = [
            # What was there but could not be read, or not rightly, is stored again as well.
            {key for key in flat(mine) if key not in good or (key in asked and key not in got)}
            for mine, good, asked, got in zip(keys, there, map(set, wanted), read, strict=True)
        ]
        now = time.monotonic()
        return _Request(
            ready=now + (connection.hit_latency if hit else 0),
            number=number,
            arrived=arrived,
            prefix=prefix,
            hit_tokens=hit * connection.chunk_tokens,
            loading=now - begin,
            store=tuple(pack(mine, lacks) for mine, lacks in zip(keys, lacking, strict=True)),
        )

    def _objects(self, number: int, prefix: int) -> list[Held]:
        """The keys of a request's prompt."""
        settings = self._settings
        unique = f"{settings.run}/{settings.number}/{number}"
        tokens = prompt(settings.workload, prefix=prefix, unique=unique)
        hashes = chunk_hashes(tokens, chunk_tokens=self._connection.chunk_tokens)
        return objects(self._connection, hashes)

    @staticmethod
    def _hit(keys: list[Held], there: list[set[bytes]], *, chunks: int) -> int:
        """The minimum over the ranks' answers; a chunk is there if all its objects are."""
        return striping.hit_chunks(
            [
                striping.answer(
                    list(mine),
                    [found.issuperset(objects) for objects in mine.values()],
                    chunks=chunks,
                )
                for mine, found in zip(keys, there, strict=True)
            ]
        )

    def _on_all_ranks(self, jobs: "list[list[Future[Done]]]") -> list[set[bytes]]:
        return [rank.settle(mine) for rank, mine in zip(self.ranks, jobs, strict=True)]

    def _compute_all(self) -> None:
        """The worker: one request at a time, the earliest that is ready."""
        free = 0.0
        while (request := self._next()) is not None:
            # By the plan and not by when a sleep ended, so that errors of clocks do not add up.
            free = max(request.ready, free) + self._engine_seconds(request)
            if self._stop.wait(max(0.0, free - time.monotonic())):
                return
            done = Completed(
                at=time.time(),
                ttft=free - request.arrived,
                tokens=self._settings.workload.prompt_tokens,
                hit_tokens=request.hit_tokens,
                hit=self._hit_times(request) if request.hit_tokens else None,
            )
            with self._lock:
                self._completed.append(done)
            if not any(request.store):
                continue
            try:
                self._storing.put_nowait(request)
            except queue.Full:
                self.stores_dropped += 1

    def _next(self) -> _Request | None:
        """The request that is ready first, once it is; None at the end."""
        with self._ready:
            while not self._stop.is_set():
                left = self._waiting[0].ready - time.monotonic() if self._waiting else None
                if left is not None and left <= 0:
                    self._ready.notify_all()
                    return heapq.heappop(self._waiting)
                self._ready.wait(left)
        return None

    def _engine_seconds(self, request: _Request) -> float:
        """What the request takes of the worker: the rest of the prompt at the rate of its whole
        length, and what a hit takes whatever its length."""
        tokens = self._settings.workload.prompt_tokens
        held = self._connection.hit_engine_time if request.hit_tokens else 0.0
        return held + (tokens - request.hit_tokens) / self._rate()

    def _hit_times(self, request: _Request) -> HitTimes:
        t0 = self._connection.hit_latency + self._connection.hit_engine_time
        return HitTimes(fetch=request.loading + t0, recompute=request.hit_tokens / self._rate())

    def _rate(self) -> float:
        """Tokens per second at which this engine computes its prompts."""
        tokens = self._settings.workload.prompt_tokens
        return prefill_rate(self._connection.prefill_rates, tokens)

    def _store_all(self) -> None:
        while (request := self._storing.get()) is not None and not self._stop.is_set():
            keys = self._objects(request.number, request.prefix)
            store = [unpack(*each) for each in zip(keys, request.store, strict=True)]
            # A few at a time: a look-up that comes meanwhile waits for those only.
            step = self._connection.workers
            for first in range(0, max(map(len, store)), step):
                jobs = [
                    (rank, rank.store(keys[first : first + step]))
                    for rank, keys in zip(self.ranks, store, strict=True)
                ]
                for rank, mine in jobs:
                    rank.settle(mine, wait_counts=False)
                self._note_errors()

    def _note_errors(self) -> None:
        """Errors are counted by the ranks; here they get their time."""
        with self._lock:
            counted = sum(rank.measures().errors for rank in self.ranks)
            self._errors += [time.time()] * (counted - self._errors_told)
            self._errors_told = counted

    def _snapshot(self, *, final: bool) -> Snapshot:
        with self._lock:
            arrived, completed, errors = self._arrived, self._completed, self._errors
            self._arrived, self._completed, self._errors = 0, [], []
        return Snapshot(
            engine=self._settings.number,
            final=final,
            arrived=arrived,
            stores_dropped=self.stores_dropped,
            completed=tuple(completed),
            errors=tuple(errors),
            ranks=tuple(rank.measures() for rank in self.ranks),
            reading=tuple(rank.take_reading() for rank in self.ranks),
            outages=tuple(outage for rank in self.ranks for outage in rank.outages()),
            spent=self._budget.spent,
        )
