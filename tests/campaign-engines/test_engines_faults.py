"""What an engine sees of a rank that is lost, through LMCache's own adapter as a tier publishes it.

Stock LMCache stalls: how long is measured, and compared with what NOTICE says.
"""

import copy
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import lmcache_server
import pytest
from adapter_driver import Driver, driver
from adapter_program import chunk_hash
from faulty_rank import HOST, HOW, Rank, at, lost, record_of

from kvtier.api.load import load_file
from kvtier.api.types import Adapter, KVCacheTier, Striping
from kvtier.breakeven.words import counted
from kvtier.generation.record import Record
from kvtier.render.engine import engine_binaries, engine_files
from kvtier.render.mount import Mount
from kvtier.render.plugin import ZIP_KEY
from livecluster.figures import write_row
from programs import CHECKOUT

SAMPLE = CHECKOUT / "deploy" / "samples" / "llama-3.1-70b.yaml"
CHUNKS = 64
"""Of 16k tokens."""
BYTES = 4096
"""Of a chunk: what is asked of a lost rank does not depend on it."""
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="iptables needs root")
BACK_SECONDS = 15.0
FENCED_SECONDS = 0.05
OPEN_SECONDS = 0.5
LOOKUP_SECONDS = 1.0
"""Of a lookup from the second one on, with the plugin: no slack, since it waits for nobody."""
PLUGIN_BACK_SECONDS = 5.0
SLACK = 3
"""Of short times: tests share CPUs."""
LATER, LATER_PAUSE = 30, 0.1
TRIED = 16
"""Chunks that tell whether every rank is back."""


@dataclass(frozen=True, slots=True)
class Stock:
    """As the sample publishes it for so many engines; ``timeout`` in place of what it publishes."""

    max_engines: int
    timeout: float | None = None

    def __str__(self) -> str:
        return f"{self.max_engines}-engines-{self.timeout or 'published'}"


