"""The reconciler on fakes: what events of nodes and engines change, and what they cost."""

from pool_harness import (
    LEAF,
    NAMESPACE,
    NODES,
    add_engine,
    nodes_of,
    placed_spec,
    placement_message,
)
from tier_harness import Operator

from kvtier.cluster.protocol import NODE, POD, Object


def requests(operator: Operator) -> list[tuple[str, str]]:
    return [(each.verb, each.kind.kind) for each in operator.cluster.requests]


async def test_events_that_tell_nothing_of_engines_and_nodes_cost_nothing(
    fleet: Operator,
) -> None:
    add_engine(fleet, "vllm-0", "n1")
    fleet.apply(placed_spec())
    await fleet.settle()
    fleet.cluster.requests.clear()
    heartbeat = {"status": {"images": [{"names": ["a"]}]}}
    for node in NODES:
        fleet.cluster.edit(NODE, "", node, heartbeat)
    fleet.cluster.edit(POD, NAMESPACE, "vllm-0", {"metadata": {"annotations": {"a": "b"}}})
    unused: Object = {"spec": {"unschedulable": True}}
    fleet.cluster.edit(NODE, "", "n4", unused)
    fleet.cluster.remove(NODE, "", "n4")
    await fleet.settle()
    assert requests(fleet) == []


async def test_a_relabelled_node_is_read_once_and_the_status_follows(fleet: Operator) -> None:
    add_engine(fleet, "vllm-0", "n1")
    fleet.apply(placed_spec())
    await fleet.settle()
    node = nodes_of(fleet)["demo-r0-0"]
    fleet.cluster.requests.clear()
    fleet.cluster.edit(NODE, "", node, {"metadata": {"labels": {LEAF: "leaf-c"}}})
    await fleet.settle()
    assert requests(fleet) == [("get", "Node"), ("apply_status", "KVCacheTier")]
    assert fleet.status()["rankStates"][0]["domain"] == "leaf=leaf-c"
    assert "RanksOutsideDomain" in placement_message(fleet)


async def test_a_cordoned_and_a_removed_node_are_told_of(fleet: Operator) -> None:
    add_engine(fleet, "vllm-0", "n1")
    fleet.apply(placed_spec())
    await fleet.settle()
    node = nodes_of(fleet)["demo-r1-0"]
    fleet.cluster.edit(NODE, "", node, {"spec": {"unschedulable": True}})
    await fleet.settle()
    assert f"RanksOnCordonedNodes: Cordoned: {node} (rank 1)" in placement_message(fleet)
    fleet.cluster.edit(NODE, "", node, {"spec": {"unschedulable": None}})
    await fleet.settle()
    assert "RanksOnCordonedNodes" not in placement_message(fleet)
    fleet.cluster.remove(NODE, "", node)
    await fleet.settle()
    assert f"RanksOutsideDomain: Rank 1 of 2 run outside of leaf=leaf-a: on {node} (leaf=?)" in (
        placement_message(fleet)
    )


async def test_an_engine_that_loses_its_label_is_one_less(fleet: Operator) -> None:
    add_engine(fleet, "vllm-0", "n1")
    add_engine(fleet, "vllm-1", "n3")
    fleet.apply(placed_spec())
    await fleet.settle()
    assert "PoolSpansDomains" in placement_message(fleet)
    # Out of the watch's selector: the API server sends a deletion.
    pod = fleet.cluster.peek(POD, NAMESPACE, "vllm-1")
    assert pod is not None
    fleet.cluster.edit(POD, NAMESPACE, "vllm-1", {"metadata": {"labels": None}})
    fleet.watcher.on_engine({"type": "DELETED", "object": pod})
    await fleet.settle()
    assert "PoolSpansDomains" not in placement_message(fleet)


async def test_what_went_while_nobody_watched_is_found_when_the_watch_is_back(
    fleet: Operator,
) -> None:
    add_engine(fleet, "vllm-0", "n1")
    add_engine(fleet, "vllm-1", "n3")
    fleet.apply(placed_spec())
    await fleet.settle()
    deliver, fleet._deliver = fleet._deliver, lambda *_: None  # type: ignore[method-assign]
    fleet.cluster._storage.watchers[:] = []
    fleet.cluster.remove(POD, NAMESPACE, "vllm-1")
    fleet.cluster.edit(NODE, "", "n1", {"spec": {"unschedulable": True}})
    fleet.cluster.watch(deliver)
    fleet.watcher.on_relist("Pod")
    fleet.watcher.on_relist("Node")
    await fleet.settle()
    assert "PoolSpansDomains" not in placement_message(fleet)
    assert "Cordoned: n1" in placement_message(fleet)
