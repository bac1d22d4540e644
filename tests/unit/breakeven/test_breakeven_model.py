"""The figures of the decision page "Centralized KV cache placement" (A) and of the paper "When the
KV Cache Is Slower Than the GPU" (B, arXiv 2610.21500)."""

import math

import pytest

from kvtier.breakeven import access, fleet, model
from kvtier.breakeven.sizes import gqa_bytes_per_token

LLAMA = gqa_bytes_per_token(layers=80, kv_heads=8, head_dim=128, element_bytes=2)
LLAMA_RATE = 5000
GLM = 48_400
GLM_RATE = 52_200
GLM_T0 = 0.33


def test_llama_70b_breaks_even_at_13_1_gigabits_and_at_3_7_compressed() -> None:
    """A, break-even bandwidth."""
    raw = model.break_even_bandwidth(bytes_per_token=LLAMA, rate=LLAMA_RATE)
    compressed = model.break_even_bandwidth(bytes_per_token=LLAMA, rate=LLAMA_RATE, compression=3.5)
    assert raw == 1.6384e9
    assert raw * 8 / 1e9 == pytest.approx(13.1, abs=0.05)
    assert compressed * 8 / 1e9 == pytest.approx(3.7, abs=0.05)
    assert compressed < 0.47e9


@pytest.mark.parametrize(
    ("bandwidth", "round_trip", "compression", "fetch", "wins"),
    [
        (12.5e9, 0.001, 1, 0.2157, True),
        (0.125e9, 0.020, 1, 21.4948, False),
        (0.625e9, 0.020, 1, 4.3150, False),
        (0.625e9, 0.020, 3.5, 1.2471, True),
    ],
)
def test_the_gate_table_of_the_decision_page(
    bandwidth: float, round_trip: float, compression: float, fetch: float, wins: bool
) -> None:
    """A, gate table: 8,192 tokens; recompute 1.6384 s."""
    figures = {
        "tokens": 8192,
        "bytes_per_token": LLAMA,
        "bandwidth": bandwidth,
        "round_trip": round_trip,
        "compression": compression,
    }
    assert model.recompute_seconds(8192, LLAMA_RATE) == 1.6384
    assert model.fetch_seconds(**figures) == pytest.approx(fetch, abs=5e-5)
    assert model.fetch_wins(rate=LLAMA_RATE, **figures) is wins


def test_no_tokens_are_never_fetched() -> None:
    assert not model.fetch_wins(tokens=0, bytes_per_token=1, rate=1, bandwidth=1e12)


def test_a_tie_is_recomputed() -> None:
    assert not model.fetch_wins(tokens=8, bytes_per_token=1, rate=4, bandwidth=4)


def test_below_a_round_trips_worth_of_tokens_no_bandwidth_helps() -> None:
    """A: 100 tokens at 20 ms and 5,000 tokens/s."""

    def needed(tokens: int) -> float:
        return model.break_even_bandwidth_at(
            tokens=tokens, bytes_per_token=LLAMA, rate=LLAMA_RATE, round_trip=0.020
        )

    assert needed(0) == math.inf
    assert needed(100) == math.inf
    assert needed(101) < math.inf


@pytest.mark.parametrize("tokens", [1024, 8192, 131_072])
def test_a_thousandth_above_the_exact_break_even_wins_and_below_loses(tokens: int) -> None:
    """A, RTT-exact."""
    needed = model.break_even_bandwidth_at(
        tokens=tokens, bytes_per_token=LLAMA, rate=LLAMA_RATE, round_trip=0.020
    )
    for factor, wins in ((1.001, True), (0.999, False)):
        assert wins is model.fetch_wins(
            tokens=tokens,
            bytes_per_token=LLAMA,
            rate=LLAMA_RATE,
            bandwidth=needed * factor,
            round_trip=0.020,
        )


def test_the_exact_break_even_is_within_a_thousandth_at_a_million_tokens() -> None:
    """A, RTT-exact."""
    limit = model.break_even_bandwidth(bytes_per_token=LLAMA, rate=LLAMA_RATE)
    exact = model.break_even_bandwidth_at(
        tokens=1_000_000, bytes_per_token=LLAMA, rate=LLAMA_RATE, round_trip=0.020
    )
    assert limit < exact < limit * 1.001


@pytest.mark.parametrize(
    ("bytes_per_token", "rate", "gigabits"),
    [
        # PrfaaS (arXiv 2604.15039) publishes s R at 32K for 8xH200; rates follow from the sizes.
        (253_952, 29_500, 59.93),
        (192_512, 21_650, 33.35),
        (30_720, 33_570, 8.25),
        # Worked examples beside its table.
        (327_680, 10_000, 26.2),
        (70_272, 10_000, 5.62),
        (30_720, 30_000, 7.37),
    ],
)
def test_kv_throughput_of_published_models(
    bytes_per_token: int, rate: float, gigabits: float
) -> None:
    found = model.break_even_bandwidth(bytes_per_token=bytes_per_token, rate=rate)
    assert found * 8 / 1e9 == pytest.approx(gigabits, rel=0.002)


@pytest.mark.parametrize(
    ("bytes_per_token", "rate", "terabits"), [(253_952, 29_500, 3.8), (192_512, 21_650, 2.1)]
)
def test_dense_models_on_512_gpus_need_terabits(
    bytes_per_token: int, rate: float, terabits: float
) -> None:
    """A: egress of 64 engines of 8xH200 at 32K."""
    egress = fleet.demand(
        engines=64, requests_per_second=rate / 32_768, bytes_per_request=32_768 * bytes_per_token
    )
    assert egress * 8 / 1e12 == pytest.approx(terabits, abs=0.05)


