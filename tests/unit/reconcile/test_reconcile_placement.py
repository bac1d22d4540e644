"""The reconciler on fakes: engines choose a domain, and ranks follow as far as nothing is lost."""

import pytest
from pool_harness import (
    LEAF,
    NAMESPACE,
    NODES,
    add_engine,
    add_node,
    affinities,
    engine_status,
    fill,
    leaves,
    nodes_of,
    placed_spec,
    placement_message,
    recorded,
)
from tier_harness import KEY, Operator, spec

from kvtier.cluster.protocol import NODE, POD, SECRET, Unavailable


async def test_before_any_engine_ranks_are_not_pinned(unpinned: Operator) -> None:
    assert affinities(unpinned) == [{}, {}]
    assert recorded(unpinned) is None
    assert "domain" not in unpinned.status()


async def test_engines_that_are_there_first_have_ranks_start_beside_them(fleet: Operator) -> None:
    add_engine(fleet, "vllm-0", "n3")
    fleet.apply(placed_spec())
    await fleet.settle()
    assert leaves(fleet) == {"leaf-b"}
    assert len(set(nodes_of(fleet).values())) == 2
    assert fleet.status()["domain"] == "leaf=leaf-b"
    assert [rank["domain"] for rank in fleet.status()["rankStates"]] == ["leaf=leaf-b"] * 2
    assert recorded(fleet) == "leaf=leaf-b"
    assert fleet.recorder.reasons() == ["DomainChosen", "Created"]


async def test_a_link_of_one_node_says_nothing_of_ranks_on_others(fleet: Operator) -> None:
    document = placed_spec()
    document["placement"].pop("within", None)
    near = {"domain": "hostname", "bitsPerSecond": "400G", "roundTrip": "10us"}
    document["placement"]["links"] = [near]
    add_engine(fleet, "vllm-0", "n3")
    fleet.apply(document)
    await fleet.settle()
    earning = fleet.condition("EarningItsKeep")
    assert (earning["status"], earning["reason"]) == ("Unknown", "LinkNotDeclared")
    assert "declare one for leaf" in earning["message"]


async def test_the_first_ready_engine_has_empty_ranks_follow_at_once(unpinned: Operator) -> None:
    before = unpinned.uids()
    add_engine(unpinned, "vllm-0", "n1", ready=False)
    await unpinned.settle()
    assert recorded(unpinned) is None
    status = {"status": engine_status(unpinned, ready=True)}
    unpinned.cluster.edit(POD, NAMESPACE, "vllm-0", status)
    await unpinned.settle()
    assert leaves(unpinned) == {"leaf-a"}
    moved = [name for name, uid in unpinned.uids().items() if before.get(name, uid) != uid]
    assert len(moved) == 1, "the rank that was there already moved too"
    told = [f"{each.reason}: {each.message}" for each in unpinned.recorder.events[1:]]
    assert told[0] == (
        "DomainChosen: The ranks belong in leaf=leaf-a: 1 of 1 Ready engines are there."
    )
    assert told[1].startswith("Applied: ")
    assert told[2].startswith("MovingRanks: Rank ")
    assert told[2].endswith(
        " of 2 moves to leaf=leaf-a, which the engines chose: nothing is held there yet."
    )
    assert len(told) == 3
    assert unpinned.condition("Ready")["status"] == "True"
    assert "RanksOutsideDomain" not in placement_message(unpinned)


async def test_ranks_that_hold_something_stay_and_are_told_of(unpinned: Operator) -> None:
    fill(unpinned)
    before = unpinned.uids()
    add_engine(unpinned, "vllm-0", "n1")
    await unpinned.settle()
    assert before.items() <= unpinned.uids().items()
    outside = next(name for name, node in nodes_of(unpinned).items() if NODES[node] == "leaf-b")
    told = f"RanksOutsideDomain: Rank {outside[6]} of 2 run outside of leaf=leaf-a"
    assert told in placement_message(unpinned)
    assert "MovingRanks" not in unpinned.recorder.reasons()
    # The next pod of the rank goes there, whatever ends this one.
    unpinned.cluster.remove(POD, NAMESPACE, outside)
    await unpinned.settle()
    assert leaves(unpinned) == {"leaf-a"}
    assert "RanksOutsideDomain" not in placement_message(unpinned)


