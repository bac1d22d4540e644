"""Faults of single ranks while a client uses them. docs/faults.md has what it saw."""

import os
import signal
from collections.abc import Iterator

import pytest

from livecluster import trial
from livecluster.cluster import LiveCluster
from livecluster.faults import Faults, stopped_processes
from livecluster.fixtures import NewTier
from livecluster.hostile import hostile
from livecluster.installation import MIB, Installation

LIMIT = 64 * MIB
TEST_SECONDS = 400
"""About 25 s each on an idle machine."""


@pytest.fixture(scope="module")
def usual(kvtier: Installation) -> Iterator[Installation]:
    """The release with the chart's own resync: the tests' would add reads that nobody has."""
    kvtier.install("--set=controller.resync=5m")
    kvtier.pod()
    yield kvtier
    kvtier.install()


@pytest.fixture
def faults(live: LiveCluster) -> Iterator[Faults]:
    """What a test breaks is whole for the next one."""
    breaker = Faults(live)
    yield breaker
    breaker.mend()


@pytest.mark.timeout(TEST_SECONDS, func_only=True)
def test_a_rank_whose_process_is_killed_is_back_within_seconds(
    new_tier: NewTier, usual: Installation, faults: Faults
) -> None:
    case = trial.begin(new_tier, usual)
    before = case.tier.containers()
    case.start()
    os.kill(faults.server_pid(before[case.victim]), signal.SIGKILL)
    case.edit_neighbour()
    case.replaced(before, seconds=30)
    after = case.tier.containers()
    assert {rank for rank in before if after[rank] != before[rank]} == {case.victim}
    case.finish(
        what="a rank's process killed (SIGKILL) *test*",
        back="the kubelet starts it again in the same pod, empty: Ready after {seconds}",
    )


@pytest.mark.timeout(TEST_SECONDS, func_only=True)
def test_a_rank_that_hangs_is_reported_and_serves_its_cache_when_it_goes_on(
    new_tier: NewTier, usual: Installation, faults: Faults
) -> None:
    case = trial.begin(new_tier, usual)
    before = case.tier.containers()
    case.start()
    with stopped_processes([faults.server_pid(before[case.victim])]):
        case.edit_neighbour()
        shown = case.tier.wait("StoreReady", "False", reason="RanksNotReady", seconds=40)
        assert f"runs on {case.node} and has not answered since" in shown["message"]
    case.ready(seconds=30)
    assert case.tier.containers() == before
    case.finish(
        what="a rank hangs (SIGSTOP until the condition says so, then SIGCONT) *test*",
        back="its cache is still there; the tier Ready {seconds} after it began to hang",
    )


@pytest.mark.timeout(TEST_SECONDS, func_only=True)
def test_a_client_with_huge_buffers_loses_its_connections_and_the_server_lives(
    new_tier: NewTier, usual: Installation, faults: Faults
) -> None:
    case = trial.begin(new_tier, usual)
    engine, before = case.tier.engine(), case.tier.containers()
    prefix = f"{engine.prefix(case.victim)}@hostile@"
    case.start()
    with hostile(engine, rank=case.victim) as client:
        client.fills(prefix, size=MIB, count=2 * LIMIT // MIB)
        client.everywhere(client.never_reads(f"{prefix}0", times=500), links=40)
        client.everywhere(client.never_ends(prefix, announced=500 * MIB, sent=LIMIT), links=20)
        client.everywhere(client.never_ends(prefix, announced=MIB, sent=MIB - 65536), links=100)
        case.edit_neighbour()
    case.ready(seconds=30)
    pod = case.tier.pods()[case.victim]
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
    assert case.tier.containers() == before
    peak = faults.memory_peak(before[case.victim])
    assert peak < LIMIT
    case.finish(
        what=(
            "a client with an engine's credentials stores 128 MiB in large values, asks over 40 "
            "connections for 500 MiB each and reads nothing, and announces values that it never "
            "sends over 120 *test*"
        ),
        back=(
            f"nothing to come back: the same process, at most {peak / MIB:.0f} of {LIMIT // MIB} "
            "MiB; large values had pushed the chunks out"
        ),
    )


@pytest.mark.timeout(TEST_SECONDS, func_only=True)
def test_a_rank_of_a_removed_node_is_made_again_on_another_one(
    new_tier: NewTier, usual: Installation, faults: Faults
) -> None:
    case = trial.begin(new_tier, usual)
    before = case.tier.containers()
    kubectl = case.tier.cluster.kubectl
    case.start()
    faults.kill_node(case.node)
    case.tier.kubectl("delete", "pod", f"chat-r{case.victim}-0", "--wait=false")
    kubectl("delete", "node", case.node)
    case.edit_neighbour()
    case.replaced(before, seconds=60)
    assert case.node not in {pod["spec"]["nodeName"] for pod in case.tier.pods().values()}
    assert case.node in case.tier.warning("NodeLost")
    case.finish(
        what="a node loses power, is drained and its Node object deleted at once *test*",
        back=(
            "kvtier deletes the pod by force, it is made again on another node: Ready after "
            "{seconds}"
        ),
    )
