"""Readings of engines' own metrics, from their pods: a few of each tier, every other second."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from kvtier.engines.endpoint import Endpoint
from kvtier.engines.hits import TokenCounters, read_tokens
from kvtier.limiter.tokens import Reading
from kvtier.placement.topology import evenly
from kvtier.reconcile.clock import Clock

INTERVAL: Final = 2.0
"""Seconds from the start of one look at all engines to the start of the next, at least."""
TIMEOUT: Final = 1.5
AT_ONCE: Final = 64
"""Connections to engines at a time."""
MOST_ENGINES, FEWEST_ENGINES = 32, 4
"""Engines of one tier that are asked."""
MOST_A_LOOK: Final = 200
"""Engines of all tiers, as far as ``FEWEST_ENGINES`` of each allows."""
MOST_A_SECOND: Final = 100.0
"""Engines that are asked in a second: each takes about 3 ms of a core."""
MOST_SKIPPED: Final = 8
"""Looks after which an engine is asked again at the latest that gave no figures."""


def most_engines(tiers: int) -> int:
    """Engines of one tier that are asked, of so many tiers."""
    return max(FEWEST_ENGINES, min(MOST_ENGINES, MOST_A_LOOK // max(tiers, 1)))


def pause_between(asked: int) -> float:
    """Seconds from one look's start to the next, with so many engines in it."""
    return max(INTERVAL, asked / MOST_A_SECOND)


@dataclass(slots=True)
class _Misses:
    endpoint: Endpoint
    failures: int = 0
    skip: int = 0


class EngineReader:
    """One tier's engines. ``read`` gives an engine's text or None, ``apart`` runs a function where
    it keeps no request waiting."""

    def __init__(
        self,
        *,
        read: Callable[[Endpoint], Awaitable[str | None]],
        clock: Clock,
        apart: Callable[
            [Callable[[str], TokenCounters | None], str], Awaitable[TokenCounters | None]
        ] = asyncio.to_thread,
    ) -> None:
        self._read = read
        self._clock = clock
        self._apart = apart
        self._misses: dict[str, _Misses] = {}

    async def look(self, engines: Mapping[str, Endpoint], *, most: int) -> dict[str, Reading]:
        """Ask at most so many, evenly; whoever gave figures, by name."""
        names = evenly(sorted(engines), most=most)
        self._misses = {name: each for name, each in self._misses.items() if name in engines}
        found = await asyncio.gather(*(self._ask(name, engines[name]) for name in names))
        return {name: each for name, each in zip(names, found, strict=True) if each is not None}

    async def _ask(self, name: str, endpoint: Endpoint) -> Reading | None:
        misses = self._misses.get(name)
        if misses is None or misses.endpoint != endpoint:
            misses = self._misses[name] = _Misses(endpoint)
        if misses.skip:
            misses.skip -= 1
            return None
        text = await self._read(endpoint)
        at = self._clock.monotonic()
        counters = None if text is None else await self._apart(read_tokens, text)
        if counters is None:
            misses.skip = min(2**misses.failures, MOST_SKIPPED)
            misses.failures += 1
            return None
        misses.failures = 0
        return Reading(counters, at)