def test_streaming_the_history_costs_216_ms_a_token_against_under_1_ms_locally() -> None:
    """A, access pattern 2, 8,192 tokens."""
    fast = access.stream_seconds_per_token(
        tokens=8192, bytes_per_token=LLAMA, bandwidth=12.5e9, round_trip=0.001
    )
    slow = access.stream_seconds_per_token(
        tokens=8192, bytes_per_token=LLAMA, bandwidth=0.125e9, round_trip=0.020
    )
    local = access.local_read_seconds(tokens=8192, bytes_per_token=LLAMA)
    assert fast == pytest.approx(0.216, abs=5e-4)
    assert slow == pytest.approx(21.5, abs=0.05)
    assert local == pytest.approx(0.0008, abs=5e-6)
    assert fast / local > 250


def test_shipping_the_query_waits_20_times_as_long_as_a_pipeline() -> None:
    """A, access pattern 3: 80 layers against 4 stages at 20 ms."""
    offload = access.offload_seconds_per_token(layers=80, round_trip=0.020)
    stages = access.local_decode_seconds_per_token(read_seconds=0, round_trips=4, round_trip=0.020)
    assert offload == pytest.approx(1.6)
    assert offload / stages == pytest.approx(20)


def test_a_local_decode_over_4_stages_takes_80_8_ms_a_token() -> None:
    """A."""
    read = access.local_read_seconds(tokens=8192, bytes_per_token=LLAMA)
    decode = access.local_decode_seconds_per_token(
        read_seconds=read, round_trips=4, round_trip=0.020
    )
    assert decode == pytest.approx(0.0808, abs=5e-5)


def test_petals_steps_slow_down_as_2_2_round_trips_say() -> None:
    """A, Petals Table 3: +95 ms of round trip takes 1.66 steps/s to 1.23."""
    slower = access.local_decode_seconds_per_token(
        read_seconds=1 / 1.66, round_trips=2.2, round_trip=0.095
    )
    assert 1 / slower == pytest.approx(1.23, abs=0.005)


def test_the_papers_break_even_is_2_53_gigabytes_per_second() -> None:
    """B; its chunk of 256 tokens has 12.4 MB."""
    assert model.break_even_bandwidth(bytes_per_token=GLM, rate=GLM_RATE) == pytest.approx(
        2.53e9, rel=0.002
    )
    chunk = 256 * GLM
    assert chunk == pytest.approx(12.4e6, rel=0.002)


def test_a_hit_on_fewer_than_17200_tokens_loses_at_any_bandwidth() -> None:
    """B: T0 x R."""
    figures = {"bytes_per_token": GLM, "rate": GLM_RATE, "fixed": GLM_T0}
    assert model.break_even_bandwidth_at(tokens=17_200, **figures) == math.inf
    assert model.break_even_bandwidth_at(tokens=17_300, **figures) < math.inf


def test_one_valkey_serves_a_16k_hit_in_0_79_seconds_against_0_31() -> None:
    """B: 1.71 GB/s is below break-even."""
    hit = model.fetch_seconds(tokens=16_384, bytes_per_token=GLM, bandwidth=1.71e9, fixed=GLM_T0)
    assert hit == pytest.approx(0.79, abs=0.005)
    assert model.recompute_seconds(16_384, GLM_RATE) == pytest.approx(0.314, abs=5e-4)
    assert math.isinf(
        model.minimum_hit_tokens(bytes_per_token=GLM, rate=GLM_RATE, bandwidth=1.71e9)
    )


def test_the_papers_own_tier_needs_hits_of_22500_tokens() -> None:
    """B's tier of 8 Valkeys, judged by its own figures: 0.404 s against 0.314 s at 16k."""
    figures = {"bytes_per_token": GLM, "bandwidth": 10.76e9, "fixed": GLM_T0}
    assert model.fetch_seconds(tokens=16_384, **figures) == pytest.approx(0.404, abs=5e-4)
    assert model.minimum_hit_tokens(rate=GLM_RATE, **figures) == pytest.approx(22_500, rel=0.001)


def test_eight_valkeys_give_6_3_times_one() -> None:
    """B: 10.76 GB/s; a prompt waits for the slowest rank."""
    total = fleet.aggregate_bandwidth([10.76e9 / 8] * 8)
    assert total / 1.71e9 == pytest.approx(6.3, abs=0.05)
    assert fleet.aggregate_bandwidth([3.0, 1.0, 2.0]) == 3.0


def test_six_engines_draw_about_2_gigabytes_per_second() -> None:
    """B: 0.45 requests/s each, 0.79 GB a prompt of 16k."""
    prompt = 16_384 * GLM
    assert prompt == pytest.approx(0.79e9, rel=0.005)
    assert prompt / 8 == pytest.approx(99e6, rel=0.005)
    draw = fleet.demand(engines=6, requests_per_second=0.45, bytes_per_request=prompt)
    assert draw == pytest.approx(2.1e9, rel=0.03)


def test_a_fleet_sized_for_nine_hits_in_ten_gets_ten_times_the_work_when_cold() -> None:
    assert fleet.storm_factor(0.9) == pytest.approx(10)
    assert fleet.storm_factor(0) == 1


def test_one_lost_rank_of_eight_loses_the_tier() -> None:
    assert fleet.availability(rank_availability=0.999, ranks=8) == pytest.approx(0.999**8)


def test_slow_hits_make_the_fleet_slower_the_more_there_are() -> None:
    """A: hit rate and fetch latency are one pair."""
    gains = [
        model.expected_gain_seconds(hit_rate=rate, recompute=0.314, fetch=0.404)
        for rate in (0.1, 0.9)
    ]
    assert gains == [pytest.approx(-0.009), pytest.approx(-0.081)]
