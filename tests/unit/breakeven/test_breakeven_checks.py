"""Every public formula refuses figures that it cannot use, by the name of the parameter."""

import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest

from kvtier.breakeven import access, fleet, model, sizes
from kvtier.breakeven.checks import positive
from kvtier.breakeven.imbalance import expected_imbalance
from kvtier.breakeven.rates import interpolate, prefill_rate, sample

ZERO_ALLOWED = {
    "tokens",
    "round_trip",
    "round_trips",
    "fixed",
    "read_seconds",
    "recompute",
    "fetch",
    "qk_rope_head_dim",
    "hit_rate",
    "rank_availability",
    "store_bytes",
}
FORMULAS: list[Callable[..., Any]] = [
    sizes.gqa_bytes_per_token,
    sizes.mla_bytes_per_token,
    sizes.gqa_replication,
    sizes.working_set_bytes,
    sizes.tokens_held,
    model.recompute_seconds,
    model.fetch_seconds,
    model.fetch_wins,
    model.break_even_bandwidth,
    model.break_even_bandwidth_at,
    model.minimum_hit_tokens,
    model.expected_gain_seconds,
    access.stream_seconds_per_token,
    access.offload_seconds_per_token,
    access.local_read_seconds,
    access.local_decode_seconds_per_token,
    fleet.demand,
    fleet.storm_factor,
    fleet.availability,
    expected_imbalance,
]
CASES = [
    (formula, name)
    for formula in FORMULAS
    for name in inspect.signature(formula).parameters
    if name != "headroom"
]


@pytest.mark.parametrize(("formula", "name"), CASES)
@pytest.mark.parametrize("bad", [0, -1, math.inf, -math.inf, math.nan, 10**400])
def test_an_unusable_figure_is_named(formula: Callable[..., Any], name: str, bad: float) -> None:
    names = [each for each in inspect.signature(formula).parameters if each != "headroom"]
    figures = {each: 0.5 if each in ("hit_rate", "rank_availability") else 1 for each in names}
    formula(**figures)  # usable as it is
    figures[name] = bad
    if bad == 0 and name in ZERO_ALLOWED:
        formula(**figures)
        return
    with pytest.raises(ValueError, match=name):
        formula(**figures)


def test_a_storm_factor_without_misses_is_refused() -> None:
    with pytest.raises(ValueError, match="miss_rate"):
        fleet.storm_factor(1)


@pytest.mark.parametrize("bandwidths", [[], [1.0, 0.0], [1.0, math.nan]])
def test_ranks_without_bandwidth_have_no_aggregate(bandwidths: list[float]) -> None:
    with pytest.raises(ValueError, match="rank"):
        fleet.aggregate_bandwidth(bandwidths)


def test_the_message_says_what_was_given() -> None:
    with pytest.raises(ValueError, match="bandwidth must be a finite number above zero, not -3"):
        positive(bandwidth=-3)


def test_a_rate_is_linear_between_points_and_that_of_the_nearest_outside() -> None:
    points = [(1000, 4000.0), (3000, 2000.0)]
    assert [prefill_rate(points, tokens) for tokens in (0, 1000, 1500, 2000, 3000, 9000)] == [
        4000,
        4000,
        3500,
        3000,
        2000,
        2000,
    ]


def test_points_that_cannot_be_used_are_refused() -> None:
    with pytest.raises(ValueError, match="points"):
        interpolate([], 1)
    with pytest.raises(ValueError, match="rate"):
        prefill_rate([(1, 0)], 1)
    with pytest.raises(ValueError, match="tokens"):
        prefill_rate([(1, 1)], math.nan)
    with pytest.raises(ValueError, match="count"):
        sample([(1, 1)], 0)


def test_samples_stand_for_equal_shares() -> None:
    assert sample([(0.0, 0.0), (1.0, 100.0)], 4) == [12.5, 37.5, 62.5, 87.5]
    assert sample([(0.5, 8.0)], 3) == [8, 8, 8]
