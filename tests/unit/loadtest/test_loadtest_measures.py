"""Percentiles, spans and outages, and how engines' views of them become one."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtier.loadtest.measures import (
    Cover,
    Kind,
    Outage,
    RankMeasures,
    covered,
    merge_outages,
    merge_ranks,
    percentile,
)

SPANS = st.lists(
    st.tuples(st.integers(0, 300), st.integers(0, 40)).map(lambda pair: (pair[0], sum(pair))),
    max_size=30,
)


def outage(rank: int, begin: float, end: float | None, kind: Kind = Kind.RESET) -> Outage:
    return Outage(rank=rank, kind=kind, reason="", begin=begin, end=end)


@pytest.mark.parametrize(
    ("share", "expected"), [(0.05, 15), (0.3, 20), (0.4, 20), (0.5, 35), (1.0, 50)]
)
def test_a_percentile_is_the_nearest_rank(share: float, expected: float) -> None:
    assert percentile([50, 15, 40, 20, 35], share) == expected


def test_the_99th_of_a_hundred_is_the_99th() -> None:
    assert percentile(list(range(1, 101)), 0.99) == 99
    assert percentile(list(range(1, 1001)), 0.999) == 999


@given(st.lists(st.floats(0, 100), min_size=1), st.floats(0.001, 1))
def test_a_percentile_is_a_value_that_its_share_does_not_exceed(
    values: list[float], share: float
) -> None:
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= math.floor(share * len(values))
    assert sum(value < found for value in values) <= share * len(values) + 1e-6


def test_nothing_has_no_percentile_and_a_share_is_above_zero() -> None:
    assert percentile([], 0.5) is None
    with pytest.raises(ValueError, match="share"):
        percentile([1.0], 0)


@given(SPANS)
def test_what_spans_cover_is_counted_once(spans: list[tuple[int, int]]) -> None:
    seconds = {second for begin, end in spans for second in range(begin, end)}
    assert covered(spans) == len(seconds)


@given(SPANS)
def test_a_cover_is_the_same_however_it_is_settled(spans: list[tuple[int, int]]) -> None:
    cover = Cover()
    ordered = sorted(spans, key=lambda span: span[1])
    for span in ordered:
        cover.add([span])
        # All that come later end later, but may begin as long ago as a span is long.
        cover.settle(span[1] - 41)
    assert cover.seconds() == pytest.approx(covered(spans))


def test_overlapping_outages_of_a_rank_are_one_named_after_the_first() -> None:
    merged = merge_outages(
        [
            outage(0, 2.0, 5.0, Kind.TIMEOUT),
            outage(0, 1.0, 3.0, Kind.REFUSED),
            outage(1, 2.0, 2.5),
            outage(0, 7.0, None),
            outage(0, 8.0, 9.0),
        ]
    )
    assert merged == [
        outage(0, 1.0, 5.0, Kind.REFUSED),
        outage(1, 2.0, 2.5),
        outage(0, 7.0, None),
    ]


def test_an_outage_lasts_as_long_as_it_does_for_any_engine() -> None:
    assert merge_outages([outage(0, 1.0, 2.0), outage(0, 1.5, None)]) == [outage(0, 1.0, None)]


def test_engines_views_of_a_rank_are_added() -> None:
    first = [
        RankMeasures(rank=0, bytes_read=5, errors=1, longest_stall=0.5, answered=True),
        RankMeasures(rank=1, bytes_written=3),
    ]
    second = [RankMeasures(rank=0, bytes_read=7, longest_stall=0.2, stalls=2), first[1]]
    merged = merge_ranks([first, second])
    assert merged[0] == RankMeasures(
        rank=0, bytes_read=12, errors=1, longest_stall=0.5, stalls=2, answered=True
    )
    assert merged[1] == RankMeasures(rank=1, bytes_written=6)
