"""The limiter's process: gates, peers and HTTP, over whatever watches the tiers."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web

from kvtier.limiter.connection import Server
from kvtier.limiter.gates import Gates
from kvtier.limiter.metrics import registry_of
from kvtier.limiter.peers import Peers, Resolve, alone
from kvtier.limiter.server import Handler
from kvtier.limiter.tier import Tiers
from kvtier.reconcile.clock import Clock

log = logging.getLogger(__name__)

DRAIN_SECONDS = 5.0
"""For so long all is answered after /readyz has failed: gateways hear of it by the API server."""
SHUTDOWN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Served:
    """A limiter that serves. ``port`` is the one it got."""

    port: int
    gates: Gates
    peers: Peers


@asynccontextmanager
async def serving(
    *,
    listen: str,
    replica: str,
    tiers: Tiers,
    clock: Clock,
    resolve: Resolve = alone,
    watching: Callable[[], bool] = lambda: True,
    drain: float = DRAIN_SECONDS,
) -> AsyncIterator[Served]:
    """Serve on ``listen`` (HOST:PORT) until the block ends, then fail /readyz and answer for
    ``drain`` seconds more. ``clock`` is the one that ``tiers`` has its times of; ``watching`` says
    whether tiers have been listed. Raises OSError if the address cannot be had.
    """
    gates = Gates(tiers, clock=clock.monotonic)
    peers = Peers(gates, resolve=resolve, replica=replica)

    def not_ready() -> str | None:
        if handler.stopping:
            return "stopping"
        if not watching():
            return "tiers are not listed yet"
        return None if peers.first_round.is_set() else "peers are not asked yet"

    registry = registry_of(gates, failures=lambda: peers.failures)
    handler = Handler(gates, peers, registry, not_ready=not_ready)
    runner = web.ServerRunner(Server(handler), shutdown_timeout=SHUTDOWN_SECONDS)
    await runner.setup()
    stop = asyncio.Event()
    exchanging = asyncio.create_task(peers.run(stop))
    try:
        host, _, port = listen.rpartition(":")
        await web.TCPSite(runner, host.strip("[]") or None, int(port)).start()
        yield Served(port=runner.addresses[0][1], gates=gates, peers=peers)
        handler.stopping = True
        log.info("stopping in %.0f s", drain)
        await clock.wait(asyncio.Event(), drain)
    finally:
        handler.stopping = True
        await runner.cleanup()
        stop.set()
        await asyncio.gather(exchanging, return_exceptions=True)
