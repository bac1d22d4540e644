"""One rank as one engine uses it: its connections, and a breaker that makes a dead rank a miss."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from kvtier.loadtest.connection import Connection
from kvtier.loadtest.measures import STALL_SECONDS, Outage, RankMeasures, Span
from kvtier.store.address import RankAddress
from kvtier.store.failure import Failed, Reply
from kvtier.store.resolve import Resolver
from kvtier.store.resp import RespConnection
from kvtier.store.values import Checker, Identity, Verdict, header, identity, payload

FIRST_RETRY = 0.05
LAST_RETRY = 0.5
CONNECT_SECONDS = 1.0
"""At least so long for a connection: that is the kernel's first wait for a lost packet."""


def connect_seconds(connection: Connection) -> float:
    """How long a new connection may take."""
    return max(CONNECT_SECONDS, connection.request_timeout)


class Budget:
    """Bytes that one engine may move, and the word to stop."""

    def __init__(self, most: int) -> None:
        self.stop = threading.Event()
        self.spent = False
        self._left = most
        self._lock = threading.Lock()

    def take(self, count: int) -> bool:
        """Whether so many bytes may be moved; once they may not, everything stops."""
        with self._lock:
            if count <= self._left:
                self._left -= count
                return not self.stop.is_set()
            self.spent = True
        self.stop.set()
        return False


@dataclass(slots=True)
class Done:
    """What a job did: the keys that it found, read rightly or stored, and how it waited: in
    silence, or all its time if it failed."""

    keys: list[bytes] = field(default_factory=list)
    failed: bool = False
    waited: float = 0.0


