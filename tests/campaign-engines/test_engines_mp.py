"""Every row of the table with an LMCache server, on a real cluster, by the published Secret alone.

LMCache's own bench stores, looks up, loads and verifies through it; then its adapter is asked while
a rank is killed, hangs, is cut off with its node, and is fenced.
"""

import copy
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from time import monotonic, sleep
from typing import Any

import lmcache_bench as bench
import pytest
from adapter_driver import PROGRAM, Driver, driven
from engine_pod import Node, Pod, pod
from lmcache_environment import PROGRAM as LMCACHE
from vllm_tier import Users, fenced, kept, published

from certificates import Ca, secret
from livecluster.faults import Faults, stopped_processes
from livecluster.figures import write_row
from livecluster.fixtures import NewTier
from livecluster.installation import Installation
from livecluster.tier import Tier, merged
from livecluster.truth import ON_OTHER_NODES
from livecluster.waiting import eventually

CHUNKS, BYTES = 64, 65536
"""Of a lookup, and of a chunk on a rank."""
BENCH = bench.Work(chunks=16, chunk_bytes=BYTES, rounds=2)
LOOKUP_SECONDS = 1.0
"""Of a lookup from the second one on, with the plugin. No slack: it waits for nobody."""
FENCED_SECONDS = 0.05
BACK_SECONDS = 5.0
SLACK = 3.0
"""Of short times: the cluster and the tests share two cores."""
STORED_SECONDS = 60.0
LATER, PAUSE = 20, 0.1
TRIED = 16


@dataclass(frozen=True, slots=True)
class Row:
    """One combination with LMCache's servers."""

    striping: str
    adapter: str
    ranks: int
    tls: bool = False

    def __str__(self) -> str:
        tls = ", TLS" if self.tls else ""
        return f"{self.striping}, {self.adapter}, W = {self.ranks}{tls}"

    @property
    def plugin(self) -> bool:
        return self.adapter == "Plugin"


PLAIN = (
    Row("Shard", "Plugin", ranks=2),
    Row("Hash", "Plugin", ranks=2),
    Row("Shard", "Stock", ranks=2),
    Row("Hash", "Stock", ranks=1),
)
ROWS = (*PLAIN, *(replace(row, tls=True) for row in PLAIN))


@dataclass(frozen=True, slots=True)
class Ground:
    """A ready tier of a row, and an engine's pod that has its Secret."""

    row: Row
    tier: Tier
    users: Users
    faults: Faults
    containers: Pod
    adapters: list[dict[str, Any]]

    @property
    def last(self) -> int:
        """The rank that is lost."""
        return self.users.ranks[-1]

    @property
    def adapter(self) -> dict[str, Any]:
        """Of the LMCache server that has it."""
        return self.adapters[-1]

    @contextmanager
    def driver(self) -> Iterator[Driver]:
        command = self.containers.command(f"exec {self.containers.node.python} {PROGRAM}")
        environment = self.containers.environment
        with driven(command, home=self.containers.home, environment=environment) as found:
            yield found


@pytest.fixture(scope="module")
def ca() -> Ca:
    return Ca()


@pytest.fixture
def ground(
    request: pytest.FixtureRequest, new_tier: NewTier, node: Node, ca: Ca
) -> Iterator[Ground]:
    row: Row = request.param
    tier = new_tier("chat")
    pool = {"ranks": row.ranks, "striping": row.striping, "engine": {"adapter": row.adapter}}
    spec = merged(ON_OTHER_NODES, {"pool": pool})
    if row.tls:
        pair = ca.issue(f"*.{tier.namespace}.svc")
        tier.cluster.apply(secret("chat-tls", pair, ca=ca.pem, namespace=tier.namespace))
        spec = merged(spec, {"store": {"tls": {"secretName": "chat-tls"}}})
    tier.apply(spec)
    tier.wait_ready()
    files = published(tier)
    names = sorted(name for name in files if name.startswith("l2-adapter"))
    with pod(node, name="engine", files=files) as containers:
        yield Ground(
            row=row,
            tier=tier,
            users=Users(tier, ca=ca.pem if row.tls else None),
            faults=Faults(tier.cluster),
            containers=containers,
            adapters=[json.loads(files[name]) for name in names],
        )


@pytest.mark.parametrize("ground", ROWS, indirect=True, ids=str)
def test_lmcache_s_own_bench_stores_finds_loads_and_verifies(ground: Ground) -> None:
    program = f"""exec {ground.containers.node.python} -c '{LMCACHE}' "$0" "$@" """
    loads = bench.load(
        ground.containers.command(program),
        ground.adapters,
        BENCH,
        environment=ground.containers.environment,
    )
    assert len(loads) == (ground.row.ranks if ground.row.striping == "Shard" else 1)
    assert kept(ground.users) == len(loads) * BENCH.stored_bytes // BYTES


@pytest.mark.parametrize("ground", ROWS, indirect=True, ids=str)
def test_a_lost_rank_is_a_miss_or_the_stall_that_is_stated(
    ground: Ground, kvtier: Installation
) -> None:
    cells = [str(ground.row)]
    with ground.driver() as lmcache:
        lmcache.open(ground.adapter)
        stored(lmcache)
        found = lmcache.load(CHUNKS, chunk_bytes=BYTES)
        assert found["right"] == found["hits"] == CHUNKS
        cells.append(f"{1e3 * found['seconds']:.0f} ms")
        swapped_is_a_miss(ground, lmcache)
        cells += [seen(ground, lmcache, how) for how in (killed, hung, cut)]
        cells.append(fence(ground, lmcache, kvtier))
    write_row("engines.md", place="cluster-rows", row=cells)


