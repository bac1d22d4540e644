"""From an applied tier to one that a real client uses."""

from typing import Any

import pytest

from livecluster.api import condition
from livecluster.cluster import LiveCluster
from livecluster.fixtures import NewTier
from livecluster.ranks import dns_resolver
from livecluster.tier import READY_SECONDS
from programs import CHECKOUT

CHUNKS = 20
SAMPLES = CHECKOUT / "deploy" / "samples"
STANDIN = CHECKOUT / "deploy" / "demo" / "standin.py"


def test_the_sample_pool_verifies_every_byte_on_every_rank_of_the_sample_tier(
    new_tier: NewTier,
) -> None:
    tier = new_tier("demo")
    tier.kubectl("create", "configmap", "kvtier-standin", f"--from-file={STANDIN}")
    # The pool first: its pods wait for the Secret, which is there before any rank is ready.
    tier.kubectl("apply", "-f", str(SAMPLES / "prefill-pool.yaml"))
    tier.kubectl("apply", "-f", str(SAMPLES / "laptop.yaml"))
    tier.wait_ready()
    timeout = f"--timeout={READY_SECONDS:g}s"
    tier.kubectl("wait", "--for=condition=Available", "deployment/prefill", timeout)
    pods = tier.cluster.api.list("pods", tier.namespace, selector="kvtier.dev/tier=demo")
    assert len(pods) == 2
    for pod in pods:
        said = tier.kubectl("logs", pod["metadata"]["name"])
        for rank in range(4):
            (line,) = [line for line in said.splitlines() if line.startswith(f"rank {rank} at")]
            assert "every byte right" in line
            assert "other ranks' keys refused" in line


@pytest.mark.parametrize("striping", ["Shard", "Hash"])
def test_a_client_with_nothing_but_the_engine_secret_stores_and_reads_every_byte_on_every_rank(
    striping: str, new_tier: NewTier, live: LiveCluster
) -> None:
    tier = new_tier("chat")
    tier.apply({"pool": {"ranks": 4, "striping": striping}})
    tier.wait_ready()
    engine = tier.engine(resolve=dns_resolver(live.facts["dns"]))
    assert engine.ranks == [0, 1, 2, 3]
    assert engine.hits(chunks=CHUNKS) == dict.fromkeys(range(4), 0)
    engine.store(chunks=CHUNKS)
    assert engine.hits(chunks=CHUNKS) == dict.fromkeys(range(4), CHUNKS)


def test_a_person_sees_a_tier_become_ready_and_what_it_must_beat(new_tier: NewTier) -> None:
    tier = new_tier("chat")
    tier.apply()
    tier.kubectl("wait", "--for=condition=Ready", f"--timeout={READY_SECONDS:g}s", "kvt/chat")
    header, row = tier.kubectl("get", "kvt").splitlines()
    columns = ["NAME", "READY", "RANKS", "VERDICT", "RATIO", "GENERATION", "ADMISSION", "AGE"]
    assert header.split() == columns
    # Without a ratio: nothing was measured.
    name, ready, ranks, verdict, generation, admission, _ = row.split()
    status = tier.body()["status"]
    assert (name, ready, ranks, verdict) == ("chat", "True", "2/2", "Unknown")
    assert admission == "Open"
    assert "measured" not in status
    assert status["engineSecret"] == f"chat-engine-{generation}"
    # 512 bytes a token at 20,000 tokens/s.
    assert status["breakEven"]["bytesPerToken"] == 512
    assert status["breakEven"]["bytesPerSecond"] == pytest.approx(512 * 20_000, rel=0.05)
    accepted = condition(tier.body(), "PlacementAccepted")
    assert (accepted["status"], accepted["reason"]) == ("True", "Accepted")
    earning = condition(tier.body(), "EarningItsKeep")
    assert (earning["status"], earning["reason"]) == ("Unknown", "NotMeasured")


def test_the_status_says_where_each_rank_runs_and_since_when(new_tier: NewTier) -> None:
    tier = new_tier("chat")
    tier.apply()
    tier.wait_ready()
    pods = tier.pods()
    for state in tier.body()["status"]["rankStates"]:
        pod = pods[state["rank"]]
        started = pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
        assert state == {
            "rank": state["rank"],
            "ready": True,
            "node": pod["spec"]["nodeName"],
            "domain": "zone=zone-a",
            "startedAt": started,
        }
    assert len({pod["spec"]["nodeName"] for pod in pods.values()}) == 2, "ranks share a node"


def test_a_rank_pod_has_no_credentials_of_the_cluster(new_tier: NewTier) -> None:
    tier = new_tier("chat")
    tier.apply()
    tier.wait_ready()
    for pod in tier.pods().values():
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False
        sources = [set(volume) - {"name"} for volume in spec["volumes"]]
        assert {"projected"} not in sources
        (acl,) = [volume["secret"] for volume in spec["volumes"] if "secret" in volume]
        # Its own ACL file: neither the record nor the files of other ranks.
        assert [item["path"] for item in acl["items"]] == ["users.acl"]


def test_a_tier_on_valkey_8_1_works_as_one_on_9_1(new_tier: NewTier) -> None:
    for version in ("8.1", "9.1"):
        tier = new_tier(f"on-{version.replace('.', '-')}")
        tier.apply({"store": {"version": version}})
        tier.wait_ready()
        engine = tier.engine()
        engine.store(chunks=CHUNKS)
        assert engine.hits(chunks=CHUNKS) == {0: CHUNKS, 1: CHUNKS}
        for rank in engine.ranks:
            with engine.session(rank) as client:
                server: Any = client.info("server")
            running = server["valkey_version"]
            assert running.startswith(f"{version}."), f"rank {rank} runs Valkey {running}"
        before = tier.containers()
        tier.patch({"store": {"eviction": "LFU"}})
        tier.wait_ready()
        assert tier.containers() == before
