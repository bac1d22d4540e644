"""Time as something to hand in, so that tests need not wait for it."""

import asyncio
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """Where the reconciler takes its time from."""

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back, whatever happens to the wall clock."""

    def now(self) -> datetime:
        """Wall-clock time in UTC: to be shown, written, or held against the API server's times."""

    async def wait(self, event: asyncio.Event, timeout: float | None) -> bool:
        """Wait until the event is set (True) or ``timeout`` seconds have passed (False)."""


# It counts the time in which the machine was suspended, and others may have taken over.
_MONOTONIC = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The clock of the machine."""

    def monotonic(self) -> float:
        return time.clock_gettime(_MONOTONIC)

    def now(self) -> datetime:
        return datetime.now(UTC)

    async def wait(self, event: asyncio.Event, timeout: float | None) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await event.wait()
        return event.is_set()


class FakeClock:
    """Time that passes only in ``advance``: for tests."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._start = start
        self._seconds = 0.0
        self._timers: list[tuple[float, asyncio.Event]] = []

    def monotonic(self) -> float:
        return self._seconds

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._seconds)

    async def wait(self, event: asyncio.Event, timeout: float | None) -> bool:
        rung = asyncio.Event()
        timer = (float("inf") if timeout is None else self._seconds + max(timeout, 0.0), rung)
        self._timers.append(timer)
        waiters = [asyncio.create_task(each.wait()) for each in (event, rung)]
        try:
            await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._timers.remove(timer)
            for waiter in waiters:
                waiter.cancel()
            await asyncio.gather(*waiters, return_exceptions=True)
        return event.is_set()

    async def settle(self) -> None:
        """Let every task run until it waits."""
        for _ in range(100):
            await asyncio.sleep(0)

    async def advance(self, seconds: float) -> None:
        """Let time pass, timer by timer, and every task react."""
        end = self._seconds + seconds
        await self.settle()
        while True:
            due = [timer for timer in self._timers if timer[0] <= end and not timer[1].is_set()]
            if not due:
                break
            at, rung = min(due, key=lambda timer: timer[0])
            self._seconds = max(self._seconds, at)
            rung.set()
            await self.settle()
        self._seconds = end
        await self.settle()
