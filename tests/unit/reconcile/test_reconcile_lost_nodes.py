"""The reconciler on fakes: ranks whose node is gone are made anew elsewhere."""

from datetime import timedelta
from typing import Any

import pytest
from tier_harness import KEY, Operator, spec

from kvtier.api.types import API_VERSION, KIND
from kvtier.cluster.protocol import NODE, POD, STATEFULSET, TIER
from kvtier.reconcile.clock import FakeClock

NODES = ("node-1", "node-2", "node-3")


def with_nodes(operator: Operator, names: tuple[str, ...] = NODES) -> None:
    for name in names:
        operator.cluster.seed(
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {}}}
        )
        report(operator, name, ready="True")


def report(operator: Operator, node: str, *, ready: str) -> None:
    since = operator.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
    condition = {"type": "Ready", "status": ready, "lastTransitionTime": since}
    operator.cluster.edit(NODE, "", node, {"status": {"conditions": [condition]}})


@pytest.fixture
async def spread(operator: Operator, clock: FakeClock) -> Operator:
    """A Ready tier with a rank on each of two nodes, and a third node."""
    with_nodes(operator)
    operator.apply()
    await operator.settle()
    # Times are whole seconds: what was ready must be seen to have been so before it fell silent.
    await clock.advance(60)
    return operator


def lose(operator: Operator, pod: str) -> str:
    """What the node controller does when the pod's node falls silent; returns the node."""
    node: str = operator.pods()[pod]["spec"]["nodeName"]
    operator.cluster.lost_nodes.add(node)
    report(operator, node, ready="Unknown")
    since = operator.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
    false = {"status": "False", "lastTransitionTime": since}
    unready = [
        {**each, **(false if each["type"] == "Ready" else {})}
        for each in operator.pods()[pod]["status"]["conditions"]
    ]
    operator.cluster.edit(POD, KEY[0], pod, {"status": {"conditions": unready}})
    operator.cluster.run_statefulsets()
    return node


def evict(operator: Operator, pod: str) -> None:
    """Delete the pod with grace, as the taint does after the toleration's 30 s."""
    leaves = (operator.clock.now() + timedelta(seconds=5)).strftime("%Y-%m-%dT%H:%M:%SZ")
    operator.cluster.edit(POD, KEY[0], pod, {"metadata": {"deletionTimestamp": leaves}})


async def look(operator: Operator, clock: FakeClock, seconds: float) -> float:
    """Let time pass and reconcile; returns when the reconciler wants to look again."""
    await clock.advance(seconds)
    result = await operator.reconciler.reconcile(KEY, frozenset())
    assert result.requeue_after is not None
    return result.requeue_after


def forced(operator: Operator) -> list[str]:
    return [each.name for each in operator.cluster.requests if each.verb == "force_delete"]


def counted(operator: Operator) -> float | None:
    labels = {"namespace": KEY[0], "tier": KEY[1]}
    return operator.metrics.registry.get_sample_value("kvtier_forced_deletions_total", labels)


async def test_a_rank_on_a_silent_node_moves_thirty_seconds_after_it_should_be_gone(
    spread: Operator, clock: FakeClock
) -> None:
    node = lose(spread, "demo-r1-0")
    await spread.settle(kubelets=False)
    message = spread.condition("StoreReady")["message"]
    assert f"rank 1: its node {node} has not reported since" in message
    evict(spread, "demo-r1-0")
    assert await look(spread, clock, 0) <= 6
    assert await look(spread, clock, 6) <= 30
    assert "stopping, but" in spread.condition("StoreReady")["message"]
    await look(spread, clock, 28)
    assert forced(spread) == []
    await look(spread, clock, 2)
    assert forced(spread) == ["demo-r1-0"]
    assert counted(spread) == 1
    (event,) = (each for each in spread.recorder.events if each.reason == "NodeLost")
    assert event.type == "Warning"
    assert f"its node {node} has not reported since" in event.message
    await spread.settle()
    assert spread.pods()["demo-r1-0"]["spec"]["nodeName"] not in (None, node)
    assert spread.condition("Ready")["status"] == "True"
    assert forced(spread) == ["demo-r1-0"]