async def test_a_rank_that_does_not_answer_may_hold_everything(unpinned: Operator) -> None:
    (outside,) = (name for name, node in nodes_of(unpinned).items() if NODES[node] == "leaf-b")
    before = unpinned.uids()
    unpinned.server(outside).up = False
    add_engine(unpinned, "vllm-0", "n1")
    await unpinned.settle()
    assert before.items() <= unpinned.uids().items()


async def test_an_operator_that_starts_anew_knows_the_domain_and_writes_nothing(
    fleet: Operator,
) -> None:
    add_engine(fleet, "vllm-0", "n3")
    fleet.apply(placed_spec())
    await fleet.settle()
    fleet.cluster.remove(POD, NAMESPACE, "vllm-0")
    await fleet.settle()
    writes = len(fleet.cluster.writes)
    fleet.restart()
    fleet.queue.add(KEY)
    await fleet.settle()
    await fleet.resync()
    assert len(fleet.cluster.writes) == writes, fleet.cluster.writes[writes:]
    assert fleet.status()["domain"] == "leaf=leaf-b"


async def test_a_pool_at_zero_keeps_its_ranks_where_they_are(fleet: Operator) -> None:
    add_engine(fleet, "vllm-0", "n3")
    fleet.apply(placed_spec())
    await fleet.settle()
    before, pinned = fleet.uids(), affinities(fleet)
    fleet.cluster.remove(POD, NAMESPACE, "vllm-0")
    await fleet.settle()
    await fleet.resync()
    before.pop("vllm-0")
    assert fleet.uids() == before
    assert affinities(fleet) == pinned != [{}, {}]


async def test_a_pool_that_moved_is_told_of_while_ranks_hold_something(fleet: Operator) -> None:
    add_engine(fleet, "vllm-0", "n3")
    fleet.apply(placed_spec())
    await fleet.settle()
    fill(fleet)
    before = nodes_of(fleet)
    fleet.cluster.remove(POD, NAMESPACE, "vllm-0")
    add_engine(fleet, "vllm-1", "n1")
    await fleet.settle()
    assert nodes_of(fleet) == before
    assert "PoolLeftDomain: None of the 1 engines is in leaf=leaf-b" in placement_message(fleet)
    add_engine(fleet, "vllm-2", "n4")
    await fleet.settle()
    assert "PoolSpansDomains: 1 of 2 engines are outside" in placement_message(fleet)
    assert recorded(fleet) == "leaf=leaf-b"


async def test_a_pool_that_moved_is_followed_by_ranks_that_hold_nothing(fleet: Operator) -> None:
    add_engine(fleet, "vllm-0", "n3")
    fleet.apply(placed_spec())
    await fleet.settle()
    fleet.cluster.remove(POD, NAMESPACE, "vllm-0")
    add_engine(fleet, "vllm-1", "n1")
    await fleet.settle()
    assert leaves(fleet) == {"leaf-a"}
    assert recorded(fleet) == "leaf=leaf-a"


async def test_one_rank_that_holds_something_keeps_the_domain(fleet: Operator) -> None:
    add_engine(fleet, "vllm-0", "n3")
    fleet.apply(placed_spec())
    await fleet.settle()
    fleet.server("demo-r1-0").keys.add("kvt-x@chunk")
    fleet.cluster.remove(POD, NAMESPACE, "vllm-0")
    add_engine(fleet, "vllm-1", "n1")
    await fleet.settle()
    assert leaves(fleet) == {"leaf-b"}


async def test_a_rank_that_found_no_room_in_the_domain_is_moved_once_and_not_again(
    unpinned: Operator,
) -> None:
    for name in ("n1", "n2"):
        unpinned.cluster.edit(NODE, "", name, {"spec": {"unschedulable": True}})
    add_engine(unpinned, "vllm-0", "n1")
    await unpinned.settle()
    await unpinned.resync()
    await unpinned.resync()
    assert unpinned.recorder.reasons().count("MovingRanks") == 1
    assert "RanksOutsideDomain" in placement_message(unpinned)


async def test_a_paused_tier_chooses_and_moves_nothing(unpinned: Operator) -> None:
    unpinned.apply({**placed_spec(), "paused": True})
    await unpinned.settle()
    writes = len(unpinned.cluster.writes)
    before = unpinned.uids()
    add_engine(unpinned, "vllm-0", "n1")
    await unpinned.settle()
    assert recorded(unpinned) is None
    assert before.items() <= unpinned.uids().items()
    assert {each.verb for each in unpinned.cluster.writes[writes:]} == {"apply_status"}
    unpinned.apply({**placed_spec(), "paused": False})
    await unpinned.settle()
    assert leaves(unpinned) == {"leaf-a"}


