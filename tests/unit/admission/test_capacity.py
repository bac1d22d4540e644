"""Zero-hit capacity and limits, by hand and for every figure."""

import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtier.admission import capacity
from kvtier.api.load import parse_tier
from kvtier.api.types import KVCacheTierSpec

Shares = st.floats(0, 1)
Misses = st.floats(0, 0.98)
Utilizations = st.floats(0.01, 1)
Engines = st.integers(1, 10_000)
Rates = st.floats(1, 1e9)
Prompts = st.floats(1, 1e6)


def spec(**parts: Mapping[str, Any]) -> KVCacheTierSpec:
    document: dict[str, Any] = {
        "apiVersion": "kvtier.dev/v1alpha1",
        "kind": "KVCacheTier",
        "metadata": {"name": "llama", "namespace": "models"},
        "spec": {
            "model": {
                "name": "meta-llama/Llama-3.1-70B-Instruct",
                "revision": "1605565b47bb9346c5515c34102e054115b4f98b",
                "kvCacheDtype": "bfloat16",
                "layout": {"gqa": {"layers": 80, "kvHeads": 8, "headDim": 128}},
            },
            "pool": {
                "ranks": 8,
                "prefillRate": [
                    {"tokens": 4000, "tokensPerSecond": 6000},
                    {"tokens": 12000, "tokensPerSecond": 4000},
                ],
            },
            "store": {"memoryPerRank": "64Gi"},
            **parts,
        },
    }
    return parse_tier(document).spec


def test_four_engines_of_5000_tokens_at_a_share_of_0_8() -> None:
    assert capacity.prefill_capacity(engines=4, engine_rate=5000) == 20_000
    assert capacity.zero_hit_capacity(engines=4, engine_rate=5000, utilization=0.8) == 16_000
    assert capacity.limit_at(capacity=16_000, hit_low=0) == 16_000
    assert capacity.limit_at(capacity=16_000, hit_low=0.9) == pytest.approx(160_000)
    assert capacity.max_queued_tokens(target_ttft=2, prefill=20_000) == 40_000


def test_a_cold_tier_is_ten_times_the_work_at_nine_hits_in_ten_and_fifty_at_most() -> None:
    assert capacity.storm_factor(0) == 1
    assert capacity.storm_factor(0.9) == pytest.approx(10)
    assert capacity.storm_factor(0.98) == pytest.approx(50)
    assert capacity.storm_factor(0.999) == capacity.storm_factor(1) == 50


@pytest.mark.parametrize(
    ("offered", "engines"), [(0, 0), (1, 1), (4000, 1), (4001, 2), (100_000, 25), (100_001, 26)]
)
def test_the_fewest_engines_that_take_a_load_cold(offered: float, engines: int) -> None:
    assert capacity.required_engines(offered=offered, engine_rate=5000, utilization=0.8) == engines


@given(engines=Engines, rate=Rates, utilization=Utilizations, hit=Shares, prompt=Prompts)
def test_at_the_limit_gpus_are_busy_for_utilization_and_no_more(
    engines: int, rate: float, utilization: float, hit: float, prompt: float
) -> None:
    cold = capacity.zero_hit_capacity(engines=engines, engine_rate=rate, utilization=utilization)
    offered = capacity.limit_at(capacity=cold, hit_low=hit)
    rho = capacity.gpu_rho(
        offered=offered, engines=engines, engine_rate=rate, hit_share=hit, mean_prompt=prompt
    )
    assert rho <= utilization * (1 + 1e-9)
    if hit <= 1 - capacity.LEAST_MISS:
        assert rho == pytest.approx(utilization)


@given(engines=Engines, rate=Rates, utilization=Utilizations, low=Shares, true=Shares)
def test_hits_that_are_more_than_they_are_taken_for_only_make_room(
    engines: int, rate: float, utilization: float, low: float, true: float
) -> None:
    low, true = sorted((low, true))
    cold = capacity.zero_hit_capacity(engines=engines, engine_rate=rate, utilization=utilization)
    rho = capacity.gpu_rho(
        offered=capacity.limit_at(capacity=cold, hit_low=low),
        engines=engines,
        engine_rate=rate,
        hit_share=true,
        mean_prompt=8192,
    )
    assert rho <= utilization * (1 + 1e-9)


@given(
    engines=st.tuples(Engines, Engines),
    rates=st.tuples(Rates, Rates),
    hits=st.tuples(Shares, Shares),
    floor=st.floats(0, 1e9),
)
def test_more_engines_rate_or_hits_never_lower_the_limit_and_it_is_never_zero(
    engines: tuple[int, int], rates: tuple[float, float], hits: tuple[float, float], floor: float
) -> None:
    limits = [
        capacity.limit_at(
            capacity=capacity.zero_hit_capacity(engines=n, engine_rate=r, utilization=0.8),
            hit_low=h,
            floor=floor,
        )
        for n, r, h in zip(sorted(engines), sorted(rates), sorted(hits), strict=True)
    ]
    assert 0 < limits[0] <= limits[1] * (1 + 1e-12)
    assert limits[0] >= floor


