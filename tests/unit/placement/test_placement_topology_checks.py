"""What is said about where engines and ranks are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from places import GIB, LEVELS, RACK, ZONE, Node, node, nodes, topology

from kvtier.placement.domain import Domain
from kvtier.placement.room import Room
from kvtier.placement.topology_checks import Placed, check

NODES = nodes("a/r1/z1", "b/r1/z1", "c/r2/z1", "d/r3/z2")
R1 = Domain("rack", RACK.key, "r1")


def told(placed: Placed) -> dict[str, str]:
    findings = check(placed)
    reasons = [finding.reason for finding in findings]
    assert len(set(reasons)) == len(reasons)
    return {finding.reason: finding.message for finding in findings}


def test_a_tier_whose_engines_and_ranks_are_in_one_domain_is_not_talked_about() -> None:
    place = topology(NODES, engines_on=("a", "b"), ranks_on=("a", "b"))
    assert told(Placed(place, domain=R1, within="rack", linked=["zone"])) == {}


def test_before_any_domain_is_chosen_nobody_is_outside_of_it() -> None:
    assert told(Placed(topology(NODES, engines_on=("a", "d"), ranks_on=("c",)))) == {}


def test_engines_outside_are_counted_and_named() -> None:
    place = topology(NODES, engines_on=("a", "b", "c", "d"), ranks_on=("a",))
    found = told(Placed(place, domain=R1))
    assert list(found) == ["PoolSpansDomains"]
    assert found["PoolSpansDomains"].startswith(
        "2 of 4 engines are outside of rack=r1, where the ranks are: c (rack=r2), d (rack=r3). "
    )


def test_a_pool_that_left_is_told_of_as_that_and_not_as_one_that_spans() -> None:
    place = topology(NODES, engines_on=("c", "c"), ranks_on=("a",))
    found = told(Placed(place, domain=R1))
    assert list(found) == ["PoolLeftDomain"]
    assert "None of the 2 engines is in rack=r1" in found["PoolLeftDomain"]
    assert "c (rack=r2)" in found["PoolLeftDomain"]


def test_a_pool_at_zero_is_no_finding() -> None:
    assert told(Placed(topology(NODES, ranks_on=("a", "b")), domain=R1)) == {}


def test_ranks_outside_are_named_with_where_they_are() -> None:
    place = topology(NODES, engines_on=("a",), ranks_on=("a", "d", "d", "gone"))
    message = told(Placed(place, domain=R1))["RanksOutsideDomain"]
    assert message.startswith("Rank 1, 2, 3 of 4 run outside of rack=r1: on d (rack=r3), gone")


def test_a_cordoned_node_with_ranks_is_told_of_and_one_without_is_not() -> None:
    place = topology(
        {**NODES, "b": node("b", "r1", "z1", cordoned=True)},
        engines_on=("a",),
        ranks_on=("a", "b", "b"),
    )
    message = told(Placed(place, domain=R1))["RanksOnCordonedNodes"]
    assert message.startswith("Cordoned: b (rank 1, 2).")
    assert told(Placed(topology(place.nodes, engines_on=("b",), ranks_on=("a",)))) == {}


@pytest.mark.parametrize(
    ("named", "within", "linked", "expected"),
    [
        # Only some have it.
        (("a/r1/z1", "b//z1"), None, [], "b: no label example.com/rack (rack)"),
        # None has it, and nobody asked.
        (("a//z1", "b//z1"), None, [], None),
        (("a//z1", "b//z1"), "rack", [], "a, b: no label example.com/rack (rack)"),
        (("a//z1", "b//z1"), None, ["rack"], "a, b: no label example.com/rack (rack)"),
        (("a/r1/z1", "b"), None, [], "(rack), b: no label topology.kubernetes.io/zone (zone)"),
    ],
)
def test_labels_that_are_missing_are_named_with_their_nodes(
    named: tuple[str, ...], within: str | None, linked: list[str], expected: str | None
) -> None:
    place = topology(nodes(*named), engines_on=("a",), ranks_on=("b",))
    message = told(Placed(place, within=within, linked=linked)).get("DomainLabelsMissing")
    if expected is None:
        assert message is None
    else:
        assert expected in (message or "")


def test_one_rack_in_two_zones_is_told_of_once_with_both() -> None:
    place = topology(
        nodes("a/r1/z1", "b/r1/z2", "c/r2/z1", "d/r2/z2"),
        engines_on=("a", "c"),
        ranks_on=("b", "d"),
    )
    message = told(Placed(place))["DomainsContradict"]
    assert message.startswith("rack=r1 lies in zone=z1 (a), zone=z2 (b): ")


def test_ranks_that_cannot_fit_are_told_of_with_the_sum() -> None:
    free = {"a": 100 * GIB, "b": 500 * GIB, "c": -3 * GIB}
    room = Room(wanted=8, memory=128 * GIB, free=free)
    assert room.fits == 3
    message = told(Placed(topology({}), room=room))["MemoryDoesNotFit"]
    assert message.startswith("8 ranks of 128 GiB have no node, and at most 3 fit: ")
    assert "b 500 GiB, a 100 GiB, c 0 B" in message


@pytest.mark.parametrize(("wanted", "fits"), [(0, True), (3, True), (4, False)])
def test_ranks_that_may_fit_are_not_talked_about(wanted: int, fits: bool) -> None:
    room = Room(wanted=wanted, memory=128 * GIB, free={"b": 500 * GIB})
    assert (told(Placed(topology({}), room=room)) == {}) is fits


def test_no_node_at_all_is_told_of_without_figures_of_any() -> None:
    room = Room(wanted=2, memory=GIB, free={})
    assert "no node may hold one" in told(Placed(topology({}), room=room))["MemoryDoesNotFit"]


def test_messages_of_a_thousand_nodes_are_short() -> None:
    many = nodes(*(f"node-{index:04}/rack-{index:04}/z{index % 2}" for index in range(1000)))
    cordoned = {
        name: Node(labels=found.labels if index % 3 else {}, cordoned=True)
        for index, (name, found) in enumerate(many.items())
    }
    place = topology(cordoned, engines_on=tuple(many), ranks_on=tuple(many)[:64])
    domain = Domain("rack", RACK.key, "rack-0001")
    room = Room(wanted=64, memory=GIB, free=dict.fromkeys(many, 0))
    found = told(Placed(place, domain=domain, linked=["zone"], room=room))
    assert len(found) == 5
    assert max(map(len, found.values())) < 600


LABELS = st.dictionaries(
    st.sampled_from([level.key for level in LEVELS]), st.sampled_from(["", "x", "y"])
)


@given(
    labels=st.lists(LABELS, min_size=1, max_size=4),
    engines_on=st.lists(st.integers(0, 5), max_size=5),
    ranks_on=st.lists(st.integers(0, 5), max_size=5),
    domain=st.sampled_from([None, R1, Domain("zone", ZONE.key, "x"), Domain("gone", "gone", "x")]),
    within=st.sampled_from([None, "rack", "gone"]),
)
def test_whatever_is_labelled_nothing_is_raised(
    labels: list[dict[str, str]],
    engines_on: list[int],
    ranks_on: list[int],
    domain: Domain | None,
    within: str | None,
) -> None:
    place = topology(
        {str(index): Node(labels=each) for index, each in enumerate(labels)},
        engines_on=tuple(map(str, engines_on)),
        ranks_on=tuple(map(str, ranks_on)),
    )
    for finding in check(Placed(place, domain=domain, within=within, linked=["zone", "gone"])):
        assert len(finding.message) < 600
