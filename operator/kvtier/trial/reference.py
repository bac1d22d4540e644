"""The reference fetch: one prompt's chunks, stored and read back as an engine does."""

import secrets
import statistics
import threading
import time
from dataclasses import dataclass
from typing import Final

from kvtier.loadtest.connection import Connection
from kvtier.loadtest.keys import chunk_hashes
from kvtier.loadtest.measures import RankMeasures
from kvtier.loadtest.objects import flat, objects
from kvtier.loadtest.rank import Budget, Rank, connect_seconds
from kvtier.loadtest.workload import Workload, prompt

MOST_BYTES: Final = 256 << 20
MOST_CHUNKS: Final = 16
"""What every rank has room for."""
FETCHES: Final = 3
POLL_SECONDS: Final = 0.02


@dataclass(frozen=True, slots=True)
class Fetched:
    """One prompt's hit of ``tokens``: ``byte_count`` read and compared in ``seconds``, the median
    of ``FETCHES``. ``wrong`` is None if every byte was right, else one line."""

    tokens: int
    chunks: int
    byte_count: int
    seconds: float
    wrong: str | None


def chunks_to_fetch(chunk_bytes: int) -> int:
    """As many as a few hundred megabytes are, at least one."""
    return max(1, min(MOST_CHUNKS, MOST_BYTES // chunk_bytes))


def fetch(connection: Connection, *, stop: threading.Event) -> Fetched | None:
    """Store a prompt and fetch it, all ranks at once, on the engine's own connections.

    None once ``stop`` is set. Every byte is compared as it comes, which is part of the time.
    """
    chunks = chunks_to_fetch(connection.chunk_bytes)
    tokens = chunks * connection.chunk_tokens
    workload = Workload(rate=1, prompt_tokens=tokens, prefixes=1, prefix_tokens=0, seed=0)
    ids = prompt(workload, prefix=0, unique=secrets.token_hex(8))
    keys = objects(connection, chunk_hashes(ids, chunk_tokens=connection.chunk_tokens))
    budget = Budget((FETCHES + 2) * chunks * connection.chunk_bytes)
    ranks = [
        Rank(connection, address, writer="kvtier try", budget=budget)
        for address in connection.ranks
    ]
    try:
        for rank in ranks:
            rank.start()
        last = time.monotonic() + connect_seconds(connection)
        while time.monotonic() < last and not all(rank.tried for rank in ranks):
            if stop.wait(POLL_SECONDS):
                return None
        wanted = [flat(held) for held in keys]
        _all(ranks, [rank.store(mine) for rank, mine in zip(ranks, wanted, strict=True)])
        times: list[float] = []
        right = True
        while right and len(times) < FETCHES:
            if stop.is_set():
                return None
            begin = time.monotonic()
            got = _all(ranks, [rank.fetch(mine) for rank, mine in zip(ranks, wanted, strict=True)])
            times.append(time.monotonic() - begin)
            right = got == [set(mine) for mine in wanted]
        return Fetched(
            tokens=tokens,
            chunks=chunks,
            byte_count=sum(len(mine) for mine in wanted) * connection.object_bytes,
            seconds=statistics.median(times),
            wrong=None if right else _wrong(ranks),
        )
    finally:
        for rank in ranks:
            rank.end()
        for rank in ranks:
            rank.close(deadline=time.monotonic() + 1.0)


def _all(ranks: list[Rank], jobs: list[list]) -> list[set[bytes]]:  # type: ignore[type-arg]
    return [rank.settle(mine) for rank, mine in zip(ranks, jobs, strict=True)]


def _wrong(ranks: list[Rank]) -> str:
    for rank in ranks:
        for outage in rank.outages():
            return f"rank {outage.rank}: {outage.reason}"
    found: list[RankMeasures] = [rank.measures() for rank in ranks]
    corrupt = sum(each.corrupt + each.foreign + each.stale for each in found)
    return f"{corrupt} values were wrong" if corrupt else "not every chunk was there"
