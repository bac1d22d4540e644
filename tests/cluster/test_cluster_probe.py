"""Probes on a real cluster: the link is measured where an engine is, and nobody is disturbed."""

import json
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import valkey

from livecluster.fixtures import NewTier
from livecluster.probing import PROBE_SECONDS, engine_on, probed
from livecluster.ranks import Engine
from livecluster.tier import Tier, manifest
from livecluster.waiting import eventually


def said(tier: Tier) -> str:
    return tier.kubectl("get", "events,jobs,pods", "-o", "wide")


def as_operator(tier: Tier, engine: Engine, rank: int) -> AbstractContextManager[valkey.Valkey]:
    token = tier.secret(f"{tier.name}-operator")["token"]
    return engine.connect(rank, username="operator", password=token)


@pytest.fixture
def tier(new_tier: NewTier) -> Tier:
    tier = new_tier("chat")
    tier.apply()
    tier.wait_ready()
    return tier


def test_a_tier_is_measured_from_its_engine_s_node_and_on_request(tier: Tier) -> None:
    assert "measured" not in tier.body()["status"]
    engine_on(tier, "node-2")
    first = probed(tier)
    assert first["node"] == "node-2"
    assert first["bytesPerSecond"] > 1_000_000
    assert 0 < first["roundTripSeconds"] < 1
    shown = tier.kvtier("probe", tier.name)
    second = tier.body()["status"]["measured"]
    assert (second["evidence"], second["node"]) == ("Probed", "node-2")
    assert second["at"] > first["at"]
    assert "a probe from node-2" in shown
    status = tier.kvtier("status", tier.name)
    assert "a probe from node-2" in status
    assert status.splitlines()[0] == shown.splitlines()[0]
    eventually(
        lambda: not tier.kubectl("get", "jobs", "-o", "name").strip(),
        seconds=30,
        what="no Job is left",
    )


def test_a_probe_leaves_no_key_and_disturbs_no_rank(tier: Tier) -> None:
    pods = {rank: pod["metadata"]["uid"] for rank, pod in tier.pods().items()}
    engine_on(tier, "node-1")
    probed(tier)
    assert {rank: pod["metadata"]["uid"] for rank, pod in tier.pods().items()} == pods
    assert tier.condition("Ready")["status"] == "True"
    engine = tier.engine()
    for rank in pods:
        with as_operator(tier, engine, rank) as client:
            assert client.dbsize() == 0


def test_a_plan_of_the_live_cluster_judges_by_the_measured_link(tier: Tier, tmp_path: Path) -> None:
    engine_on(tier, "node-2")
    measured = probed(tier)
    file = tmp_path / "tier.json"
    file.write_text(json.dumps(manifest(name=tier.name, namespace=tier.namespace)))
    planned = json.loads(tier.kvtier("plan", "--live", "-f", str(file), "-o", "json"))
    assert planned["measured"]["evidence"] == "Probed"
    assert planned["measured"]["bytesPerSecond"] == measured["bytesPerSecond"]


def test_an_engine_that_moves_is_measured_again(tier: Tier) -> None:
    first = engine_on(tier, "node-1", "engine-a")
    before = probed(tier)
    engine_on(tier, "node-3", "engine-b")
    tier.kubectl("delete", "pod", first.name, "--wait=true")
    # While both are there both are measured, and the slower counts.
    probed(tier, after=before["at"], node="node-3")


def test_a_probe_whose_token_is_refused_says_so(tier: Tier) -> None:
    engine = tier.engine()
    for rank in engine.ranks:
        with as_operator(tier, engine, rank) as client:
            client.execute_command("ACL SETUSER", "probe", "off")
    engine_on(tier, "node-1")
    eventually(
        lambda: "ProbeFailed" in said(tier) and "WRONGPASS" in said(tier),
        seconds=PROBE_SECONDS,
        what="the event ProbeFailed",
        detail=lambda: said(tier),
    )
    assert tier.condition("Ready")["status"] == "True"
