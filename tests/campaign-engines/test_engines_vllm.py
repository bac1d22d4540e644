"""A real vLLM gets a prefix back from the tier: a fresh engine and servers, equal tokens.

It has two layers and random weights and runs on the CPU, with a worker for each rank of the tier.
All that it is given of kvtier are the files of the published Secret.
"""

import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import pytest
import vllm_engine as vllm
from engine_pod import Node
from vllm_tier import (
    CHUNK,
    CHUNKS,
    PROMPTS,
    WARM,
    Row,
    Users,
    fenced,
    kept,
    looked_up,
    published,
    started,
)

from certificates import Ca
from livecluster.cluster import LiveCluster
from livecluster.faults import Faults, stopped_processes
from livecluster.figures import write_row
from livecluster.fixtures import NewTier
from livecluster.installation import Installation
from livecluster.tier import Tier
from livecluster.waiting import eventually

SLACK = 3.0
"""Of a second that a lookup may take beside a dead rank, on a machine that others use."""
STORED_SECONDS = 60.0
HITS, FENCED, MENDED, HUNG, AFTER, KILLED = (
    PROMPTS[:3], PROMPTS[3], PROMPTS[4], PROMPTS[5:7], PROMPTS[7], PROMPTS[8],
)  # fmt: skip


ROWS = (
    Row("MP, Shard, plugin", {"striping": "Shard"}, servers=2),
    Row("MP, Hash, plugin, TLS", {"striping": "Hash"}, tls=True, servers=1),
    Row(
        "MP, Shard, stock",
        {"striping": "Shard", "engine": {"adapter": "Stock"}},
        plugin=False,
        servers=2,
    ),
)

IN_PROCESS = Row(
    "in process, Shard, plugin",
    {"striping": "Shard", "engine": {"connector": "LMCacheInProcess"}},
    tensor=1,
)
NO_CPU = "No supported cpu connector found"
"""What LMCache 0.5.6 says within vLLM's workers on a CPU, and goes on without a cache."""


@pytest.fixture(scope="module")
def ca() -> Ca:
    return Ca()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_fresh_engine_has_the_prefix_from_the_tier(
    new_tier: NewTier,
    live: LiveCluster,
    kvtier: Installation,
    node: Node,
    models: Callable[[int], Path],
    expected: list[tuple[int, ...]],
    ca: Ca,
    row: Row,
) -> None:
    tier = started(new_tier, row, ca=ca)
    files, users = published(tier), Users(tier, ca=ca.pem if row.tls else None)
    with vllm.running(node, model=models(1), name="first", files=files, tensor=row.tensor) as first:
        first.ask(WARM)
        stored = [first.ask(each) for each in PROMPTS]
        assert first.hit_tokens() == 0
        wanted = row.tensor * CHUNKS * (1 + len(PROMPTS))
        eventually(
            lambda: kept(users) == wanted,
            seconds=STORED_SECONDS,
            what=f"{wanted} objects are stored",
            detail=lambda: (kept(users), first.said()),
        )
    assert [each.tokens for each in stored] == expected
    recompute = median(each.seconds for each in stored)
    before = looked_up(users)
    with vllm.running(node, model=models(1), name="fresh", files=files, tensor=row.tensor) as fresh:
        # The plugin connects at the first lookup, and lets nobody wait for that.
        fresh.ask(WARM)
        hits = fresh.hit_tokens()
        found = [fresh.ask(each) for each in HITS]
        assert [each.tokens for each in found] == expected[: len(HITS)]
        assert fresh.hit_tokens() - hits == len(HITS) * CHUNKS * CHUNK, fresh.said()
        assert len(fresh.servers) == row.servers
        assert all(each >= len(HITS) * CHUNKS * CHUNK for each in fresh.tier_tokens())
        assert all(now > then for now, then in zip(looked_up(users), before, strict=True))
        with_fence(fresh, users, live=live, kvtier=kvtier, expected=expected)
        hung, killed = with_a_rank_lost(fresh, tier, users, live=live, expected=expected)
    if row.plugin:
        assert hung[1] < recompute + SLACK, (hung, recompute)
        assert killed < recompute + SLACK, (killed, recompute)
    cells = [median(each.seconds for each in found), *hung, killed]
    write_row(
        "engines.md",
        place="vllm",
        row=(row.name, f"{recompute:.2f} s", *(f"{each:.2f} s" for each in cells)),
    )


def with_fence(
    engine: vllm.Engine,
    users: Users,
    *,
    live: LiveCluster,
    kvtier: Installation,
    expected: Sequence[tuple[int, ...]],
) -> None:
    """No key for the engine's user: a miss, with equal tokens; and hits again once it is lifted."""
    # The controller would lift it.
    (controller,) = kvtier.pod()["status"]["containerStatuses"]
    hits = engine.hit_tokens()
    with (
        stopped_processes(Faults(live).container_pids(controller["containerID"])),
        fenced(users),
    ):
        assert engine.ask(FENCED).tokens == expected[PROMPTS.index(FENCED)]
        assert engine.hit_tokens() == hits, engine.said()
    assert engine.ask(MENDED).tokens == expected[PROMPTS.index(MENDED)]
    assert engine.hit_tokens() == hits + CHUNKS * CHUNK, engine.said()


def with_a_rank_lost(
    engine: vllm.Engine,
    tier: Tier,
    users: Users,
    *,
    live: LiveCluster,
    expected: Sequence[tuple[int, ...]],
) -> tuple[list[float], float]:
    """The last rank hangs, then is killed under the running engine: equal tokens.

    Returns seconds of two requests while it hangs, and of one after it was killed.
    """
    faults, last = Faults(live), users.ranks[-1]
    with stopped_processes([faults.server_pid(tier.containers()[last])]):
        found = [engine.ask(each) for each in HUNG]
    assert [each.tokens for each in found] == [expected[PROMPTS.index(each)] for each in HUNG]
    tier.wait_ready()
    os.kill(faults.server_pid(tier.containers()[last]), signal.SIGKILL)
    killed = engine.ask(KILLED)
    assert killed.tokens == expected[PROMPTS.index(KILLED)]
    tier.wait_ready()
    assert engine.ask(AFTER).tokens == expected[PROMPTS.index(AFTER)]
    return [each.seconds for each in found], killed.seconds


def test_in_process_an_engine_on_a_cpu_answers_and_caches_nothing(
    new_tier: NewTier,
    node: Node,
    models: Callable[[int], Path],
    expected: list[tuple[int, ...]],
) -> None:
    """LMCache reads its file and has no part for this device: this row needs a GPU to be shown."""
    tier = started(new_tier, IN_PROCESS)
    files, users = published(tier), Users(tier, ca=None)
    with vllm.running(node, model=models(1), name="inside", files=files) as engine:
        engine.ask(WARM)
        assert engine.ask(PROMPTS[0]).tokens == expected[0]
        assert NO_CPU in engine.vllm.said()
        assert kept(users) == 0


def test_vllm_refuses_a_load_failure_policy_that_it_does_not_know(
    node: Node,
) -> None:
    """So that what it accepts of the Secret it has read."""
    script = "import sys; from vllm.config import KVTransferConfig as C; C(**eval(sys.argv[1]))"
    for policy, accepted in (("recompute", True), ("fail", True), ("Recompute", False)):
        config = {"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both"}
        config["kv_load_failure_policy"] = policy
        done = subprocess.run(
            [node.python, "-c", script, repr(config)], capture_output=True, text=True, check=False
        )
        assert (done.returncode == 0) == accepted, done.stderr
        assert accepted or "kv_load_failure_policy" in done.stderr
