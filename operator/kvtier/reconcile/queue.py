"""The keyed work queue between events and reconciles.

Events only name a key and what became dirty. One key never runs twice at a time; what arrives
while it runs is kept for its next run.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from kvtier.reconcile.clock import Clock, SystemClock

log = logging.getLogger(__name__)

Key = TypeVar("Key", bound=Hashable)

BACKOFF_BASE = 0.5
BACKOFF_LIMIT = 60.0


@dataclass(frozen=True, slots=True)
class Result:
    """What a handler wants next: another run after so many seconds, or none until an event."""

    requeue_after: float | None = None


class Outcome(StrEnum):
    SUCCESS = "success"
    ERROR = "error"


@dataclass(slots=True)
class _Entry:
    """One key. ``due`` is None when no run is asked for; times are of the monotonic clock.

    ``since`` is when the run at work became due.
    """

    due: float | None = None
    since: float | None = None
    dirty: frozenset[str] = frozenset()
    running: bool = False
    failures: int = 0
    not_before: float = float("-inf")
    budget_full_at: float = float("-inf")

    def idle(self, now: float) -> bool:
        return (
            self.due is None
            and not self.running
            and not self.failures
            and self.budget_full_at <= now
        )


@dataclass(frozen=True, slots=True)
class Pace:
    """How often one key may run: ``burst`` runs at once, then one every ``interval`` seconds.

    A bring-up needs about ten runs in three seconds, which the burst lets through; a storm of
    events is thinned out to the interval.
    """

    interval: float = 1.0
    burst: int = 10


class KeyedQueue(Generic[Key]):
    """Runs a handler for each key that became dirty, at most ``workers`` at a time.

    ``on_error(key, error, failures)`` and ``on_done(key, seconds, outcome)`` are called after
    every failed, and after every run. Without ``on_error`` failures are logged.
    ``on_throttled(key)`` is called for every run that had to wait for its key's pace.
    """

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        pace: Pace | None = None,
        jitter: Callable[[], float] = random.random,
        on_error: Callable[[Key, Exception, int], None] | None = None,
        on_done: Callable[[Key, float, Outcome], None] | None = None,
        on_throttled: Callable[[Key], None] | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._pace = pace or Pace()
        self._jitter = jitter
        self._on_error = on_error or _log_error
        self._on_done = on_done
        self._on_throttled = on_throttled
        self._entries: dict[Key, _Entry] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._stopping = False

    @property
    def depth(self) -> int:
        """Keys that are due now and wait for a worker, or for their pace."""
        now = self._clock.monotonic()
        return sum(
            entry.due is not None and entry.due <= now and not entry.running
            for entry in self._entries.values()
        )

    @property
    def oldest(self) -> float:
        """Seconds for which the key that waits longest has been due, its run included."""
        now = self._clock.monotonic()
        due = (
            entry.since if entry.since is not None else entry.due
            for entry in self._entries.values()
        )
        return max((now - since for since in due if since is not None and since < now), default=0.0)

    @property
    def running(self) -> int:
        """Handlers at work."""
        return len(self._tasks)

    def add(self, key: Key, *, dirty: frozenset[str] = frozenset(), delay: float = 0.0) -> None:
        """Ask for a run in ``delay`` seconds; an earlier request of the same key stands.

        ``dirty`` names what changed. It is handed to the next run together with what was named
        before; a run with an empty set is a resync.
        """
        now = self._clock.monotonic()
        entry = self._entries.get(key)
        if entry is None:
            # Keys that are gone are dropped when others arrive, so the table stays bounded.
            self._entries = {k: e for k, e in self._entries.items() if not e.idle(now)}
            entry = self._entries[key] = _Entry()
        entry.dirty |= dirty
        due = now + max(delay, 0.0)
        entry.due = due if entry.due is None else min(entry.due, due)
        self._wake.set()

    def add_after(self, key: Key, seconds: float) -> None:
        """Ask for a resync; the earliest request of a key stands, and is spent by any run."""
        self.add(key, delay=seconds)

    def retry_now(self) -> None:
        """Try what failed at once, as far as its pace lets it: what was in the way is gone."""
        for key, entry in self._entries.items():
            if entry.failures and not entry.running:
                entry.failures, entry.not_before = 1, float("-inf")
                self.add(key)

    async def run(
        self, workers: int, handler: Callable[[Key, frozenset[str]], Awaitable[Result]]
    ) -> None:
        """Work until ``stop``; returns when the handlers at work have finished.

        Cancelling it cancels the handlers at once. An error raised by a hook ends it.
        """
        try:
            while True:
                self._wake.clear()
                self._reap()
                if self._stopping and not self._tasks:
                    return
                timeout = None
                if not self._stopping:
                    timeout = self._dispatch(workers, handler)
                await self._clock.wait(self._wake, timeout)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._tasks.clear()

    def stop(self) -> None:
        """Start no more handlers; ``run`` returns when those at work have finished."""
        self._stopping = True
        self._wake.set()

    def _reap(self) -> None:
        done = {task for task in self._tasks if task.done()}
        self._tasks -= done
        for task in done:
            if not task.cancelled():
                task.result()

    def _dispatch(
        self, workers: int, handler: Callable[[Key, frozenset[str]], Awaitable[Result]]
    ) -> float | None:
        """Start what may start; returns seconds until the next is due, None if a wake-up tells."""
        now = self._clock.monotonic()
        waiting = sorted(
            (
                (max(entry.due, self._allowed_at(entry)), key)
                for key, entry in self._entries.items()
                if entry.due is not None and not entry.running
            ),
            key=lambda item: item[0],
        )
        for at, key in waiting:
            if len(self._tasks) >= workers:
                return None
            if at > now:
                return at - now
            entry = self._entries[key]
            if self._on_throttled is not None and self._paced_at(entry) > (entry.due or 0.0):
                self._on_throttled(key)
            dirty, entry.dirty, entry.running = entry.dirty, frozenset(), True
            entry.since, entry.due = entry.due, None
            entry.budget_full_at = max(entry.budget_full_at, now) + self._pace.interval
            task = asyncio.create_task(self._handle(key, dirty, handler))
            task.add_done_callback(lambda _: self._wake.set())
            self._tasks.add(task)
        return None

    def _allowed_at(self, entry: _Entry) -> float:
        return max(entry.not_before, self._paced_at(entry))

    def _paced_at(self, entry: _Entry) -> float:
        return entry.budget_full_at - (self._pace.burst - 1) * self._pace.interval

    async def _handle(
        self,
        key: Key,
        dirty: frozenset[str],
        handler: Callable[[Key, frozenset[str]], Awaitable[Result]],
    ) -> None:
        entry = self._entries[key]
        started = self._clock.monotonic()
        try:
            result = await handler(key, dirty)
        except asyncio.CancelledError:
            self._ended(entry)
            self.add(key, dirty=dirty)
            raise
        except Exception as error:
            self._ended(entry)
            self._retry(key, dirty, started=started, error=error)
            self._done(key, started, Outcome.ERROR)
            self._on_error(key, error, entry.failures)
        else:
            self._ended(entry)
            entry.failures = 0
            if result.requeue_after is not None:
                self.add_after(key, result.requeue_after)
            self._done(key, started, Outcome.SUCCESS)

    @staticmethod
    def _ended(entry: _Entry) -> None:
        entry.running, entry.since = False, None

    def _retry(self, key: Key, dirty: frozenset[str], *, started: float, error: Exception) -> None:
        """Exponential backoff between half and the whole of 0.5 s, 1 s, 2 s ... 60 s.

        An event may bring the next try forward, since it may be the repair, but to no sooner
        than one interval after this one, and never to before a server's Retry-After (60 s at most).
        """
        entry = self._entries[key]
        entry.failures += 1
        now = self._clock.monotonic()
        delay = min(BACKOFF_BASE * 2 ** min(entry.failures - 1, 16), BACKOFF_LIMIT)
        delay *= 0.5 + 0.5 * self._jitter()
        retry_after: float | None = getattr(error, "retry_after", None)
        if retry_after is None:
            entry.not_before = min(started + self._pace.interval, now + delay)
        else:
            entry.not_before = now + min(retry_after, BACKOFF_LIMIT)
        self.add(key, dirty=dirty, delay=delay)

    def _done(self, key: Key, started: float, outcome: Outcome) -> None:
        if self._on_done is not None:
            self._on_done(key, self._clock.monotonic() - started, outcome)


def _log_error(key: object, error: Exception, failures: int) -> None:
    log.warning("reconcile of %s failed (try %d)", key, failures, exc_info=error)
