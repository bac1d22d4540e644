"""The domain that the first Ready engines fix, and what may change it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from places import HOST, LEVELS, RACK, ZONE, node, nodes, topology

from kvtier.placement.domain import Domain, choose, pinned
from kvtier.placement.topology import Level, Topology

NODES = nodes("a/r1/z1", "b/r1/z1", "c/r2/z1", "d/r3/z2")
R1 = Domain("rack", RACK.key, "r1")
R2 = Domain("rack", RACK.key, "r2")
Z1 = Domain("zone", ZONE.key, "z1")


def chosen_by(
    *engines_on: str,
    within: str | None = None,
    chosen: Domain | None = None,
    hold_nothing: bool = False,
    levels: tuple[Level, ...] = LEVELS,
) -> str | None:
    place: Topology = topology(NODES, engines_on=engines_on, levels=levels)
    found = choose(place, within=within, chosen=chosen, hold_nothing=hold_nothing)
    return str(found) if found else None


@pytest.mark.parametrize(
    ("engines_on", "within", "domain"),
    [
        ((), None, None),
        ((), "rack", None),
        (("-a",), "rack", None),
        (("a",), None, "zone=z1"),
        (("a",), "rack", "rack=r1"),
        (("a",), "hostname", "hostname=a"),
        (("-c", "a"), "rack", "rack=r1"),
        (("a", "c"), None, "zone=z1"),
        (("a", "c", "c"), "rack", "rack=r2"),
        (("c", "a"), "rack", "rack=r2"),
        (("a", "d", "d"), None, "zone=z2"),
        (("unknown",), "rack", None),
        (("unknown", "a"), "rack", "rack=r1"),
    ],
)
def test_the_first_ready_engines_choose(
    engines_on: tuple[str, ...], within: str | None, domain: str | None
) -> None:
    assert chosen_by(*engines_on, within=within) == domain


def test_without_labels_of_zones_the_farthest_level_that_has_some_is_taken() -> None:
    place = topology(nodes("a/r1", "b/r1"), engines_on=("a", "b"))
    found = choose(place, within=None, chosen=None, hold_nothing=True)
    assert found == R1


def test_a_tier_is_never_pinned_to_one_node_unasked() -> None:
    place = topology({"a": node("a")}, engines_on=("a",))
    assert choose(place, within=None, chosen=None, hold_nothing=True) is None


@pytest.mark.parametrize("engines_on", [(), ("-c",), ("c",), ("c", "a"), ("d", "d")])
def test_a_domain_stands_while_ranks_hold_something(engines_on: tuple[str, ...]) -> None:
    assert chosen_by(*engines_on, within="rack", chosen=R1) == "rack=r1"


@pytest.mark.parametrize(
    ("engines_on", "domain"),
    [
        ((), "rack=r1"),
        (("-c",), "rack=r1"),
        (("c", "c", "a"), "rack=r1"),
        (("c", "-a"), "rack=r2"),
        (("unknown",), "rack=r1"),
    ],
)
def test_ranks_that_hold_nothing_follow_a_pool_that_left_altogether(
    engines_on: tuple[str, ...], domain: str
) -> None:
    assert chosen_by(*engines_on, within="rack", chosen=R1, hold_nothing=True) == domain


def test_another_level_asked_for_is_chosen_anew_once_an_engine_says_where() -> None:
    assert chosen_by(within="rack", chosen=Z1) == "zone=z1"
    assert chosen_by("c", within="rack", chosen=Z1) == "rack=r2"


def test_a_level_that_is_not_asked_for_any_more_leaves_the_domain_where_it_is() -> None:
    assert chosen_by("a", chosen=R1) == "rack=r1"


@pytest.mark.parametrize(
    "levels", [(HOST, ZONE), (HOST, Level("rack", "example.com/other"), ZONE)], ids=len
)
def test_a_level_that_is_declared_no_more_holds_nothing(levels: tuple[Level, ...]) -> None:
    assert chosen_by("d", chosen=R1, levels=levels) == "zone=z2"
    assert chosen_by(chosen=R1, levels=levels) is None


@pytest.mark.parametrize(
    ("selector", "within", "domain"),
    [
        ({}, None, None),
        ({"disk": "ssd"}, None, None),
        ({ZONE.key: "z9"}, None, "zone=z9"),
        ({ZONE.key: "z9", RACK.key: "r9"}, None, "zone=z9"),
        ({ZONE.key: "z9", RACK.key: "r9"}, "rack", "rack=r9"),
        ({ZONE.key: "z9"}, "rack", None),
        ({HOST.key: "a"}, None, None),
        ({HOST.key: "a"}, "hostname", "hostname=a"),
    ],
)
def test_a_node_selector_that_names_a_domain_is_the_owner_s_word(
    selector: dict[str, str], within: str | None, domain: str | None
) -> None:
    found = pinned(selector, levels=LEVELS, within=within)
    assert (str(found) if found else None) == domain


ON = st.lists(st.sampled_from(["a", "b", "c", "d", "-a", "-d", "unknown"]), max_size=6)
WITHIN = st.sampled_from([None, "hostname", "rack", "zone"])


@given(engines_on=ON, within=WITHIN, hold_nothing=st.booleans())
def test_what_was_chosen_is_chosen_again(
    engines_on: list[str], within: str | None, hold_nothing: bool
) -> None:
    place = topology(NODES, engines_on=tuple(engines_on))
    first = choose(place, within=within, chosen=None, hold_nothing=hold_nothing)
    again = choose(place, within=within, chosen=first, hold_nothing=hold_nothing)
    assert again == first
    if first is not None:
        ready = [engine for engine in place.engines if engine.ready]
        inside = [e for e in ready if e.node in NODES and first.holds(NODES[e.node].labels)]
        assert inside, "a domain without an engine"


@given(before=ON, after=ON, within=WITHIN)
def test_engines_that_come_and_go_move_nothing_that_holds_something(
    before: list[str], after: list[str], within: str | None
) -> None:
    place = topology(NODES, engines_on=tuple(before))
    first = choose(place, within=within, chosen=None, hold_nothing=False)
    later = topology(NODES, engines_on=tuple(after))
    if first is not None:
        assert choose(later, within=within, chosen=first, hold_nothing=False) == first