async def test_a_rank_of_a_removed_node_moves_as_soon_as_it_is_seen_to_be_gone(
    spread: Operator, clock: FakeClock
) -> None:
    node = lose(spread, "demo-r0-0")
    spread.cluster.remove(NODE, "", node)
    await spread.settle()
    assert forced(spread) == ["demo-r0-0"]
    assert spread.condition("Ready")["status"] == "True"
    lost = next(each for each in spread.recorder.events if each.reason == "NodeLost")
    assert "does not exist any more" in lost.message


async def test_a_pod_that_takes_long_to_end_on_a_node_that_reports_is_left_to_it(
    spread: Operator, clock: FakeClock
) -> None:
    evict(spread, "demo-r1-0")
    await look(spread, clock, 3600)
    assert forced(spread) == []
    assert counted(spread) == 0


@pytest.mark.parametrize(
    "changed",
    [
        {**spec(), "paused": True},
        {**spec(), "model": {**spec()["model"], "revision": "r2"}},
        spec(memoryPerRank="1Mi"),
    ],
    ids=["paused", "refused", "invalid"],
)
async def test_a_lost_rank_moves_also_while_nothing_is_applied(
    spread: Operator, clock: FakeClock, changed: dict[str, Any]
) -> None:
    spread.apply(changed)
    await spread.settle()
    lose(spread, "demo-r1-0")
    await spread.settle(kubelets=False)
    evict(spread, "demo-r1-0")
    assert await look(spread, clock, 6) <= 30
    await look(spread, clock, 31)
    assert forced(spread) == ["demo-r1-0"]
    assert counted(spread) == 1


async def test_a_pod_that_finalizers_keep_is_deleted_by_force_and_told_of_once(
    spread: Operator, clock: FakeClock
) -> None:
    keep = {"metadata": {"finalizers": ["example.com/x"]}}
    spread.cluster.edit(POD, KEY[0], "demo-r0-0", keep)
    lose(spread, "demo-r0-0")
    evict(spread, "demo-r0-0")
    for _ in range(6):
        await look(spread, clock, 60)
    assert forced(spread) == ["demo-r0-0"]
    assert counted(spread) == 1
    assert spread.recorder.reasons().count("NodeLost") == 1
    message = spread.condition("StoreReady")["message"]
    assert "rank 0: deleted by force, but finalizers keep its pod" in message


async def test_a_process_that_never_saw_a_valid_spec_knows_what_runs_and_what_is_missing(
    spread: Operator, clock: FakeClock
) -> None:
    spread.apply(spec(memoryPerRank="1Mi"))
    spread.restart()
    spread.queue.add(KEY)
    await spread.settle()
    assert spread.condition("SpecValid")["reason"] == "InvalidSpec"
    assert spread.condition("StoreReady")["status"] == "True"
    assert spread.status()["ranks"] == "2/2"
    spread.cluster.remove(STATEFULSET, KEY[0], "demo-r1")
    spread.cluster.collect_garbage()
    await look(spread, clock, 0)
    assert spread.status()["ranks"] == "1/2"
    assert "rank 1: no pod yet" in spread.condition("StoreReady")["message"]
    lose(spread, "demo-r0-0")
    evict(spread, "demo-r0-0")
    await look(spread, clock, 60)
    assert forced(spread) == ["demo-r0-0"]


async def test_what_a_stranger_has_under_the_tier_s_labels_is_no_rank_of_an_invalid_one(
    spread: Operator, clock: FakeClock
) -> None:
    node = lose(spread, "demo-r1-0")
    evict(spread, "demo-r1-0")
    owner = {"metadata": {"ownerReferences": None}}
    spread.cluster.edit(STATEFULSET, KEY[0], "demo-r1", owner)
    spread.apply(spec(memoryPerRank="1Mi"))
    spread.restart()
    spread.cluster.remove(NODE, "", node)
    await look(spread, clock, 60)
    assert spread.status()["ranks"] == "1/2"
    assert forced(spread) == []


