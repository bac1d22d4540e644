"""Brings engines' readings to the tiers they are of: from the engines, or from a Prometheus."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, Protocol

from kvtier.engines.endpoint import Endpoint
from kvtier.limiter.engines import EngineReader, most_engines, pause_between
from kvtier.limiter.known import Key, Known
from kvtier.limiter.tokens import PoolTokens, Reading
from kvtier.reconcile.clock import Clock

log = logging.getLogger(__name__)

PROMETHEUS_INTERVAL: Final = 5.0
"""Seconds from one query to the next. Prometheus itself scrapes every 15 or 30 s."""


class Pools(Protocol):
    """Whom readings are for."""

    def tokens(self, key: Key) -> PoolTokens | None:
        """Where readings of a tier's engines go, None for a tier that is not known."""

    def answered(self, key: Key) -> None:
        """All engines of a tier that were asked have answered."""


class DirectSource:
    """Asks the engines of each tier, the tiers one after the other within a look."""

    def __init__(
        self,
        *,
        known: Known,
        pools: Pools,
        read: Callable[[Endpoint], Awaitable[str | None]],
        clock: Clock,
        jitter: Callable[[], float],
    ) -> None:
        self._known = known
        self._pools = pools
        self._read = read
        self._clock = clock
        self._jitter = jitter
        self._readers: dict[Key, EngineReader] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Look after look until ``stop`` is set."""
        while not stop.is_set():
            began = self._clock.monotonic()
            asked = await self.look(stop)
            left = began + pause_between(asked) * (0.9 + 0.2 * self._jitter())
            await self._clock.wait(stop, max(0.0, left - self._clock.monotonic()))

    async def look(self, stop: asyncio.Event) -> int:
        """Ask once; how many engines were to be asked."""
        tiers = list(self._known.tiers)
        self._readers = {key: each for key, each in self._readers.items() if key in set(tiers)}
        most = most_engines(len(tiers))
        asked = sum(min(most, len(self._known.engines(key))) for key in tiers)
        # All of them at once would keep requests waiting.
        apart = pause_between(asked) / 2 / max(len(tiers), 1)
        async with asyncio.TaskGroup() as group:
            for place, key in enumerate(tiers):
                group.create_task(self._guarded(key, stop, most=most, delay=place * apart))
        return asked

    async def _guarded(self, key: Key, stop: asyncio.Event, *, most: int, delay: float) -> None:
        try:
            if delay and await self._clock.wait(stop, delay):
                return
            await self._look(key, most=most)
        except Exception:
            log.exception("%s/%s: no look at its engines", *key)

    async def _look(self, key: Key, *, most: int) -> None:
        engines = self._known.engines(key)
        told = {name: each.metrics for name, each in engines.items() if each.metrics is not None}
        reader = self._readers.get(key)
        if reader is None:
            reader = self._readers[key] = EngineReader(read=self._read, clock=self._clock)
        found = await reader.look(told, most=most)
        _take(self._pools, key, found, alive=engines, now=self._clock.monotonic())
        if found and len(found) == min(most, len(engines)):
            self._pools.answered(key)


class PrometheusSource:
    """Asks one Prometheus about all of them."""

    def __init__(
        self,
        *,
        known: Known,
        pools: Pools,
        read: Callable[[], Awaitable[Mapping[tuple[str, str], Reading]]],
        clock: Clock,
        jitter: Callable[[], float],
    ) -> None:
        self._known = known
        self._pools = pools
        self._read = read
        self._clock = clock
        self._jitter = jitter

    async def run(self, stop: asyncio.Event) -> None:
        """Look after look until ``stop`` is set."""
        while not stop.is_set():
            try:
                await self.look()
            except Exception:
                log.exception("no look at Prometheus' figures")
            await self._clock.wait(stop, PROMETHEUS_INTERVAL * (0.9 + 0.2 * self._jitter()))

    async def look(self) -> None:
        """Ask once."""
        found = await self._read()
        now = self._clock.monotonic()
        for key in list(self._known.tiers):
            engines = self._known.engines(key)
            mine = {pod: each for pod in engines if (each := found.get((key[0], pod))) is not None}
            _take(self._pools, key, mine, alive=engines, now=now)


def _take(
    pools: Pools,
    key: Key,
    found: Mapping[str, Reading],
    *,
    alive: Collection[str],
    now: float,
) -> None:
    tokens = pools.tokens(key)
    if tokens is not None:
        tokens.take(found, alive=alive, now=now)
