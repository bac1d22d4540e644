"""One rank as the plugin sees it: connections, a queue, and a breaker that makes a dead one a miss.

Worker threads, each with a connection of its own, take jobs from one queue. A thread beside them,
the keeper, makes the connections: at construction, after the rank was gone, and when the
credentials' file changed. Requests never wait for a connection, but for the very first.
"""

import contextlib
import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from time import monotonic

from kvtier_lmcache.breaker import Breaker, State
from kvtier_lmcache.client import Client, connect, is_gone
from kvtier_lmcache.config import Config, Credentials, RankAddress
from kvtier_lmcache.counters import Counts
from kvtier_lmcache.jobs import Job, Kind, run
from kvtier_lmcache.probe import NotThere, probe

MOST_WAITING = 1 << 16
"""Jobs of a rank that wait; more are misses. Their buffers are the caller's, so a job is small."""
LOOK_SECONDS = 2.0
"""How often the credentials' file is looked at."""


class _Pool:
    """The connections of one set of credentials. ``tokens`` has one for each job that waits."""

    def __init__(self, credentials: Credentials) -> None:
        self.credentials = credentials
        self.tokens: SimpleQueue[None] = SimpleQueue()
        self.retired = False


class Rank:
    """Connects in the background from construction on, and never raises for a rank not there.

    ``told`` gets a line when the rank goes and when it comes back. ``counts`` is the caller's.
    """

    def __init__(
        self,
        address: RankAddress,
        *,
        config: Config,
        counts: Counts,
        told: Callable[[str], None],
        tick: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.address = address
        self._config = config
        self._counts = counts
        self._told = told
        self._tick = tick
        self._clock = clock
        self._lock = threading.Lock()
        self._breaker = Breaker(jitter=random.random)
        self._urgent: deque[Job] = deque()
        self._bulk: deque[Job] = deque()
        self._looking: set[Job] = set()
        self._moving = 0
        self._still = threading.Condition(self._lock)
        self._pool: _Pool | None = None
        self._next: _Pool | None = None
        self._closed = False
        self._tried = False
        self._wake = threading.Event()
        self._keeper = threading.Thread(target=self._keep, daemon=True, name=f"kvtier {address}")
        # A name server that does not answer would hold up the first attempt, and requests with it.
        self._patience = threading.Timer(config.connection_timeout, self._late)
        self._patience.daemon = True
        self._keeper.start()
        self._patience.start()

    @property
    def state(self) -> State:
        return self._breaker.state

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue them; where the rank is not there, or too much waits, all have failed at once."""
        with self._lock:
            waiting = len(self._urgent) + len(self._bulk)
            here = self._breaker.state in (State.STARTING, State.CLOSED) and not self._closed
            taken = here and waiting + len(jobs) <= MOST_WAITING
            if taken:
                for job in jobs:
                    (self._urgent if job.kind is Kind.LOOKUP else self._bulk).append(job)
                if self._pool is not None:
                    _wake(self._pool, len(jobs))
        if not taken:
            self._fail(jobs)

    def close(self) -> None:
        """Fail what waits, and wait for what GLIDE still has: its buffers are the caller's."""
        with self._lock:
            self._closed = True
            jobs = self._abandon()
            self._retire(self._pool, self._next)
        self._wake.set()
        self._patience.cancel()
        self._fail(jobs)
        with self._still:
            # Threads that connect still, or ask a dead rank, end by themselves.
            self._still.wait_for(lambda: self._moving == 0, self._config.request_timeout + 1)

    def _keep(self) -> None:
        while True:
            self._wake.clear()
            with self._lock:
                if self._closed:
                    return
                idle = self._next is None
                wait = self._breaker.seconds_to_attempt(self._clock()) if idle else None
            if wait == 0 or (idle and self._outdated()):
                self._attempt()
            self._tick()
            with self._lock:
                left = self._breaker.seconds_to_attempt(self._clock())
                wait = LOOK_SECONDS if left is None or self._next is not None else left
            if wait:
                self._wake.wait(min(LOOK_SECONDS, wait))

    def _outdated(self) -> bool:
        """Whether the file has other credentials than the connections."""
        pool = self._pool
        if pool is None or self._breaker.state is not State.CLOSED:
            return False
        try:
            return self._config.read_credentials() != pool.credentials
        except (OSError, ValueError):
            # It is just being replaced: those that work stay.
            return False

    def _attempt(self) -> None:
        with self._lock:
            self._tried = True
            self._breaker.trying()
        try:
            credentials = self._config.read_credentials()
            probe(self.address, config=self._config, credentials=credentials)
        except (NotThere, OSError, ValueError) as error:
            self._lose(None, str(error))
            return
        except Exception as error:
            # Such as a CA file that is none. The keeper must live: without it no rank comes back.
            self._lose(None, type(error).__name__)
            return
        pool = _Pool(credentials)
        threads = [
            threading.Thread(
                target=self._work, args=(pool,), daemon=True, name=f"kvtier {self.address} {number}"
            )
            for number in range(self._config.workers)
        ]
        with self._lock:
            if self._closed:
                return
            self._next = pool
        try:
            for thread in threads:
                thread.start()
        except RuntimeError as error:
            # The container has no more threads to give, for now.
            self._lose(pool, str(error))

    def _work(self, pool: _Pool) -> None:
        try:
            client = connect(self.address, config=self._config, credentials=pool.credentials)
        except Exception as error:
            self._lose(pool, type(error).__name__)
            return
        try:
            self._connected(pool)
            while True:
                pool.tokens.get()
                with self._lock:
                    if pool.retired:
                        return
                    job = self._take()
                if job is not None:
                    self._serve(job, client, pool)
        finally:
            # By the thread that uses it: GLIDE frees it here and now.
            with contextlib.suppress(Exception):
                client.close()

    def _take(self) -> Job | None:
        """The next job: look-ups first, which are short and have a prompt waiting for them."""
        if self._urgent:
            job = self._urgent.popleft()
            self._looking.add(job)
            return job
        if not self._bulk:
            return None
        self._moving += 1
        return self._bulk.popleft()

    def _serve(self, job: Job, client: Client, pool: _Pool) -> None:
        found: Sequence[bool] = [False] * len(job.keys)
        try:
            found = run(job, client)
        except Exception as error:
            if is_gone(error):
                self._lose(pool, type(error).__name__)
            else:
                # The server's words are not told: it names the user in them, who is the token.
                self._counts.refused += 1
        with self._lock:
            if job.kind is Kind.LOOKUP:
                if job not in self._looking:
                    return
                self._looking.remove(job)
            self._counts.count(job, found)
        self._answer(job, found)
        if job.kind is not Kind.LOOKUP:
            with self._still:
                self._moving -= 1
                self._still.notify_all()

    def _connected(self, pool: _Pool) -> None:
        """The first worker that is takes over for all: those of before leave after their job."""
        with self._lock:
            if self._next is not pool or pool.retired:
                return
            before = self._pool
            self._retire(before)
            self._pool, self._next = pool, None
            was = self._breaker.state
            self._breaker.succeeded(self._clock())
            self._patience.cancel()
            _wake(pool, len(self._urgent) + len(self._bulk))
        if was is not State.STARTING:
            how = "answers again" if before is None else "is connected with new credentials"
            self._told(f"rank {self.address} {how}")

    def _lose(self, pool: _Pool | None, why: str) -> None:
        """The rank is gone, or an attempt (``pool`` None: at its beginning) was in vain.

        Look-ups that workers wait for end here, as misses. A load or a store does not: GLIDE has
        its buffer until it returns, in at most the request timeout, and whoever gave it would have
        another chunk's bytes overwritten, or stored, if told earlier that it is free.
        """
        with self._lock:
            if pool is not None and (pool.retired or pool not in (self._pool, self._next)):
                return
            self._counts.failures += 1
            if pool is self._next:
                self._retire(pool)
                self._next = None
                if self._breaker.state is State.CLOSED:
                    # New credentials that do not work, while the old ones do.
                    return
            was = self._breaker.state
            self._breaker.failed(self._clock())
            self._retire(self._pool, self._next)
            self._pool = self._next = None
            jobs = self._abandon()
        self._wake.set()
        if was in (State.STARTING, State.CLOSED):
            self._told(f"rank {self.address} is gone ({why}): all of it is a miss until it answers")
        self._fail(jobs)

    def _late(self) -> None:
        with self._lock:
            if self._breaker.state is not State.STARTING:
                return
            self._breaker.failed(self._clock())
            if self._tried:
                # The first attempt goes on. Where it did not begin yet, the keeper makes another.
                self._breaker.trying()
            jobs = self._abandon()
        self._told(f"rank {self.address} does not answer yet: all of it is a miss until it does")
        self._fail(jobs)

    def _abandon(self) -> list[Job]:
        """All that waits, and the look-ups that workers wait for."""
        jobs = [*self._urgent, *self._bulk, *self._looking]
        for each in (self._urgent, self._bulk, self._looking):
            each.clear()
        return jobs

    def _retire(self, *pools: _Pool | None) -> None:
        for pool in pools:
            if pool is not None:
                pool.retired = True
                _wake(pool, self._config.workers)

    def _fail(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            missed = [False] * len(job.keys)
            with self._lock:
                self._counts.count(job, missed)
            self._answer(job, missed)

    def _answer(self, job: Job, found: Sequence[bool]) -> None:
        try:
            job.done(found)
        except Exception as error:
            # Of whoever hears of the answer. The thread must live: others wait for theirs.
            self._told(f"rank {self.address}: an answer was not taken ({type(error).__name__})")


def _wake(pool: _Pool, count: int) -> None:
    for _ in range(count):
        pool.tokens.put(None)