@pytest.mark.parametrize(
    "ground", [row for row in ROWS if row.plugin and not row.tls], indirect=True, ids=str
)
def test_with_the_plugin_an_engine_starts_while_a_rank_is_down(ground: Ground) -> None:
    with ground.driver() as lmcache:
        # Only the first one imports torch.
        lmcache.open(ground.adapter)
        with hung(ground):
            assert lmcache.open(ground.adapter) < LOOKUP_SECONDS
            lmcache.lookup(CHUNKS)
            assert lmcache.lookup(CHUNKS)[0] < LOOKUP_SECONDS
        assert back(lmcache) < SLACK * BACK_SECONDS


def stored(lmcache: Driver) -> None:
    """All chunks. On a busy machine one of them may take longer than the timeout of a request."""
    eventually(
        lambda: lmcache.store(CHUNKS, chunk_bytes=BYTES),
        seconds=STORED_SECONDS,
        what=f"{CHUNKS} chunks are stored",
    )


def swapped_is_a_miss(ground: Ground, lmcache: Driver) -> None:
    """The last rank's prefix at another rank's address: the ACL there has no such key."""
    if ground.row.ranks == 1:
        return
    engine = ground.tier.engine()
    first, last = ground.users.ranks[0], ground.last
    other = engine.connection["ranks"][first]["host"]
    assert other != engine.connection["ranks"][last]["host"]
    swapped = copy.deepcopy(ground.adapter)
    if not ground.row.plugin:
        swapped["startup_nodes"] = f"{other}:{engine.connection['ranks'][first]['port']}"
    elif ground.row.striping == "Shard":
        swapped["adapter_params"]["ranks"][0]["host"] = other
    else:
        ranks = swapped["adapter_params"]["ranks"]
        ranks[0]["host"], ranks[1]["host"] = ranks[1]["host"], ranks[0]["host"]
    lmcache.open(swapped)
    assert lmcache.lookup(CHUNKS)[1] == 0
    lmcache.open(ground.adapter)
    assert lmcache.lookup(CHUNKS)[1] == CHUNKS


def seen(
    ground: Ground, lmcache: Driver, how: Callable[[Ground], AbstractContextManager[None]]
) -> str:
    """Lookups while the rank is lost, and until what is stored is found again."""
    with how(ground):
        first, _ = lmcache.lookup(CHUNKS)
        later = []
        for _ in range(LATER if ground.row.plugin else 1):
            sleep(PAUSE)
            later.append(lmcache.lookup(CHUNKS)[0])
    ground.tier.wait_ready()
    seconds = back(lmcache)
    if ground.row.plugin:
        assert max(later) < LOOKUP_SECONDS, (how.__name__, first, later)
        assert seconds < SLACK * BACK_SECONDS, (how.__name__, seconds)
    else:
        settings = ground.adapter
        stall = -(-CHUNKS // settings["num_workers"]) * settings["request_timeout"]
        # A server that was killed may be there again before LMCache has given up.
        assert how is killed or max(later) > 0.9 * stall, (how.__name__, later, stall)
    return f"{first:.2f} s, {max(later):.2f} s, {seconds:.1f} s"


def fence(ground: Ground, lmcache: Driver, kvtier: Installation) -> str:
    # The controller would lift it.
    (controller,) = kvtier.pod()["status"]["containerStatuses"]
    with (
        stopped_processes(ground.faults.container_pids(controller["containerID"])),
        fenced(ground.users),
    ):
        seconds, hits = min(lmcache.lookup(CHUNKS) for _ in range(3))
    assert hits == 0
    assert seconds < SLACK * FENCED_SECONDS
    return f"{1e3 * seconds:.0f} ms"


@contextmanager
def killed(ground: Ground) -> Iterator[None]:
    rank = ground.last
    before = ground.tier.containers()[rank]
    os.kill(ground.faults.server_pid(before), signal.SIGKILL)
    yield
    eventually(
        lambda: ground.tier.containers().get(rank, before) != before,
        seconds=60,
        what=f"rank {rank} runs in another container",
    )


def hung(ground: Ground) -> AbstractContextManager[None]:
    return stopped_processes([ground.faults.server_pid(ground.tier.containers()[ground.last])])


def cut(ground: Ground) -> AbstractContextManager[None]:
    """No packet reaches the rank's node, or leaves it."""
    return ground.faults.cut_node(ground.tier.pods()[ground.last]["spec"]["nodeName"])


def back(lmcache: Driver) -> float:
    """Seconds from now until what is stored is found again."""
    begun, first = monotonic(), CHUNKS
    while monotonic() < begun + 10 * BACK_SECONDS:
        lmcache.store(TRIED, first=first, chunk_bytes=BYTES)
        if lmcache.lookup(TRIED, first=first)[1] == TRIED:
            lmcache.store(CHUNKS, chunk_bytes=BYTES)
            return monotonic() - begun
        first += TRIED
        sleep(PAUSE)
    return monotonic() - begun