async def test_a_tier_that_was_never_valid_has_no_ranks_to_tell_of(operator: Operator) -> None:
    operator.apply(spec(memoryPerRank="1Mi"))
    await operator.settle()
    assert {each["type"] for each in operator.status()["conditions"]} == {"SpecValid", "Ready"}
    assert "ranks" not in operator.status()


async def test_a_name_that_no_label_can_hold_is_refused_without_listing_by_it(
    operator: Operator,
) -> None:
    long = {"namespace": KEY[0], "name": 64 * "a"}
    body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": long, "spec": spec()}
    operator.cluster.seed(body)
    await operator.settle()
    refused = operator.cluster.peek(TIER, *long.values())
    assert refused is not None
    assert refused["status"]["conditions"][0]["reason"] == "InvalidSpec"
    assert {request.verb for request in operator.cluster.requests} == {"get", "apply_status"}


async def test_a_rank_that_can_be_placed_nowhere_else_is_told_of(
    operator: Operator, clock: FakeClock
) -> None:
    with_nodes(operator, names=NODES[:1])
    operator.apply()
    await operator.settle()
    await clock.advance(60)
    lose(operator, "demo-r0-0")
    operator.cluster.remove(NODE, "", NODES[0])
    with_nodes(operator, names=("node-9",))
    operator.cluster.edit(NODE, "", "node-9", {"spec": {"unschedulable": True}})
    await operator.settle()
    refusal = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/1 nodes are available: 1 node(s) were unschedulable.",
    }
    operator.cluster.edit(POD, KEY[0], "demo-r0-0", {"status": {"conditions": [refusal]}})
    await look(operator, clock, 6)
    assert "rank 0: Unschedulable: 0/1 nodes" in operator.condition("StoreReady")["message"]


async def test_another_pod_of_the_same_name_is_not_taken_for_the_lost_one(
    spread: Operator, clock: FakeClock
) -> None:
    lose(spread, "demo-r1-0")
    await spread.settle(kubelets=False)
    evict(spread, "demo-r1-0")
    await look(spread, clock, 6)
    lost = spread.pods()["demo-r1-0"]
    # Between kvtier's look and its deletion somebody else deletes it, and the pod is made anew.
    spread.cluster.faults.append(lambda request, when: swap(spread, lost, request.verb, when))
    await look(spread, clock, 31)
    assert spread.uids()["demo-r1-0"] != lost["metadata"]["uid"]
    assert "NodeLost" not in spread.recorder.reasons()
    assert counted(spread) == 0


def swap(operator: Operator, lost: dict[str, Any], verb: str, when: str) -> None:
    there = operator.uids().get("demo-r1-0") == lost["metadata"]["uid"]
    if verb == "force_delete" and when == "before" and there:
        operator.cluster.remove(POD, KEY[0], "demo-r1-0")
        operator.cluster.run_statefulsets()


async def test_starting_and_restarting_ranks_cost_one_look_at_each_node(
    spread: Operator, clock: FakeClock
) -> None:
    def looks() -> int:
        return sum(
            request.kind is NODE and request.verb == "get" for request in spread.cluster.requests
        )

    assert looks() == 2
    spread.apply(spec(memoryPerRank="512Mi"))
    await spread.settle()
    assert spread.condition("Ready")["status"] == "True"
    assert looks() <= len(NODES)


async def test_a_hung_rank_is_told_of_as_one_that_runs_and_does_not_answer(
    spread: Operator, clock: FakeClock
) -> None:
    spread.cluster.run_statefulsets(ready=lambda pod: pod["metadata"]["name"] != "demo-r1-0")
    await spread.settle(kubelets=False)
    message = spread.condition("StoreReady")["message"]
    node = spread.pods()["demo-r1-0"]["spec"]["nodeName"]
    assert f"rank 1: its server runs on {node} and has not answered since 2026-01-01" in message
    before = len(spread.cluster.writes)
    for _ in range(5):
        await look(spread, clock, 20)
    assert len(spread.cluster.writes) == before
    assert forced(spread) == []