async def test_nothing_is_made_by_a_domain_that_is_not_in_the_record(unpinned: Operator) -> None:
    unpinned.cluster.fail(
        Unavailable(status=500, reason="InternalError", message="no"), verb="apply", kind=SECRET
    )
    add_engine(unpinned, "vllm-0", "n1")
    with pytest.raises(Unavailable):
        await unpinned.settle()
    assert affinities(unpinned) == [{}, {}]
    assert "DomainChosen" not in unpinned.recorder.reasons()
    unpinned.queue.add(KEY)
    await unpinned.settle()
    assert recorded(unpinned) == "leaf=leaf-a"
    assert leaves(unpinned) == {"leaf-a"}


async def test_a_node_selector_of_the_owner_is_where_the_ranks_belong(fleet: Operator) -> None:
    add_engine(fleet, "vllm-0", "n1")
    fleet.apply({**placed_spec(), "store": spec(nodeSelector={LEAF: "leaf-b"})["store"]})
    await fleet.settle()
    assert leaves(fleet) == {"leaf-b"}
    assert affinities(fleet) == [{}, {}]
    assert fleet.status()["domain"] == "leaf=leaf-b"
    assert "PoolLeftDomain" in placement_message(fleet)


async def test_a_required_domain_lets_a_rank_wait(fleet: Operator) -> None:
    for name in ("n1", "n2"):
        fleet.cluster.edit(NODE, "", name, {"spec": {"unschedulable": True}})
    add_engine(fleet, "vllm-0", "n1")
    fleet.apply(placed_spec(enforcement="Required"))
    await fleet.settle()
    assert all("nodeName" not in fleet.pods()[f"demo-r{rank}-0"]["spec"] for rank in range(2))
    message = placement_message(fleet)
    assert "MemoryDoesNotFit: 2 ranks of 256 MiB have no node, and no node may hold one" in message


async def test_what_nodes_can_allocate_is_held_against_what_ranks_ask_for(
    operator: Operator,
) -> None:
    add_node(operator, "n1", "leaf-a", memory="300Mi")
    operator.apply(placed_spec())
    await operator.settle(kubelets=False)
    assert "MemoryDoesNotFit: 2 ranks of 256 MiB have no node, and at most 1 fit" in (
        placement_message(operator)
    )


async def test_the_nodes_are_listed_once_while_ranks_wait_for_one(fleet: Operator) -> None:
    def lists() -> int:
        return sum((each.verb, each.kind) == ("list", NODE) for each in fleet.cluster.requests)

    for name in NODES:
        fleet.cluster.edit(NODE, "", name, {"spec": {"unschedulable": True}})
    fleet.apply(placed_spec())
    await fleet.settle()
    for _ in range(3):
        await fleet.clock.advance(20)
        fleet.queue.add(KEY)
        await fleet.settle()
    assert lists() == 1
    for name in NODES:
        fleet.cluster.edit(NODE, "", name, {"spec": {"unschedulable": None}})
    for rank in range(2):
        fleet.cluster.remove(POD, NAMESPACE, f"demo-r{rank}-0")
    await fleet.settle()
    assert fleet.condition("Ready")["status"] == "True"
    await fleet.resync()
    assert lists() <= 2


async def test_a_restart_that_is_due_takes_ranks_along_that_would_move(unpinned: Operator) -> None:
    await unpinned.clock.advance(5)
    before = unpinned.uids()
    bigger = spec(memoryPerRank="512Mi")["store"]
    unpinned.apply({**placed_spec(), "store": bigger})
    add_engine(unpinned, "vllm-0", "n1")
    await unpinned.settle()
    assert leaves(unpinned) == {"leaf-a"}
    assert not set(before.values()) & set(unpinned.uids().values())
    assert unpinned.recorder.reasons().count("RestartingAllRanks") == 1
    assert "MovingRanks" not in unpinned.recorder.reasons()


async def test_another_level_moves_empty_ranks_and_only_those(unpinned: Operator) -> None:
    add_engine(unpinned, "vllm-0", "n1")
    await unpinned.settle()
    assert leaves(unpinned) == {"leaf-a"}
    unpinned.apply(placed_spec(within="hostname"))
    await unpinned.settle()
    assert set(nodes_of(unpinned).values()) == {"n1"}
    assert recorded(unpinned) == "hostname=n1"