class Rank:
    """``workers`` connections to one rank, a thread for each, and one that mends them.

    After a failed request the rank is down: whatever is asked of it is a miss at once, and nobody
    waits, until the mending thread has had a good answer. So a dead rank costs one wait of the
    request timeout, not one for each look-up.
    """

    def __init__(
        self, connection: Connection, address: RankAddress, *, writer: str, budget: Budget
    ) -> None:
        self._connection = connection
        self._address = address
        self._writer = writer
        self._budget = budget
        self._tls = connection.tls_context()
        self._resolver = Resolver(address.host, address.port)
        self._threads = ThreadPoolExecutor(connection.workers, f"rank-{address.rank}")
        self._lock = threading.Lock()
        self._idle: list[RespConnection] = []
        self._up = False
        self._epoch = 0
        self._down = threading.Event()
        self._down.set()
        self._tried = threading.Event()
        self._ended = threading.Event()
        self._in_flight = 0
        self._reading_since = 0.0
        self._measures = RankMeasures(rank=address.rank)
        self._spans: list[Span] = []
        self._outages: list[Outage] = []
        self._mender = threading.Thread(target=self._mend, name=f"mend-{address.rank}", daemon=True)

    def start(self) -> None:
        """Begin to connect; ``tried`` once that has worked or failed."""
        self._mender.start()

    @property
    def tried(self) -> bool:
        return self._tried.is_set()

    def end(self) -> None:
        """Mend nothing any more; to be called of all ranks before the first is closed."""
        self._ended.set()
        self._down.set()

    def close(self, *, deadline: float) -> None:
        """What is in flight is waited for, which its timeout bounds; nobody waits for the mender
        after ``deadline`` on the monotonic clock, as nothing depends on it."""
        self.end()
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._mender.join(max(0.0, deadline - time.monotonic()))
        while self._idle:
            with suppress(IndexError):
                self._idle.pop().close()

    def look_up(self, keys: Sequence[bytes]) -> "Future[Done]":
        """Which of the keys are there."""

        def ask(link: RespConnection, done: Done) -> None:
            found = link.exists(keys)
            done.waited = max(done.waited, link.silence)
            done.keys += [key for key, there in zip(keys, found, strict=True) if there]

        return self._threads.submit(self._work, ask, time.monotonic())

    def fetch(self, keys: Sequence[bytes]) -> "list[Future[Done]]":
        """Read the values, on all connections at once, and judge each byte."""
        return self._spread(self._get, keys)

    def store(self, keys: Sequence[bytes]) -> "list[Future[Done]]":
        """Write the values that the keys must have."""
        return self._spread(self._set, keys)

    def settle(self, jobs: "Sequence[Future[Done]]", *, wait_counts: bool = True) -> set[bytes]:
        """Wait for jobs of one call, count its error and its stall, and return all their keys.

        Connections wait at the same time, so the longest wait is the stall. ``wait_counts`` is
        False where no request waits for the call.
        """
        done = [job.result() for job in jobs if not job.cancelled()]
        failed = any(each.failed for each in done)
        waited = max((each.waited for each in done), default=0.0)
        stalled = wait_counts and waited > STALL_SECONDS
        with self._lock:
            measures = self._measures
            measures.errors += failed
            if stalled:
                measures.stalls += 1
                measures.stall_seconds += waited
                measures.longest_stall = max(measures.longest_stall, waited)
        return {key for each in done for key in each.keys}

    def measures(self) -> RankMeasures:
        """Everything so far."""
        with self._lock:
            return replace(self._measures)

    def take_reading(self) -> tuple[Span, ...]:
        """The spans of the monotonic clock, since the last call, in which reads were in flight."""
        with self._lock:
            if self._in_flight:
                now = time.monotonic()
                self._spans.append((self._reading_since, now))
                self._reading_since = now
            spans, self._spans = self._spans, []
        return tuple(spans)

    def outages(self) -> list[Outage]:
        with self._lock:
            return list(self._outages)

    def _spread(
        self, act: Callable[[RespConnection, bytes], bool], keys: Sequence[bytes]
    ) -> "list[Future[Done]]":
        left = deque(keys)

        def run(link: RespConnection, done: Done) -> None:
            while left and self._up and not self._budget.stop.is_set():
                try:
                    key = left.popleft()
                except IndexError:
                    return
                good = act(link, key)
                done.waited = max(done.waited, link.silence)
                if good:
                    done.keys.append(key)

        jobs = min(len(keys), self._connection.workers)
        now = time.monotonic()
        return [self._threads.submit(self._work, run, now) for _ in range(jobs)]

    def _work(self, act: Callable[[RespConnection, Done], None], asked: float) -> Done:
        done = Done()
        if not self._up:
            # Perhaps it waited here behind the request that found the rank dead.
            return Done(failed=True, waited=time.monotonic() - asked)
        epoch, link = self._epoch, None
        try:
            link = self._take()
            act(link, done)
        except Failed as failure:
            done.failed = True
            done.waited = time.monotonic() - asked
            self._fail(failure, link, epoch=epoch)
        else:
            self._succeed()
            self._idle.append(link)
        return done

    def _get(self, link: RespConnection, key: bytes) -> bool:
        size = self._connection.object_bytes
        if not self._budget.take(size):
            return False
        checker = Checker(self._identity(key), size=size)
        with self._reading():
            count = link.get(key, checker.feed)
        if count is None:
            return False
        verdict = checker.verdict()
        with self._lock:
            self._measures.bytes_read += count
            self._measures.corrupt += verdict is Verdict.CORRUPT
            self._measures.foreign += verdict is Verdict.FOREIGN
            self._measures.stale += verdict is Verdict.STALE
        return verdict is Verdict.RIGHT

    def _set(self, link: RespConnection, key: bytes) -> bool:
        size = self._connection.object_bytes
        if not self._budget.take(size):
            return False
        owner = self._identity(key)
        head = header(owner, writer=self._writer, size=size)
        link.set(key, [head, *payload(owner, size - len(head))], size=size)
        with self._lock:
            self._measures.bytes_written += size
        return True

    def _identity(self, key: bytes) -> Identity:
        return identity(
            tier=f"{self._connection.namespace}/{self._connection.tier}",
            generation=self._connection.generation,
            rank=self._address.rank,
            key=key,
        )

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._lock:
            if not self._in_flight:
                self._reading_since = time.monotonic()
            self._in_flight += 1
        try:
            yield
        finally:
            with self._lock:
                self._in_flight -= 1
                if not self._in_flight:
                    self._spans.append((self._reading_since, time.monotonic()))

    def _succeed(self) -> None:
        with self._lock:
            self._measures.answered = True
            if self._outages and self._outages[-1].end is None:
                self._outages[-1] = replace(self._outages[-1], end=time.time())

    def _fail(self, failure: Failed, link: RespConnection | None, *, epoch: int) -> None:
        keep = isinstance(failure, Reply) and link is not None
        with self._lock:
            # A connection of before the failure that is known already says nothing new.
            if epoch != self._epoch:
                return
            self._up = False
            self._epoch += not keep
            if not self._outages or self._outages[-1].end is not None:
                self._outages.append(
                    Outage(
                        rank=self._address.rank,
                        kind=failure.kind,
                        reason=str(failure),
                        begin=time.time(),
                    )
                )
        if keep and link is not None:
            self._idle.append(link)
        else:
            # Behind the others there may be the same dead process.
            while self._idle:
                with suppress(IndexError):
                    self._idle.pop().close()
        self._down.set()

    def _mend(self) -> None:
        pause = FIRST_RETRY
        while True:
            self._down.wait()
            # First cleared, then asked: the other way round the end could come in between.
            self._down.clear()
            if self._ended.is_set():
                return
            epoch, link = self._epoch, None
            try:
                link = self._take()
                link.exists([f"{self._address.prefix}@".encode()])
                self._succeed()
                self._idle.append(link)
                while len(self._idle) < self._connection.workers and not self._ended.is_set():
                    self._idle.append(self._open())
            except Failed as failure:
                self._fail(failure, link, epoch=epoch)
                failed = True
            else:
                self._up = True
                failed = False
            finally:
                self._tried.set()
            if failed:
                self._ended.wait(pause)
            pause = min(2 * pause, LAST_RETRY) if failed else FIRST_RETRY

    def _take(self) -> RespConnection:
        with suppress(IndexError):
            return self._idle.pop()
        return self._open()

    def _open(self) -> RespConnection:
        seconds = connect_seconds(self._connection)
        address = self._resolver.address(seconds=seconds)
        link = RespConnection(seconds=seconds, tls=self._tls, host=self._address.host)
        try:
            link.open(
                address,
                username=self._connection.username,
                password=self._connection.password,
            )
        except Failed:
            link.close()
            raise
        link.seconds = self._connection.request_timeout
        return link