@given(offered=st.floats(0, 1e12), rate=st.floats(10, 1e6), utilization=Utilizations)
def test_the_engines_required_are_enough_and_one_less_is_not(
    offered: float, rate: float, utilization: float
) -> None:
    count = capacity.required_engines(offered=offered, engine_rate=rate, utilization=utilization)
    cold = capacity.zero_hit_capacity(engines=count, engine_rate=rate, utilization=utilization)
    one = utilization * rate
    assert cold >= offered - 1e-6 * one - 1e-9 * offered
    assert count == 0 or cold - one < offered + 1e-9 * offered


def test_a_hit_that_holds_the_gpu_counts_and_a_cold_tier_fills_the_other_way_of_the_link() -> None:
    rho = capacity.gpu_rho(
        offered=8000, engines=1, engine_rate=10_000, hit_share=0.9, mean_prompt=1000, held=0.03
    )
    assert rho == pytest.approx(8 * (0.1 * 0.1 + 0.03))
    warm, cold = (
        capacity.link_rho(
            offered=8000, engines=2, hit_share=hit, bytes_per_token=327_680, bandwidth=3.125e9
        )
        for hit in (0.9, 0.0)
    )
    assert warm == pytest.approx(0.9 * cold) == pytest.approx(0.9 * 4000 * 327_680 / 3.125e9)
    nothing = capacity.gpu_rho(offered=1, engines=0, engine_rate=1, hit_share=0, mean_prompt=1)
    assert math.isinf(nothing)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: capacity.prefill_capacity(engines=-1, engine_rate=1), "engines"),
        (lambda: capacity.prefill_capacity(engines=1, engine_rate=0), "engine_rate"),
        (
            lambda: capacity.zero_hit_capacity(engines=1, engine_rate=1, utilization=0),
            "utilization",
        ),
        (
            lambda: capacity.zero_hit_capacity(engines=1, engine_rate=1, utilization=1.1),
            "utilization",
        ),
        (lambda: capacity.limit_at(capacity=1, hit_low=1.1), "hit_low"),
        (lambda: capacity.limit_at(capacity=math.nan, hit_low=0), "capacity"),
        (lambda: capacity.max_queued_tokens(target_ttft=-1, prefill=1), "target_ttft"),
        (
            lambda: capacity.required_engines(offered=math.inf, engine_rate=1, utilization=1),
            "offered",
        ),
        (lambda: capacity.sizes_of(spec(), engine_rate=0), "engine_rate"),
        (lambda: capacity.sizes_of(spec(), hit_share=1.5), "share"),
    ],
)
def test_a_figure_out_of_range_is_named(call: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        call()


def test_the_rate_is_that_of_the_mean_prompt() -> None:
    declared = spec(workload={"promptTokens": [{"quantile": "0.5", "tokens": 8000}]})
    sizes = capacity.sizes_of(declared)
    assert (sizes.mean_prompt, sizes.engine_rate, sizes.ranks) == (8000, 5000, 8)
    assert (sizes.utilization, sizes.floor) == (0.8, 0.1)
    assert sizes.target_ttft is None
    assert sizes.expected_hit is None


@given(engines=Engines, rate=Rates, hit=Misses, prompt=Prompts, seconds=st.floats(0, 10))
def test_at_the_limit_the_time_that_hits_hold_gpus_for_is_in_it(
    engines: int, rate: float, hit: float, prompt: float, seconds: float
) -> None:
    cold = capacity.zero_hit_capacity(engines=engines, engine_rate=rate, utilization=0.8)
    held = capacity.held_share(held=seconds, engine_rate=rate, mean_prompt=prompt)
    rho = capacity.gpu_rho(
        offered=capacity.limit_at(capacity=cold, hit_low=hit, held=held),
        engines=engines,
        engine_rate=rate,
        hit_share=hit,
        mean_prompt=prompt,
        held=seconds,
    )
    assert rho == pytest.approx(0.8)


def test_without_prompts_the_mean_is_that_of_hits_over_their_share_or_else_8192() -> None:
    hits = {"hitTokens": [{"quantile": "0.5", "tokens": 6000}], "hitRate": "0.5"}
    sizes = capacity.sizes_of(spec(workload=hits))
    assert (sizes.mean_prompt, sizes.engine_rate, sizes.expected_hit) == (12_000, 4000, 0.5)
    assert capacity.sizes_of(spec()).mean_prompt == 8192


def test_what_was_measured_goes_before_what_is_declared() -> None:
    workload = {"hitRate": "0.5", "targetTTFT": "1500ms"}
    sizes = capacity.sizes_of(spec(workload=workload), engine_rate=4321, hit_share=0.7)
    assert (sizes.engine_rate, sizes.expected_hit, sizes.target_ttft) == (4321, 0.7, 1.5)


def test_utilization_and_floor_are_those_of_the_tier() -> None:
    sizes = capacity.sizes_of(spec(admission={"utilization": "0.6", "floor": "0"}))
    assert (sizes.utilization, sizes.floor) == (0.6, 0.0)
