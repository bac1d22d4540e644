"""Which pods are deleted by force, when it is looked again, and what is said of ranks that wait."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kvtier.plan.lost_nodes import look_again, lost_pods, needs_its_node, node_facts
from kvtier.plan.observed import NodeFacts, RankState
from kvtier.plan.waiting import not_ready

T0 = datetime(2026, 1, 1, tzinfo=UTC)
SILENT = NodeFacts(ready="Unknown", since="2025-12-31T23:59:00Z", unreachable=True)
GONE = NodeFacts(exists=False)
WELL = NodeFacts(ready="True", since="2025-01-01T00:00:00Z")
CANDIDATES: dict[str, dict[str, Any]] = {
    "leaving": {"leaves_at": "2026-01-01T00:00:00Z"},
    "silent": {"unready_since": "2025-12-31T23:59:50Z"},
    "starting": {"started_at": None},
    "ready": {"ready": True},
}


def rank(**fields: Any) -> RankState:
    known = {
        "pod": "chat-r1-0",
        "pod_uid": "u1",
        "node": "node-2",
        "started_at": "2025-12-31T00:00:00Z",
    }
    return RankState(rank=1, **{**known, **fields})


def after(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def is_deleted(state: RankState, node: NodeFacts, *, seconds: float) -> bool:
    found = lost_pods([state], nodes={"node-2": node}, now=after(seconds))
    assert all((each.name, each.uid) == ("chat-r1-0", "u1") for each in found)
    return bool(found)


@pytest.mark.parametrize("seconds", [-5, 0, 29.9])
def test_a_pod_on_a_silent_node_has_thirty_seconds_beyond_its_deletion(seconds: float) -> None:
    state = rank(**CANDIDATES["leaving"])
    assert not is_deleted(state, SILENT, seconds=seconds)
    assert is_deleted(state, SILENT, seconds=30)


@pytest.mark.parametrize("candidate", CANDIDATES)
def test_no_pod_of_a_node_that_reports_is_ever_deleted_by_force(candidate: str) -> None:
    state = rank(**CANDIDATES[candidate])
    for node in (WELL, NodeFacts(ready="False", since="x"), NodeFacts()):
        assert not is_deleted(state, node, seconds=1e6)


def test_a_node_that_nobody_has_read_loses_no_pod() -> None:
    assert lost_pods([rank(**CANDIDATES["leaving"])], nodes={}, now=after(1e6)) == ()


@pytest.mark.parametrize(
    ("candidate", "deleted"),
    [("leaving", True), ("silent", True), ("starting", False), ("ready", False)],
)
def test_a_node_that_does_not_exist_loses_what_was_ready_or_should_be_gone(
    candidate: str, deleted: bool
) -> None:
    assert is_deleted(rank(**CANDIDATES[candidate]), GONE, seconds=0) == deleted


@pytest.mark.parametrize("node", [SILENT, GONE], ids=["silent", "gone"])
def test_a_pod_that_only_finalizers_keep_is_not_deleted_a_second_time(node: NodeFacts) -> None:
    state = rank(**CANDIDATES["leaving"], held=True)
    assert not is_deleted(state, node, seconds=1e6)
    assert look_again([state], nodes={"node-2": node}, now=after(10)) is None


def test_a_silent_pod_that_nobody_has_deleted_yet_waits_for_its_eviction() -> None:
    assert not is_deleted(rank(**CANDIDATES["silent"]), SILENT, seconds=1e6)


@pytest.mark.parametrize(
    ("status", "taints", "reports"),
    [
        ("True", [], True),
        ("Unknown", [], False),
        ("False", [], True),
        ("False", [{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}], True),
        ("False", [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}], False),
        ("True", [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}], True),
    ],
)
def test_a_node_reports_unless_its_ready_condition_says_that_nobody_knows(
    status: str, taints: list[dict[str, str]], reports: bool
) -> None:
    condition = {"type": "Ready", "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z"}
    node = {
        "metadata": {"name": "node-2", "labels": {"zone": "a"}},
        "spec": {"taints": taints},
        "status": {"conditions": [{"type": "DiskPressure", "status": "Unknown"}, condition]},
    }
    facts = node_facts(node)
    assert facts.reports == reports
    assert (facts.labels, facts.since) == ({"zone": "a"}, "2026-01-01T00:00:00Z")
    assert not node_facts(None).reports


@pytest.mark.parametrize(
    ("candidate", "needed"),
    [("leaving", True), ("silent", True), ("starting", False), ("ready", False)],
)
def test_a_node_is_asked_for_only_where_its_pod_cannot_tell(candidate: str, needed: bool) -> None:
    assert needs_its_node(rank(**CANDIDATES[candidate]), now=T0) == needed


def test_a_pod_that_may_still_end_in_time_costs_no_look_at_its_node() -> None:
    assert not needs_its_node(rank(**CANDIDATES["leaving"]), now=after(-0.1))


def test_it_is_looked_again_when_a_pod_should_be_gone_and_when_it_may_be_deleted() -> None:
    states = [rank(**CANDIDATES["leaving"]), rank()]
    nodes = {"node-2": SILENT}
    assert look_again(states, nodes=nodes, now=after(-4)) == 5
    assert look_again(states, nodes=nodes, now=after(10)) == 21
    assert look_again(states, nodes=nodes, now=after(31)) is None
    assert look_again(states, nodes={"node-2": WELL}, now=after(10)) is None
    assert look_again([rank()], nodes=nodes, now=T0) is None


@pytest.mark.parametrize(
    ("fields", "node", "told"),
    [
        (CANDIDATES["silent"], WELL, "its server runs on node-2 and has not answered since"),
        (CANDIDATES["silent"], SILENT, "its node node-2 has not reported since 2025-12-31T23:59"),
        (CANDIDATES["silent"], GONE, "its node node-2 does not exist any more"),
        (
            CANDIDATES["silent"],
            NodeFacts(ready="False", since="2026-01-01T00:00:00Z"),
            "its node node-2 is not ready since 2026-01-01T00:00:00Z",
        ),
        (CANDIDATES["leaving"], SILENT, "stopping, but its node node-2 has not reported since"),
        (CANDIDATES["leaving"], WELL, "rank 1: stopping)"),
        (
            {**CANDIDATES["leaving"], "held": True},
            SILENT,
            "rank 1: deleted by force, but finalizers keep its pod)",
        ),
        # Ready turned False before this run of the server began: it has not been ready yet.
        ({"unready_since": "2025-12-30T00:00:00Z"}, WELL, "rank 1: starting)"),
        (
            {**CANDIDATES["silent"], "started_at": None, "waiting": "CrashLoopBackOff: chat-r1-0"},
            WELL,
            "rank 1: CrashLoopBackOff: <pod>)",
        ),
    ],
)
def test_a_rank_that_is_not_ready_is_told_of_with_what_is_known(
    fields: dict[str, Any], node: NodeFacts, told: str
) -> None:
    message = not_ready([rank(**fields)], nodes={"node-2": node}, ready=0)
    assert message.startswith("0 of 1 ranks are ready (rank 1: ")
    assert told in message


def test_ranks_that_wait_for_the_same_are_told_of_together() -> None:
    fields = CANDIDATES["silent"]
    states = [rank(**fields), RankState(rank=2), RankState(rank=3)]
    message = not_ready(states, nodes={"node-2": GONE}, ready=0)
    assert message == (
        "0 of 3 ranks are ready (rank 1: its node node-2 does not exist any more; "
        "rank 2, 3: no pod yet)."
    )
