"""Rates over the time in which all ranks were read."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtier.probe.rates import SETTLING, NothingInCommon, Sample, common_window, rate


def steady(begin: float, end: float, bytes_per_second: float) -> list[Sample]:
    return [(begin, 0), (end, round((end - begin) * bytes_per_second))]


def test_the_window_is_what_all_ranks_have_in_common_less_its_begin() -> None:
    begin, end = common_window([steady(0, 10, 1), steady(2, 12, 1)])
    assert (begin, end) == (pytest.approx(2 + SETTLING * 8), 10)


def test_bytes_before_and_after_the_window_do_not_count() -> None:
    samples = [(0.0, 0), (1.0, 900), (2.0, 1000), (3.0, 1100), (4.0, 9000)]
    assert rate(samples, begin=1, end=3) == 100


@settings(deadline=None)
@given(st.floats(0, 5), st.floats(6, 20), st.floats(1e3, 1e10))
def test_a_steady_rank_has_its_rate_whatever_the_window(
    begin: float, end: float, bytes_per_second: float
) -> None:
    samples = steady(0, 20, bytes_per_second)
    assert rate(samples, begin=begin, end=end) == pytest.approx(bytes_per_second, rel=1e-3)


def test_a_rank_that_ended_first_ends_the_window_so_that_the_others_gain_nothing_by_it() -> None:
    fast = steady(0, 1, 1000)
    # Until the fast one ends the slow one has 100 bytes/s of what they share, and then all.
    slow = [(0.0, 0), (1.0, 100), (2.0, 1100)]
    begin, end = common_window([fast, slow])
    assert rate(slow, begin=begin, end=end) == pytest.approx(100)


def test_ranks_that_were_not_read_together_have_no_figure() -> None:
    with pytest.raises(NothingInCommon, match="same time"):
        common_window([steady(0, 1, 1), steady(1, 2, 1)])