FEW, MANY, DEFAULTS = Stock(1), Stock(8), Stock(1, timeout=5.0)
"""A tier for one engine, one for eight, and LMCache's own timeout."""
HOW_IT_IS_LOST = [pytest.param(how, marks=ROOT_ONLY if how == "blackholed" else ()) for how in HOW]
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
    tier = _sample(adapter=Adapter.STOCK, max_engines=case.max_engines)
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
        with lost(shard.rank, how):
            first, nothing = lmcache.lookup(CHUNKS)
            second, _ = lmcache.lookup(CHUNKS)
        back = _back(lmcache)
    row = (
        f"{how}, {counted(workers, 'worker')}, {timeout:g} s",
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


@pytest.mark.parametrize("how", HOW_IT_IS_LOST)
@pytest.mark.parametrize("shard", [FEW], indirect=True, ids=str)
def test_stock_lmcache_s_server_does_not_start_while_its_rank_is_lost(
    program: list[str], shard: Shard, how: str
) -> None:
    with lost(shard.rank, how):
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


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table that has the plugin, and how many ranks its adapter has."""

    striping: Striping
    ranks: int

    def __str__(self) -> str:
        return f"{self.striping.value}, W = {self.ranks}"


ROWS = (Row(Striping.SHARD, 1), Row(Striping.HASH, 1), Row(Striping.HASH, 2))


@dataclass(slots=True)
class Striped:
    """The ranks of a plugin's adapter, of which the last one is lost."""

    row: Row
    ranks: list[Rank]
    adapter: dict[str, Any]
    arguments: str
    home: Path

    @property
    def environment(self) -> dict[str, str]:
        """The plugin as the Secret has it."""
        return {"PYTHONPATH": str(self.home / ZIP_KEY)}

    @property
    def kept(self) -> int:
        """How many of CHUNKS are not on the rank that is lost."""
        holders = [int.from_bytes(chunk_hash(at), "big") % len(self.ranks) for at in range(CHUNKS)]
        return sum(holder != len(self.ranks) - 1 for holder in holders)


@pytest.fixture
def striped(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Striped]:
    row: Row = request.param
    tier = _plugin(ranks=row.ranks, striping=row.striping)
    record = record_of(tier)
    with ExitStack() as stack:
        ranks = []
        for number in range(row.ranks):
            home = tmp_path / f"r{number}"
            home.mkdir()
            ranks.append(stack.enter_context(Rank(tier, record, rank=number, home=home)))
        yield Striped(row, ranks, *_published(tier, record, ranks, home=tmp_path), tmp_path)


@pytest.mark.parametrize("how", HOW_IT_IS_LOST)
@pytest.mark.parametrize("striped", ROWS, indirect=True, ids=str)
def test_with_the_plugin_a_lost_rank_is_a_miss(
    program: list[str], striped: Striped, how: str
) -> None:
    with driver(program, home=striped.home, environment=striped.environment) as lmcache:
        lmcache.open(striped.adapter)
        assert lmcache.store(CHUNKS, chunk_bytes=BYTES)
        live, hits = lmcache.lookup(CHUNKS)
        assert hits == CHUNKS
        with lost(striped.ranks[-1], how):
            first, _ = lmcache.lookup(CHUNKS)
            begun = monotonic()
            while _breakers(lmcache)[-1] == "closed":
                assert monotonic() < begun + SLACK * OPEN_SECONDS
            opened = monotonic() - begun
            later = [lmcache.lookup(CHUNKS) for _ in range(LATER) if not sleep(LATER_PAUSE)]
            loaded = lmcache.load(CHUNKS, chunk_bytes=BYTES)
        back = _back(lmcache)
    slowest = max(seconds for seconds, _ in later)
    row = (
        f"{striped.row}, {how}",
        f"{1e3 * live:.0f} ms",
        *(f"{first:.2f} s", f"{1e3 * slowest:.0f} ms", f"{loaded['right']} of {CHUNKS}"),
        f"{back:.1f} s",
    )
    write_row("engines.md", place="plugin-faults", row=row)
    assert {hits for _, hits in later} == {striped.kept}
    assert loaded["hits"] == loaded["right"] == striped.kept
    assert slowest < LOOKUP_SECONDS, row
    assert opened < SLACK * OPEN_SECONDS
    assert back < SLACK * PLUGIN_BACK_SECONDS, row


@pytest.mark.parametrize("how", HOW_IT_IS_LOST)
@pytest.mark.parametrize("striped", [ROWS[0], ROWS[-1]], indirect=True, ids=str)
def test_with_the_plugin_the_server_starts_while_a_rank_is_lost(
    program: list[str], striped: Striped, how: str
) -> None:
    given = {"arguments": striped.arguments, "adapter": striped.adapter, "home": striped.home}
    with (
        lost(striped.ranks[-1], how),
        lmcache_server.running(program, **given, environment=striped.environment) as server,
    ):
        token = (striped.home / "token").read_text().strip()
        assert token not in json.dumps(server.get("/config"))
        assert token not in Path(f"/proc/{server.pid}/cmdline").read_bytes().decode()
        write_row(
            "engines.md",
            place="plugin-starts",
            row=(
                f"{striped.row}: `lmcache server` started while a rank is {how}",
                f"healthy after {server.start_seconds:.1f} s",
            ),
        )


@pytest.mark.parametrize("striped", [ROWS[0], ROWS[-1]], indirect=True, ids=str)
def test_with_the_plugin_a_fence_is_a_miss_at_once_and_no_breaker_opens(
    program: list[str], striped: Striped
) -> None:
    with driver(program, home=striped.home, environment=striped.environment) as lmcache:
        lmcache.open(striped.adapter)
        assert lmcache.store(CHUNKS, chunk_bytes=BYTES)
        for rank in striped.ranks:
            rank.forbid()
        seconds, hits = min(lmcache.lookup(CHUNKS) for _ in range(3))
        assert set(_breakers(lmcache)) == {"closed"}
    assert hits == 0
    row = (
        f"{striped.row}: `resetkeys` on the engine's user",
        f"{CHUNKS} misses in {1e3 * seconds:.0f} ms",
    )
    write_row("engines.md", place="plugin-starts", row=row)
    assert seconds < SLACK * FENCED_SECONDS


@pytest.mark.parametrize("striped", [ROWS[-1]], indirect=True, ids=str)
def test_with_the_plugin_a_swapped_rank_is_a_miss(program: list[str], striped: Striped) -> None:
    swapped = copy.deepcopy(striped.adapter)
    first, second = swapped["adapter_params"]["ranks"]
    first["port"], second["port"] = second["port"], first["port"]
    with driver(program, home=striped.home, environment=striped.environment) as lmcache:
        lmcache.open(striped.adapter)
        assert lmcache.store(CHUNKS, chunk_bytes=BYTES)
        lmcache.open(swapped)
        assert lmcache.lookup(CHUNKS)[1] == 0
        lmcache.open(striped.adapter)
        assert lmcache.lookup(CHUNKS)[1] == CHUNKS


def _plugin(*, ranks: int, striping: Striping) -> KVCacheTier:
    """Without a declared link: then no hit is too short to be one."""
    tier = _sample(adapter=Adapter.PLUGIN, ranks=ranks, striping=striping, max_engines=1)
    placement = tier.spec.placement.model_copy(update={"links": ()})
    return tier.model_copy(update={"spec": tier.spec.model_copy(update={"placement": placement})})


def _sample(*, adapter: Adapter, **pool: Any) -> KVCacheTier:
    """The sample with another adapter and these fields of ``spec.pool``."""
    tier = load_file(str(SAMPLE))
    engine = tier.spec.pool.engine.model_copy(update={"adapter": adapter})
    changed = tier.spec.pool.model_copy(update={"engine": engine, **pool})
    return tier.model_copy(update={"spec": tier.spec.model_copy(update={"pool": changed})})


def _published(
    tier: KVCacheTier, record: Record, ranks: list[Rank], *, home: Path
) -> tuple[dict[str, Any], str]:
    """The adapter and the server's arguments; the Secret's files are where a mount has them."""
    mount = Mount(str(home), tuple((HOST, rank.port) for rank in ranks))
    files = engine_files(tier, record, mount=mount)
    for name, text in files.items():
        (home / name).write_text(text)
    for name, content in engine_binaries(tier.spec).items():
        (home / name).write_bytes(content)
    suffix = "" if "server-args" in files else "-r0"
    return json.loads(files[f"l2-adapter{suffix}.json"]), files[f"server-args{suffix}"]


def _breakers(lmcache: Driver) -> list[str]:
    return [each["breaker"] for each in lmcache.ask("status")["status"]["ranks"]]


def _back(lmcache: Driver) -> float:
    """Seconds from now until what is stored is found again."""
    begun, first = monotonic(), CHUNKS
    while monotonic() < begun + SLACK * BACK_SECONDS:
        lmcache.store(TRIED, first=first, chunk_bytes=BYTES)
        if lmcache.lookup(TRIED, first=first)[1] == TRIED:
            return monotonic() - begun
        first += TRIED
        sleep(0.05)
    return monotonic() - begun
