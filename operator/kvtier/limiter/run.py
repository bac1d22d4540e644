"""The limiter's process: one half looks at tiers, the other answers gateways."""

import asyncio
import gc
import logging
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from kvtier import __version__
from kvtier.limiter.app import DRAIN_SECONDS, serving
from kvtier.limiter.peers import alone, by_dns
from kvtier.limiter.tier import Tiers
from kvtier.reconcile.clock import Clock, SystemClock

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Options:
    """``listen`` is HOST:PORT, ``peers`` a name that has the addresses of all replicas and their
    port, None for a replica that is alone. No ``namespaces`` mean all. ``prometheus`` is a URL that
    is asked for engines' figures, None to ask engines. ``drain``: seconds of answers after SIGTERM.
    """

    listen: str
    replica: str
    peers: tuple[str, int] | None = None
    namespaces: tuple[str, ...] = ()
    prometheus: str | None = None
    drain: float = DRAIN_SECONDS


class Observing(Protocol):
    """What keeps ``tiers`` up to date."""

    @property
    def tiers(self) -> Tiers: ...

    def listed(self) -> bool:
        """Whether all tiers have been listed once."""

    async def run(self, stop: asyncio.Event) -> None:
        """Look until ``stop`` is set."""


def without_garbage() -> None:
    """Let the collector pass over what is there for good: libraries are more than all requests."""
    gc.collect()
    gc.freeze()


Observe = Callable[[Options, Clock], AbstractAsyncContextManager[Observing]]


async def run_limiter(options: Options, *, observe: Observe) -> int:
    """Serve until SIGTERM or SIGINT, and return 0; 1 if the half that looks has ended.

    Raises OSError if the address cannot be had, and what ``observe`` raises. While nothing can be
    looked at, gateways are answered yes.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    clock = SystemClock()
    async with observe(options, clock) as observer:
        looking = asyncio.create_task(observer.run(looked := asyncio.Event()))
        looking.add_done_callback(lambda _: stop.set())
        try:
            async with serving(
                listen=options.listen,
                replica=options.replica,
                tiers=observer.tiers,
                clock=clock,
                resolve=by_dns(*options.peers) if options.peers is not None else alone,
                watching=observer.listed,
                drain=options.drain,
            ):
                log.info("kvtier %s limiter", __version__)
                without_garbage()
                await stop.wait()
                failed = looking.done()
                if failed:
                    log.error("looking at tiers has ended", exc_info=looking.exception())
        finally:
            looked.set()
            await asyncio.gather(looking, return_exceptions=True)
    return 1 if failed else 0
