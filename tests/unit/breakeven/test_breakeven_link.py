"""A tier judged by a link that was measured instead of the declared one."""

import math
from dataclasses import replace

import pytest
from tier_specs import MakeSpec

from kvtier.breakeven.assessment import Evidence
from kvtier.breakeven.tier import Verdict, assess
from measured_link import ONE_VALKEY

PAPER = {
    "model.layout": {"bytesPerToken": 48_400},
    "pool.prefillRate": [{"tokensPerSecond": 52_200}],
}
"""arXiv 2610.21500: B* is 2.53 GB/s; one Valkey gave 1.71 GB/s, one per rank 10.76."""
T0 = {"pool.hitLatency": "100ms", "pool.hitEngineTime": "20ms"}
FAST_DECLARED = {
    "placement.links": [{"domain": "zone", "bitsPerSecond": "400G", "roundTrip": "5us"}]
}


def test_a_measured_link_takes_the_place_of_the_declared_one(make_spec: MakeSpec) -> None:
    spec = make_spec(PAPER | T0 | FAST_DECLARED)
    assert assess(spec).verdict is Verdict.PAYS_WHEN_LONG
    found = assess(spec, link=ONE_VALKEY)
    assert (found.verdict, found.reason) == (Verdict.NEVER_PAYS, "BelowBreakEven")
    assert found.ratio == pytest.approx(1.71e9 / (48_400 * 52_200))
    assert found.measured() == {
        "bytesPerSecond": 1_710_000_000,
        "roundTripSeconds": 50e-6,
        "evidence": "Probed",
        "ratio": found.ratio,
        "at": "2026-11-30T01:00:00Z",
        "node": "node-2",
    }


def test_a_measured_link_needs_no_declared_one(make_spec: MakeSpec) -> None:
    assert assess(make_spec(PAPER), link=ONE_VALKEY).verdict is Verdict.NEVER_PAYS


def test_the_message_says_what_was_measured_where_and_how_long_ago(make_spec: MakeSpec) -> None:
    message = assess(make_spec(PAPER), link=ONE_VALKEY, link_age=260).message
    assert message.endswith(
        "It needs 2.53 GB/s, slowest rank x 8 gives 1.71 GB/s, measured 4 min ago from node-2."
    )


def test_without_an_age_the_message_has_the_time_and_never_changes(make_spec: MakeSpec) -> None:
    message = assess(make_spec(PAPER), link=ONE_VALKEY).message
    assert message.endswith("measured at 2026-11-30T01:00:00Z from node-2.")


def test_a_message_has_no_more_than_what_is_known(make_spec: MakeSpec) -> None:
    bare = replace(
        ONE_VALKEY,
        evidence=Evidence.OBSERVED,
        at=None,
        node=None,
        slowest_rank_bytes_per_second=None,
    )
    message = assess(make_spec(PAPER), link=bare).message
    assert message.endswith("It needs 2.53 GB/s, the zone link gives 1.71 GB/s, seen by engines.")


def test_a_lower_bound_proves_nothing_against_a_tier(make_spec: MakeSpec) -> None:
    throttled = replace(ONE_VALKEY, lower_bound=True)
    found = assess(make_spec(PAPER | T0), link=throttled)
    assert (found.verdict, found.reason) == (Verdict.UNKNOWN, "LowerBoundOnly")
    assert "gives at least 1.71 GB/s" in found.message


def test_a_lower_bound_above_break_even_proves_as_much_as_any_other(make_spec: MakeSpec) -> None:
    spec = make_spec(PAPER | T0)
    fast = replace(ONE_VALKEY, bytes_per_second=10.76e9, slowest_rank_bytes_per_second=1.345e9)
    full = assess(spec, link=fast)
    assert full.verdict is Verdict.PAYS_WHEN_LONG
    assert assess(spec, link=replace(fast, lower_bound=True)).verdict is full.verdict


@pytest.mark.parametrize("bandwidth", [0.0, -1.0, math.nan, math.inf])
def test_a_link_that_cannot_be_is_refused(make_spec: MakeSpec, bandwidth: float) -> None:
    with pytest.raises(ValueError, match="bytes_per_second"):
        assess(make_spec(PAPER), link=replace(ONE_VALKEY, bytes_per_second=bandwidth))


def test_a_lower_bound_does_not_hide_a_t0_that_no_prompt_makes_up_for(make_spec: MakeSpec) -> None:
    """A hundred million tokens take half an hour to prefill, T0 two hours."""
    hours = {"pool.hitLatency": "1h", "pool.hitEngineTime": "1h"}
    found = assess(make_spec(PAPER | hours), link=replace(ONE_VALKEY, lower_bound=True))
    assert found.floor_hit == math.inf
    assert found.verdict is Verdict.NEVER_PAYS
