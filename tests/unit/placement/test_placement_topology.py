"""Nodes and the domains that they share."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from places import LEVELS, Node, nodes, topology

from kvtier.placement.topology import path

FOUR = nodes("a/r1/z1", "b/r1/z1", "c/r2/z1", "d/r3/z2")


@pytest.mark.parametrize(
    ("one", "other", "level"),
    [
        ("a", "a", "hostname"),
        ("a", "b", "rack"),
        ("a", "c", "zone"),
        ("a", "d", None),
        ("a", "unknown", None),
        ("unknown", "unknown", None),
    ],
)
def test_two_nodes_meet_in_the_nearest_domain_that_holds_both(
    one: str, other: str, level: str | None
) -> None:
    found = topology(FOUR).nearest_common(one, other)
    assert (found.name if found else None) == level


def test_a_rack_of_one_name_in_two_zones_is_no_common_domain() -> None:
    found = topology(nodes("a/r1/z1", "b/r1/z2"))
    assert found.nearest_common("a", "b") is None


def test_a_level_without_labels_neither_joins_nor_parts() -> None:
    found = topology(nodes("a/r1", "b/r1", "c//z1", "d//z1"))
    assert found.nearest_common("a", "b") == LEVELS[1]
    assert found.nearest_common("c", "d") == LEVELS[2]
    assert found.nearest_common("a", "c") is None


def test_an_empty_label_is_no_domain() -> None:
    empty = Node(labels={LEVELS[2].key: ""})
    assert topology({"a": empty, "b": empty}).nearest_common("a", "b") is None


def test_links_are_counted_by_the_domain_that_they_stay_in() -> None:
    found = topology(FOUR, engines_on=("a", "a", "c"), ranks_on=("a", "b", "c"))
    # Two engines on a: to a, to b, to c; one on c: to a and b, to c.
    assert found.link_levels() == {"hostname": 3, "rack": 2, "zone": 4}
    assert found.farthest_link() == "zone"


def test_the_farthest_link_is_not_known_without_engines_or_across_everything() -> None:
    assert topology(FOUR, ranks_on=("a",)).farthest_link() is None
    assert topology(FOUR, engines_on=("a", "d"), ranks_on=("a",)).farthest_link() is None


def test_nodes_in_use_are_those_that_exist() -> None:
    found = topology(FOUR, engines_on=("d", "gone"), ranks_on=("b", "d", "b"))
    assert found.used_nodes() == ["b", "d"]
    assert found.ranks_per_node() == {"b": 2, "d": 1}
    assert found.engines_per_node() == {"d": 1, "gone": 1}


LABELS = st.dictionaries(st.sampled_from([level.key for level in LEVELS]), st.sampled_from("xy"))


@given(one=LABELS, other=LABELS)
def test_who_comes_first_does_not_matter_and_what_is_shared_is_equal(
    one: dict[str, str], other: dict[str, str]
) -> None:
    found = topology({"a": Node(labels=one), "b": Node(labels=other)})
    level = found.nearest_common("a", "b")
    assert level == found.nearest_common("b", "a")
    pairs = list(zip(path(one, LEVELS), path(other, LEVELS), strict=True))
    if level is not None:
        index = LEVELS.index(level)
        assert pairs[index][0] == pairs[index][1] is not None
        assert all(None in pair or pair[0] == pair[1] for pair in pairs[index:])
        nearer = [pair for pair in pairs[:index] if None not in pair]
        assert not nearer or nearer[-1][0] != nearer[-1][1]
