"""One rank of a probe, in a process of its own: values are stored, compared, timed, taken away."""

import os
import random
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from typing import Final

from kvtier.probe.config import ProbeConfig, values_to_store
from kvtier.probe.cpu import Moment
from kvtier.probe.rates import Sample
from kvtier.probe.reader import read
from kvtier.probe.step import Step
from kvtier.store.failure import Failed, Kind
from kvtier.store.resolve import Resolver
from kvtier.store.resp import RespConnection
from kvtier.store.tls import client_context
from kvtier.store.values import Checker, Identity, Verdict, header, identity, payload

CLEAN_SECONDS: Final = 2.0
VALUE_SECONDS: Final = 180
"""How long a value lives if nobody takes it away: longer than any probe."""
PINGS: Final = 100
PING_SECONDS: Final = 1.0
PING_PAUSE: Final = 0.002
"""So that ranks which share a CPU with this process do not wait for each other all the time."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The rank holds its values; ``round_trips`` in seconds."""

    round_trips: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """What was read, and what it took. ``bytes_moved`` includes what was stored and compared."""

    samples: tuple[Sample, ...]
    bytes_moved: int
    cpu_seconds: float
    busy: float


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why there is no figure; one line without a secret."""

    text: str


Said = Ready | Measured | Trouble


def probe_rank(pipe: Pipe, config: ProbeConfig, place: int, step: Step, run: str) -> None:
    """The process of one rank: tells ``Ready``, hears when to begin, tells ``Measured``; or
    ``Trouble``. ``place`` is the rank's among those of ``config``, and in ``step``.

    ``None`` instead of a moment, or while it reads, or an end of the pipe, is the word to stop.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    session: _Session | None = None
    # A parent that is gone needs no report; the values go all the same.
    with suppress(EOFError, OSError):
        try:
            session = _Session(config, place, step=step, run=run)
            pipe.send(Ready(round_trips=session.prepare()))
            begin = pipe.recv()
            if begin is not None:
                pipe.send(session.measure(pipe, begin=begin))
        except Failed as failure:
            pipe.send(Trouble(str(failure)))
        except Exception as error:
            pipe.send(Trouble(f"the probe itself failed: {type(error).__name__}: {error}"))
    if session is not None:
        session.clean()


class _Session:
    def __init__(self, config: ProbeConfig, place: int, *, step: Step, run: str) -> None:
        self._config = config
        self._place = place
        self._step = step
        self._rank = rank = config.ranks[place]
        self._run = run
        self._deadline = time.monotonic() + config.setup_seconds
        self._resolver = Resolver(rank.host, rank.port)
        self._tls = client_context(config.ca) if config.ca is not None else None
        self._links: list[RespConnection] = []
        self._keys: list[bytes] = []
        self._moved = 0

    def prepare(self) -> tuple[float, ...]:
        """Connect, ask for round trips, store and compare. Raises Failed."""
        for _ in range(self._config.connections):
            self._links.append(self._open())
        first = self._links[0]
        round_trips = self._ping(first)
        facts = self._before_deadline(first).info("memory")
        try:
            used, most = int(facts["used_memory"]), int(facts["maxmemory"])
        except (KeyError, ValueError):
            raise Failed(Kind.OTHER, "INFO memory answered in a form that is not known") from None
        count = values_to_store(self._config, used_memory=used, maxmemory=most)
        for number in range(count):
            self._store(first, f"{self._rank.prefix}@{self._run}/{number}".encode())
        for key in self._keys:
            self._compare(first, key)
        return round_trips

    def measure(self, pipe: Pipe, *, begin: float) -> Measured:
        """Read from ``begin`` on, a moment of the monotonic clock. Raises Failed."""
        links = [self._before_deadline(link, fresh=True).lend() for link in self._links]
        size = self._config.value_bytes
        time.sleep(max(0.0, begin - time.monotonic()))
        before = Moment.now()
        samples = read(
            links,
            keys=self._keys,
            size=size,
            ahead=self._config.ahead,
            values=(self._config.rank_bytes - self._moved) // size,
            seconds=self._config.seconds,
            in_step=self._in_step,
            interrupt=lambda: _told_to_stop(pipe),
            watch=pipe.fileno(),
        )
        after = Moment.now()
        return Measured(
            samples=tuple(samples),
            bytes_moved=self._moved + samples[-1][1],
            cpu_seconds=after.had - before.had,
            busy=after.busy_since(before),
        )

    def _in_step(self, asked: int, came: int) -> bool:
        self._step.give(self._place, came)
        in_flight = self._config.connections * self._config.ahead * self._config.value_bytes
        return self._step.may_ask(self._place, asked=asked, in_flight=in_flight)

    def clean(self) -> None:
        """Take the values away. What cannot be taken goes by its time to live."""
        for link in self._links:
            link.close()
        if not self._keys:
            return
        self._deadline = time.monotonic() + CLEAN_SECONDS
        with suppress(Failed):
            link = self._open()
            self._before_deadline(link).unlink(self._keys)
            link.close()

    def _open(self) -> RespConnection:
        link = RespConnection(seconds=self._left(), tls=self._tls, host=self._rank.host)
        address = self._resolver.address(seconds=self._left())
        link.open(address, username=self._config.username, password=self._config.password)
        return link

    def _ping(self, link: RespConnection) -> tuple[float, ...]:
        found: list[float] = []
        end = time.monotonic() + PING_SECONDS
        while len(found) < PINGS and (not found or time.monotonic() < end):
            time.sleep(PING_PAUSE)
            self._before_deadline(link)
            begun = time.perf_counter()
            link.ping()
            found.append(time.perf_counter() - begun)
        return tuple(found)

    def _store(self, link: RespConnection, key: bytes) -> None:
        owner, size = self._owner(key), self._config.value_bytes
        head = header(owner, writer="probe", size=size)
        parts: list[bytes | memoryview] = [head, *payload(owner, size - len(head))]
        # Even a store whose answer is lost may have happened.
        self._keys.append(key)
        self._moved += size
        self._before_deadline(link).set(key, parts, size=size, seconds_to_live=VALUE_SECONDS)

    def _compare(self, link: RespConnection, key: bytes) -> None:
        checker = Checker(self._owner(key), size=self._config.value_bytes)
        most = self._config.value_bytes
        count = self._before_deadline(link).get(key, checker.feed, most=most)
        if count is None:
            raise Failed(Kind.OTHER, "a value was gone at once: the rank keeps nothing")
        self._moved += count
        if checker.verdict() is not Verdict.RIGHT:
            raise Failed(Kind.OTHER, "a value came back with other bytes than were stored")

    def _owner(self, key: bytes) -> Identity:
        return identity(tier="probe", generation="", rank=self._rank.rank, key=key)

    def _before_deadline(self, link: RespConnection, *, fresh: bool = False) -> RespConnection:
        link.seconds = self._config.setup_seconds if fresh else self._left()
        return link

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise Failed(Kind.TIMEOUT, f"not ready within {self._config.setup_seconds:g} s")
        return left


def _told_to_stop(pipe: Pipe) -> bool:
    try:
        return pipe.poll() and pipe.recv() is None
    except (EOFError, OSError):
        return True


def run_word() -> str:
    """What no other probe of a rank has in its keys."""
    return random.SystemRandom().randbytes(6).hex() + f"-{os.getpid()}"
