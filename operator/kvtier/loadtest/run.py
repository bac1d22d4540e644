"""A run: a process for each engine, and what they tell put together."""

import multiprocessing
import queue
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait

from kvtier.loadtest.connection import Connection
from kvtier.loadtest.engine import Engine, EngineSettings, Snapshot
from kvtier.loadtest.measures import Completed, Cover, RankMeasures, merge_outages, merge_ranks
from kvtier.loadtest.rank import connect_seconds
from kvtier.loadtest.report import UNFINISHED, Results
from kvtier.loadtest.workload import Workload

POLL_SECONDS = 0.1
SETTLED_SECONDS = 5.0
GRACE_SECONDS = 15.0
"""What is in flight at the end has so long beyond its own timeout; then it is ended."""
LEAVE_SECONDS = 5.0
"""All engines together to end their processes, once they have told all."""

Progress = Callable[[Results], None]


class EngineDied(Exception):
    """An engine's process ended without a report."""


@dataclass(frozen=True, slots=True)
class Plan:
    """``seconds`` and ``max_bytes`` (of all engines together) each end the run."""

    connection: Connection
    workload: Workload
    engines: int
    seconds: float
    max_bytes: int


def run(plan: Plan, *, progress: Progress | None = None) -> Results:
    """Load the tier; SIGTERM and SIGINT end it early, with what there is by then.

    ``progress`` hears each second. Only in the main thread. Raises EngineDied.
    """
    word = secrets.token_hex(6)
    context = multiprocessing.get_context("spawn")
    pipes: list[Pipe] = []
    processes = []
    with _stop_signals() as stop:
        try:
            for number in range(plan.engines):
                ours, theirs = context.Pipe()
                settings = EngineSettings(
                    number=number,
                    run=word,
                    connection=plan.connection,
                    workload=plan.workload,
                    seconds=plan.seconds,
                    max_bytes=plan.max_bytes // plan.engines,
                )
                process = context.Process(target=_engine, args=(theirs, settings), daemon=True)
                process.start()
                theirs.close()
                pipes.append(ours)
                processes.append(process)
            return _collect(plan, pipes, stop=stop, progress=progress)
        finally:
            for pipe in pipes:
                pipe.close()
            leave = time.monotonic() + LEAVE_SECONDS
            for process in processes:
                process.join(max(0.0, leave - time.monotonic()))
                if process.is_alive():
                    process.kill()
                    process.join()


def _engine(pipe: Pipe, settings: EngineSettings) -> None:
    """An engine's process: the parent says when to begin, and when to stop before the end."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    engine = Engine(settings)
    begins: queue.SimpleQueue[float] = queue.SimpleQueue()

    def obey() -> None:
        with suppress(EOFError, OSError):
            while (begin := pipe.recv()) is not None:
                begins.put(begin)
        engine.stop()
        begins.put(time.monotonic())

    threading.Thread(target=obey, daemon=True).start()
    engine.connect()
    # A parent that is gone needs no report.
    with suppress(EOFError, OSError):
        pipe.send(None)
        engine.run(pipe.send, begin=begins.get())


def _collect(
    plan: Plan, pipes: list[Pipe], *, stop: threading.Event, progress: Progress | None
) -> Results:
    connecting = set(pipes)
    while connecting and not stop.is_set():
        ready = [pipe for pipe in wait(connecting, POLL_SECONDS) if isinstance(pipe, Pipe)]
        for pipe in ready:
            _receive(pipe)
            connecting.discard(pipe)
    begin, wall = time.monotonic(), time.time()
    if not stop.is_set():
        for pipe in pipes:
            with suppress(OSError):
                pipe.send(begin)
    told = False
    gathered = Gathered(plan, begin=wall)
    shown = 0
    grace = connect_seconds(plan.connection) + GRACE_SECONDS
    last = begin + plan.seconds + grace
    while gathered.running:
        heard = wait([pipes[number] for number in gathered.running], POLL_SECONDS)
        for pipe in (each for each in pipes if each in heard):
            # None is of an engine that was stopped while it connected.
            if snapshot := _receive(pipe):
                gathered.add(snapshot)
        now = time.monotonic()
        if stop.is_set() and not told:
            told = True
            last = min(last, now + grace)
            for number in gathered.running:
                with suppress(OSError):
                    pipes[number].send(None)
        # Engines tell of a second within the next.
        if progress and now - begin > shown + 1.5:
            progress(gathered.results(seconds=now - begin, ended_by=""))
            shown += 1
        gathered.settle(now - SETTLED_SECONDS)
        if now > last:
            break
    spent = time.monotonic() - begin
    ended_by = "Signal" if told else "Bytes" if gathered.spent else "Duration"
    if gathered.running:
        ended_by = UNFINISHED
    return gathered.results(seconds=spent, ended_by=ended_by)


def _receive(pipe: Pipe) -> Snapshot | None:
    try:
        snapshot: Snapshot | None = pipe.recv()
    except (EOFError, OSError):
        raise EngineDied("an engine's process ended without a report; see above why") from None
    return snapshot


class Gathered:
    """What all engines have told by now."""

    def __init__(self, plan: Plan, *, begin: float) -> None:
        self.running = set(range(plan.engines))
        self.spent = False
        self._begin = begin
        self._engines = plan.engines
        self._nothing = [RankMeasures(rank=each.rank) for each in plan.connection.ranks]
        self._requests = 0
        self._completed: list[Completed] = []
        self._errors: list[float] = []
        self._latest: dict[int, Snapshot] = {}
        self._reading = [Cover() for _ in plan.connection.ranks]

    def add(self, snapshot: Snapshot) -> None:
        self._requests += snapshot.arrived
        self._completed += snapshot.completed
        self._errors += snapshot.errors
        for cover, spans in zip(self._reading, snapshot.reading, strict=True):
            cover.add(spans)
        self._latest[snapshot.engine] = replace(snapshot, completed=(), errors=(), reading=())
        if snapshot.final:
            self.running.discard(snapshot.engine)
            self.spent = self.spent or snapshot.spent

    def settle(self, moment: float) -> None:
        for cover in self._reading:
            cover.settle(moment)

    def results(self, *, seconds: float, ended_by: str) -> Results:
        latest = list(self._latest.values())
        return Results(
            begin=self._begin,
            seconds=seconds,
            engines=self._engines,
            requests=self._requests,
            ended_by=ended_by,
            stores_dropped=sum(each.stores_dropped for each in latest),
            completed=self._completed,
            errors=self._errors,
            ranks=merge_ranks([self._nothing, *(each.ranks for each in latest)]),
            reading=[cover.seconds() for cover in self._reading],
            outages=merge_outages(outage for each in latest for outage in each.outages),
        )


@contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set."""
    stop = threading.Event()
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
