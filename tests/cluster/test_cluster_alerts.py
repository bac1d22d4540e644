"""Alerts that a real Prometheus raises by the chart's rules, and a real Alertmanager sends."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml

from livecluster.cluster import LiveCluster
from livecluster.faults import Faults, stopped_processes
from livecluster.fixtures import NewTier
from livecluster.installation import NAMESPACE, Installation
from livecluster.monitoring import RULES, Monitoring, monitoring
from livecluster.tier import Tier
from livecluster.waiting import eventually
from livecluster.watching import Told, watching

SECONDS = 60.0
"""From a fault, or its repair, to the receiver: the rules are held for 2 s here, and ranks are
asked every 15 s."""

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def watched(
    live: LiveCluster, kvtier: Installation, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Monitoring]:
    with monitoring(live, tmp_path_factory.mktemp("prometheus")) as found:
        yield found


@pytest.fixture(scope="module")
def tier(module_tiers: NewTier, watched: Monitoring) -> Tier:
    found = module_tiers("alerts")
    found.apply()
    found.wait_ready()
    return found


def labels(tier: Tier) -> dict[str, str]:
    return {"namespace": tier.namespace, "tier": tier.name}


def test_prometheus_reads_the_controller_and_takes_the_rules(
    watched: Monitoring, kvtier: Installation
) -> None:
    pod = kvtier.pod()
    assert list(watched.targets().values()) == ["up"]
    (up,) = watched.query("kvtier_leader")
    assert up.value == 1
    assert up.labels["namespace"] == NAMESPACE
    assert up.labels["pod"] == pod["metadata"]["name"]
    names = {
        rule.get("alert") or rule["record"]
        for group in yaml.safe_load(RULES.read_text())["groups"]
        for rule in group["rules"]
    }
    eventually(
        lambda: watched.rules() == dict.fromkeys(names, "ok"),
        seconds=SECONDS,
        what="every rule is evaluated",
        detail=watched.rules,
    )


def test_a_rank_that_hangs_is_told_of_by_its_number_until_it_answers(
    watched: Monitoring, tier: Tier, live: LiveCluster, tmp_path: Path
) -> None:
    rank = {**labels(tier), "rank": "1"}
    summary = f"Rank 1 of KVCacheTier {tier.namespace}/{tier.name} is down."
    begins = f"alert KVTierRankDown is firing (warning): {summary}"
    ends = f"alert KVTierRankDown is over: {summary}"
    with (
        watching(tier, tmp_path / "one", f"--prometheus={watched.url}") as of_prometheus,
        watching(tier, tmp_path / "two", f"--alertmanager={watched.alertmanager}") as of_the_other,
    ):
        screens = (of_prometheus, of_the_other)
        with stopped_processes([Faults(live).server_pid(tier.containers()[1])]):
            told = watched.wait("firing", "KVTierRankDown", seconds=SECONDS, **rank)
            assert told.annotations["summary"] == summary
            assert not watched.now("KVTierRankDown", **{**rank, "rank": "0"})
            wait_told(screens, begins)
        watched.wait("resolved", "KVTierRankDown", seconds=SECONDS, **rank)
        wait_told(screens, ends)


def wait_told(screens: Sequence[Told], message: str) -> None:
    """Until each has it; `kvtier watch` asks after alerts each 10 s."""
    eventually(
        lambda: all(message in {line["message"] for line in screen()} for screen in screens),
        seconds=SECONDS,
        what=message,
        detail=lambda: [screen() for screen in screens],
    )


def test_a_spec_that_is_refused_is_told_of_until_it_is_put_right(
    watched: Monitoring, tier: Tier
) -> None:
    tier.wait_ready()
    # Chunks of which a rank's memory holds fewer than 16.
    tier.patch({"pool": {"chunkTokens": 32768}})
    told = watched.wait("firing", "KVCacheTierNotReady", seconds=SECONDS, **labels(tier))
    assert told.labels["severity"] == "warning"
    assert told.annotations["runbook_url"] == "docs/runbooks.md#kvcachetiernotready"
    tier.patch({"pool": {"chunkTokens": None}})
    watched.wait("resolved", "KVCacheTierNotReady", seconds=SECONDS, **labels(tier))


def test_a_controller_that_is_gone_is_told_of_until_one_leads(
    watched: Monitoring, kvtier: Installation
) -> None:
    scale = ("scale", "deployment/kvtier", "-n", NAMESPACE)
    kvtier.cluster.kubectl(*scale, "--replicas=0")
    try:
        watched.wait("firing", "KVTierOperatorDown", seconds=SECONDS)
    finally:
        kvtier.cluster.kubectl(*scale, "--replicas=1")
    kvtier.pod()
    watched.wait("resolved", "KVTierOperatorDown", seconds=SECONDS)
