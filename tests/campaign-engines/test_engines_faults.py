"""What an engine sees of a rank that is lost, through LMCache's own adapter as a tier publishes it.

Stock LMCache stalls: how long is measured, and compared with what NOTICE says.
"""

import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import lmcache_server
import pytest
from adapter_driver import Driver, driver
from faulty_rank import Rank, at, record_of

from kvtier.api.load import load_file
from kvtier.api.types import KVCacheTier
from kvtier.render.engine import engine_files
from livecluster.cluster import CHECKOUT
from livecluster.figures import write_row

SAMPLE = CHECKOUT / "deploy" / "samples" / "llama-3.1-70b.yaml"
CHUNKS = 64
"""Of 16k tokens."""
BYTES = 4096
"""Of a chunk: what is asked of a lost rank does not depend on it."""
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="iptables needs root")
BACK_SECONDS = 15.0
FENCED_SECONDS = 0.05
SLACK = 3
"""Of short times: tests share CPUs."""


@dataclass(frozen=True, slots=True)
class Stock:
    """As the sample publishes it for so many engines; ``timeout`` in place of what it publishes."""

    max_engines: int
    timeout: float | None = None

    def __str__(self) -> str:
        return f"{self.max_engines}-engines-{self.timeout or 'published'}"


FEW, MANY, DEFAULTS = Stock(1), Stock(8), Stock(1, timeout=5.0)
"""A tier for one engine, one for eight, and LMCache's own timeout."""
LOST = (
    *(("killed", FEW), ("hung", FEW)),
    pytest.param("blackholed", FEW, marks=ROOT_ONLY),
    *(("killed", MANY), ("killed", DEFAULTS)),
)


@dataclass(slots=True)
class Shard:
    """Rank 0 of the sample's tier, and what its LMCache server is given."""

    rank: Rank
    adapter: dict[str, Any]
    arguments: str
    home: Path


@pytest.fixture
def shard(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shard]:
    case: Stock = request.param
    tier = load_file(str(SAMPLE))
    pool = tier.spec.pool.model_copy(update={"max_engines": case.max_engines})
    tier = tier.model_copy(update={"spec": tier.spec.model_copy(update={"pool": pool})})
    with _rank_0(tier, home=tmp_path) as found:
        if case.timeout is not None:
            found.adapter["request_timeout"] = case.timeout
        yield found


@contextmanager
def _rank_0(tier: KVCacheTier, *, home: Path) -> Iterator[Shard]:
    record = record_of(tier)
    files = engine_files(tier, record)
    with Rank(tier, record, rank=0, home=home) as rank:
        adapter = at(json.loads(files["l2-adapter-r0.json"]), rank)
        yield Shard(rank, adapter, files["server-args-r0"], home)


@pytest.mark.parametrize(("how", "shard"), LOST, indirect=["shard"], ids=str)
def test_a_lost_rank_stalls_stock_lmcache_for_as_long_as_the_notice_says(
    program: list[str], shard: Shard, how: str
) -> None:
    workers, timeout = shard.adapter["num_workers"], shard.adapter["request_timeout"]
    stall = ceil(CHUNKS / workers) * timeout
    with driver(program, home=shard.home) as lmcache:
        lmcache.open(shard.adapter)
        assert lmcache.store(CHUNKS, chunk_bytes=BYTES)
        live, hits = lmcache.lookup(CHUNKS)
        assert hits == CHUNKS
        with _lost(shard.rank, how):
            first, nothing = lmcache.lookup(CHUNKS)
            second, _ = lmcache.lookup(CHUNKS)
        back = _back(lmcache)
    row = (
        f"{how}, {workers} workers, {timeout:g} s",
        f"{1e3 * live:.0f} ms",
        *(f"{first:.2f} s", f"{second:.2f} s", f"{stall:.2f} s"),
        f"{back:.1f} s",
    )
    write_row("engines.md", place="stock-faults", row=row)
    assert nothing == 0
    for each in (first, second):
        assert 0.9 * stall < each < 1.1 * stall + 1, row
    assert back < BACK_SECONDS, row


@pytest.mark.parametrize("shard", [FEW], indirect=True, ids=str)
def test_a_fence_is_a_miss_at_once(program: list[str], shard: Shard) -> None:
    with driver(program, home=shard.home) as lmcache:
        lmcache.open(shard.adapter)
        assert lmcache.store(CHUNKS, chunk_bytes=BYTES)
        shard.rank.forbid()
        seconds, hits = min(lmcache.lookup(CHUNKS) for _ in range(3))
        stored = lmcache.store(1, first=CHUNKS, chunk_bytes=BYTES)
    assert hits == 0
    assert not stored
    row = ("`resetkeys` on the engine's user", f"{CHUNKS} misses in {1e3 * seconds:.0f} ms")
    write_row("engines.md", place="stock-starts", row=row)
    assert seconds < SLACK * FENCED_SECONDS


@pytest.mark.parametrize(
    "how", ["killed", "hung", pytest.param("blackholed", marks=ROOT_ONLY)], ids=str
)
@pytest.mark.parametrize("shard", [FEW], indirect=True, ids=str)
def test_stock_lmcache_s_server_does_not_start_while_its_rank_is_lost(
    program: list[str], shard: Shard, how: str
) -> None:
    with _lost(shard.rank, how):
        exited = lmcache_server.exit_of(
            program, arguments=shard.arguments, adapter=shard.adapter, home=shard.home
        )
    assert exited is not None
    row = (
        f"`lmcache server` started while its rank is {how}",
        f"exits with {exited.code} after {exited.seconds:.1f} s",
    )
    write_row("engines.md", place="stock-starts", row=row)
    assert exited.code == 3, exited


def _lost(rank: Rank, how: str) -> AbstractContextManager[None]:
    return {"killed": _killed, "hung": Rank.hung, "blackholed": Rank.blackholed}[how](rank)


@contextmanager
def _killed(rank: Rank) -> Iterator[None]:
    """It comes back on the same address, empty."""
    rank.kill()
    try:
        yield
    finally:
        rank.start()


def _back(lmcache: Driver) -> float:
    """Seconds from now until what is stored is found again."""
    begun, first = monotonic(), CHUNKS
    while monotonic() < begun + SLACK * BACK_SECONDS:
        lmcache.store(4, first=first, chunk_bytes=BYTES)
        if lmcache.lookup(4, first=first)[1] == 4:
            return monotonic() - begun
        first += 4
        sleep(0.05)
    return monotonic() - begun
