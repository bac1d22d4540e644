"""How an engine's connections to the ranks are set, so that a dead rank is a short stall."""

from dataclasses import dataclass
from math import ceil

from kvtier.api.types import Connector, KVCacheTierSpec
from kvtier.breakeven.footprint import chunk_bytes_per_rank, object_bytes
from kvtier.breakeven.tier import farthest_link
from kvtier.render.memory import WORKERS

DEFAULT_BITS_PER_SECOND = 25e9
"""Assumed where no link is declared."""
MIN_TIMEOUT = 0.25
MAX_TIMEOUT = 1.0
MARGIN = 4


@dataclass(frozen=True, slots=True)
class Transport:
    """``workers`` connections of one engine to one rank; ``request_timeout`` in seconds.

    ``bytes_per_second`` is one rank's share of the link that was assumed, ``link`` its name (None:
    no link is declared). ``fits`` is False where the timeout is above a second even with one
    worker: the link is too slow for this pool.
    """

    workers: int
    request_timeout: float
    bytes_per_second: float
    link: str | None
    fits: bool

    def stall(self, chunks: int) -> float:
        """Seconds that a lookup or load of ``chunks`` chunks waits for a rank that is dead with
        the stock adapter: LMCache gives up on one batch of ``workers`` after another."""
        return ceil(chunks / self.workers) * self.request_timeout


def bytes_at_once(spec: KVCacheTierSpec) -> int:
    """What one engine moves at once with one rank by one connection of each process that has one.

    An LMCache server moves one object. In process every worker has connections of its own, and
    together they move a chunk. Of other clients the same is assumed.
    """
    if spec.pool.engine.connector is Connector.LMCACHE_MP:
        return object_bytes(spec)
    return chunk_bytes_per_rank(spec)


def transport(spec: KVCacheTierSpec) -> Transport:
    """Workers and timeout of an engine's connections.

    The timeout is 4 x the time in which one full batch in flight (bytes at once x workers x
    maxEngines) crosses one rank's share of the declared link, at least 0.25 s. Where that passes
    1 s, workers come down until it does not, or there is one left.
    """
    # Ranks may run outside of placement.within: the timeout must hold for them too.
    link = farthest_link(spec)
    rate = link.bytes_per_second if link else DEFAULT_BITS_PER_SECOND / 8
    share = rate / spec.pool.ranks
    one = MARGIN * bytes_at_once(spec) * spec.pool.max_engines / share
    workers = min(WORKERS, max(1, int(MAX_TIMEOUT / one)))
    return Transport(
        workers=workers,
        # Up to the next hundredth, as a person writes it; float noise is no hundredth.
        request_timeout=max(MIN_TIMEOUT, ceil(round(100 * one * workers, 6)) / 100),
        bytes_per_second=share,
        link=link.domain if link else None,
        fits=one <= MAX_TIMEOUT,
    )
