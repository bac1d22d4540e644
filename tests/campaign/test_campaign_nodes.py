"""Faults of nodes while a client uses the tier, with Kubernetes' own times: minutes each."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from livecluster import trial
from livecluster.api import condition
from livecluster.cluster import LiveCluster
from livecluster.fault_rows import broken
from livecluster.faults import Faults
from livecluster.fixtures import NewTier
from livecluster.installation import Installation
from livecluster.trial import Trial
from livecluster.waiting import eventually

SILENT_SECONDS = 50.0
"""Until Kubernetes calls a node silent that does not report (node-monitor-grace-period)."""
REPLACED_SECONDS = SILENT_SECONDS + 30 + 5 + 30
"""And then: the ranks' toleration, the grace of their deletion, and what kvtier waits beyond."""
SLACK = 3.0
RUN_SECONDS = 600.0


@pytest.fixture(scope="module")
def usual(kvtier: Installation) -> Installation:
    """The release with the chart's own resync, whatever an instance that is reused had."""
    kvtier.install("--set=controller.resync=5m")
    kvtier.pod()
    return kvtier


@pytest.fixture
def faults(live: LiveCluster) -> Iterator[Faults]:
    """What a test breaks is whole for the next one."""
    breaker = Faults(live)
    yield breaker
    breaker.mend()


def test_a_deleted_pod_is_made_again_without_kvtier(new_tier: NewTier, usual: Installation) -> None:
    case = trial.begin(new_tier, usual)
    before = case.tier.containers()
    case.start()
    case.tier.kubectl("delete", "pod", f"{case.tier.name}-r{case.victim}-0", "--wait=false")
    case.edit_neighbour()
    case.replaced(before, seconds=30)
    case.finish(
        what="a rank's pod deleted",
        back="its StatefulSet makes it again, empty: Ready after {seconds}",
    )


def test_a_rank_on_a_frozen_node_is_made_again_elsewhere(
    new_tier: NewTier, usual: Installation, faults: Faults
) -> None:
    case = trial.begin(new_tier, usual, seconds=RUN_SECONDS)
    before = case.tier.containers()
    case.start()
    with faults.frozen_node(case.node):
        case.edit_neighbour()
        _replaced_elsewhere(case, before)
    _is_whole_again(case, before, faults)
    case.finish(
        what="a node frozen (SIGSTOP of every process on it), thawed once its rank was replaced",
        back=(
            "kvtier deletes the pod by force, it is made again on another node, empty: Ready after "
            "{seconds}; thawed, the node is Ready and the old process gone in seconds"
        ),
    )


def test_a_node_that_comes_back_with_the_old_pod_alive_ends_it(
    new_tier: NewTier, usual: Installation, faults: Faults
) -> None:
    case = trial.begin(new_tier, usual, seconds=RUN_SECONDS)
    before = case.tier.containers()
    old = faults.server_pid(before[case.victim])
    case.start()
    with faults.cut_node(case.node):
        case.edit_neighbour()
        _replaced_elsewhere(case, before)
        # Behind the cut the old server runs on: two processes are one rank, and engines reach one.
        assert Path(f"/proc/{old}").exists()
        new = case.tier.pods()[case.victim]["metadata"]["uid"]
    _is_whole_again(case, before, faults)
    assert case.tier.pods()[case.victim]["metadata"]["uid"] == new
    case.finish(
        what="a node cut off, and back with the old pod alive",
        back=(
            "kvtier deletes the pod by force, it is made again on another node, empty: Ready after "
            "{seconds}; back, the node's kubelet ends the old process in seconds"
        ),
    )


def test_a_node_that_is_removed_once_it_is_silent_costs_no_more_than_that(
    new_tier: NewTier, usual: Installation, faults: Faults
) -> None:
    case = trial.begin(new_tier, usual, seconds=RUN_SECONDS)
    before = case.tier.containers()
    case.start()
    faults.kill_node(case.node)
    case.edit_neighbour()
    api = case.tier.cluster.api
    eventually(
        lambda: condition(api.get("nodes", "", case.node) or {}, "Ready")["status"] == "Unknown",
        seconds=SLACK * SILENT_SECONDS,
        what="the node is silent",
    )
    # What a cloud's controller does once it sees that the machine is no more.
    case.tier.cluster.kubectl("delete", "node", case.node)
    _replaced_elsewhere(case, before)
    assert "does not exist any more" in case.tier.warning("NodeLost")
    case.finish(
        what="a node loses power, and its Node object is deleted once it is silent",
        back="made again on another node, empty: Ready after {seconds}",
    )


@pytest.mark.parametrize("component", ["kubelet", "containerd"])
def test_pods_go_on_while_a_nodes_agent_restarts(
    component: str, new_tier: NewTier, usual: Installation, faults: Faults
) -> None:
    case = trial.begin(new_tier, usual)
    before, since = case.tier.containers(), case.tier.condition("Ready")["lastTransitionTime"]
    case.start()
    faults.restart(f"{component}-{case.node}")
    case.edit_neighbour()
    # Long enough for a readiness probe to have failed twice, and for the kubelet to have looked.
    time.sleep(15)
    case.ready(seconds=30)
    assert case.tier.containers() == before
    assert case.tier.condition("Ready")["lastTransitionTime"] == since
    report = case.finish(
        what=f"{component} of a rank's node restarted",
        back="the same containers go on, and the tier stays Ready",
    )
    assert broken(report) == []


def _replaced_elsewhere(case: Trial, before: dict[int, str]) -> None:
    case.replaced(before, seconds=SLACK * REPLACED_SECONDS)
    pods = case.tier.pods()
    assert pods[case.victim]["spec"]["nodeName"] != case.node
    after = case.tier.containers()
    assert {rank for rank in before if after[rank] != before[rank]} == {case.victim}
    assert case.node in case.tier.warning("NodeLost")


def _is_whole_again(case: Trial, before: dict[int, str], faults: Faults) -> None:
    """The node reports again, the old process is gone, and nothing else has changed."""
    faults.mend()
    eventually(
        lambda: not faults.container_pids(before[case.victim]),
        seconds=60,
        what="the old process is gone",
    )
    case.tier.wait_ready()
