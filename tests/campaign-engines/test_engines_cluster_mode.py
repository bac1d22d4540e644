"""What LMCache's cluster mode needs and costs. kvtier makes no Valkey Cluster: this is why."""

import os
from math import ceil
from pathlib import Path
from typing import Any

import pytest
import valkey_cluster
from adapter_driver import Refused, driver

from kvtier.generation.acl import ENGINE_COMMANDS
from livecluster.figures import write_row

CHUNKS, WORKERS, TIMEOUT = 64, 8, 1.0
BYTES = 4096
TOKEN = "token"
ENGINE = f"user {TOKEN} reset on >{TOKEN} ~kvt@* " + " ".join(
    f"+{each}" for each in ENGINE_COMMANDS
)


def adapter(cluster: valkey_cluster.Cluster) -> dict[str, Any]:
    return {
        "type": "valkey",
        "cluster_mode": True,
        "startup_nodes": cluster.startup_nodes,
        "username": TOKEN,
        "password": TOKEN,
        "key_prefix": "kvt",
        "num_workers": WORKERS,
        "request_timeout": TIMEOUT,
        "connection_timeout": 5.0,
        "max_capacity_gb": 0,
    }


def record(what: str, found: str) -> None:
    write_row("upstream.md", place="cluster-mode", row=(what, found))


def test_an_engine_needs_to_see_the_slots(program: list[str], tmp_path: Path) -> None:
    with (
        valkey_cluster.running(home=tmp_path, user=ENGINE, full_coverage=True) as cluster,
        driver(program, home=tmp_path) as lmcache,
    ):
        with pytest.raises(Refused) as refused:
            lmcache.open(adapter(cluster))
        for node in cluster.nodes:
            valkey_cluster.allow(node, TOKEN, "+cluster|slots")
        lmcache.open(adapter(cluster))
        assert lmcache.store(CHUNKS, chunk_bytes=BYTES)
        seconds, hits = lmcache.lookup(CHUNKS)
        assert hits == CHUNKS
    assert "cluster" in str(refused.value).lower() or "NOPERM" in str(refused.value)
    record("an engine's commands", "refused; with `+cluster\\|slots` besides: connected")
    record("all primaries live", f"{hits} hits in {1e3 * seconds:.0f} ms")


@pytest.mark.parametrize("full_coverage", [False, True], ids=["part", "full"])
def test_a_dead_primary_is_a_stall_and_with_full_coverage_an_outage(
    program: list[str], tmp_path: Path, full_coverage: bool
) -> None:
    load = os.getloadavg()[0]
    user = f"{ENGINE} +cluster|slots"
    with (
        valkey_cluster.running(home=tmp_path, user=user, full_coverage=full_coverage) as cluster,
        driver(program, home=tmp_path) as lmcache,
    ):
        lmcache.open(adapter(cluster))
        assert lmcache.store(CHUNKS, chunk_bytes=BYTES)
        cluster.kill(0)
        first = lmcache.lookup(CHUNKS)
        valkey_cluster.wait_failed(cluster.nodes[1])
        later = lmcache.lookup(CHUNKS)
        reopened = lmcache.open(adapter(cluster))
        again = lmcache.lookup(CHUNKS)
    coverage = "yes, the default" if full_coverage else "no"
    record(
        f"one primary killed, `cluster-require-full-coverage` {coverage}",
        f"{first[1]} hits in {first[0]:.1f} s at once, {later[1]} in {later[0]:.1f} s once the "
        f"others agree; a new adapter connects in {reopened:.1f} s and finds {again[1]} in "
        f"{again[0]:.1f} s (load {load:.1f})",
    )
    assert first[1] < CHUNKS
    assert (later[1] == 0) == full_coverage
    assert first[0] < 1.2 * ceil(CHUNKS / WORKERS) * TIMEOUT + 1
