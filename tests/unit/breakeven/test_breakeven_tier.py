"""A whole tier: sizes by striping and attention, the link that counts, rows, verdicts."""

import math
from typing import Any

import pytest
from tier_specs import MakeSpec

from kvtier.breakeven.imbalance import expected_imbalance
from kvtier.breakeven.patterns import Access, assess_access
from kvtier.breakeven.tier import (
    STANDARD_LENGTHS,
    Assessment,
    Verdict,
    assess,
    chunk_bytes_per_rank,
    declared_link,
    logical_bytes_per_token,
    wire_bytes_per_token,
)
from kvtier.breakeven.words import gigabits

MLA = {"mla": {"layers": 61, "kvLoraRank": 512, "qkRopeHeadDim": 64}}
T0 = {"pool.hitLatency": "100ms", "pool.hitEngineTime": "20ms"}
LINK = [{"domain": "zone", "bitsPerSecond": "100G", "roundTrip": "50us"}]
GOOD = T0 | {"placement.links": LINK}


def by_length(assessment: Assessment) -> dict[int, bool | None]:
    return {row.tokens: row.wins for row in assessment.rows}


def test_shard_spreads_every_chunk_over_all_ranks(make_spec: MakeSpec) -> None:
    spec = make_spec()
    assert logical_bytes_per_token(spec) == wire_bytes_per_token(spec) == 327_680
    assert chunk_bytes_per_rank(spec) == 327_680 * 256 // 8


def test_hash_puts_a_whole_chunk_on_one_rank(make_spec: MakeSpec) -> None:
    assert chunk_bytes_per_rank(make_spec({"pool.striping": "Hash"})) == 327_680 * 256


@pytest.mark.parametrize("striping", ["Shard", "Hash"])
def test_fewer_kv_heads_than_tensor_ranks_are_stored_more_than_once(
    make_spec: MakeSpec, striping: str
) -> None:
    """Qwen3-235B at TP8 stores each of its 4 heads twice."""
    spec = make_spec({"model.layout.gqa.kvHeads": 4, "pool.striping": striping})
    assert logical_bytes_per_token(spec) == 163_840
    assert wire_bytes_per_token(spec) == 327_680


def test_a_pipeline_has_fewer_tensor_ranks_to_copy_heads(make_spec: MakeSpec) -> None:
    parallelism = {"tensor": 4, "pipeline": 2}
    spec = make_spec(
        {
            "model.layout.gqa.kvHeads": 4,
            "pool.striping": "Hash",
            "pool.parallelism": parallelism,
        }
    )
    assert wire_bytes_per_token(spec) == logical_bytes_per_token(spec) == 163_840


def test_pure_mla_is_stored_by_every_rank_under_shard_and_once_under_hash(
    make_spec: MakeSpec,
) -> None:
    shard = make_spec({"model.layout": MLA})
    assert wire_bytes_per_token(shard) == 8 * 70_272
    assert chunk_bytes_per_rank(shard) == 70_272 * 256
    assert wire_bytes_per_token(make_spec({"model.layout": MLA, "pool.striping": "Hash"})) == 70_272


def test_bytes_per_token_is_taken_as_given(make_spec: MakeSpec) -> None:
    spec = make_spec({"model.layout": {"bytesPerToken": 48_401}})
    assert logical_bytes_per_token(spec) == wire_bytes_per_token(spec) == 48_401
    assert chunk_bytes_per_rank(spec) == 48_401 * 256 // 8
    small = make_spec({"model.layout": {"bytesPerToken": 5}, "pool.chunkTokens": 17})
    assert chunk_bytes_per_rank(small) == math.ceil(5 * 17 / 8)


@pytest.mark.parametrize(
    ("dtype", "bytes_"), [("float32", 655_360), ("float16", 327_680), ("fp8_e5m2", 163_840)]
)
def test_the_dtype_scales_the_size(make_spec: MakeSpec, dtype: str, bytes_: int) -> None:
    assert wire_bytes_per_token(make_spec({"model.kvCacheDtype": dtype})) == bytes_


@pytest.mark.parametrize(
    ("within", "reach", "judged"),
    [
        (None, None, "zone"),
        ("rack", None, "rack"),
        ("hostname", None, "rack"),
        ("rack", "zone", "zone"),
        (None, "hostname", "rack"),
        (None, "rack", "rack"),
        (None, "gone", "zone"),
    ],
)
def test_the_link_is_that_of_where_ranks_run_or_else_of_where_they_are_to(
    make_spec: MakeSpec, within: str | None, reach: str | None, judged: str
) -> None:
    names = ("hostname", "rack", "zone")
    spec = make_spec(
        {
            "placement.domains": [{"name": name, "key": name} for name in names],
            "placement.within": within,
            # Not declared near to far, and none for one node.
            "placement.links": [
                {"domain": name, "bitsPerSecond": "25G", "roundTrip": "50us"}
                for name in ("zone", "rack")
            ],
        }
    )
    found = declared_link(spec, reach=reach)
    assert found is not None
    assert found.domain == judged


@pytest.mark.parametrize(
    ("within", "reach"), [(None, "zone"), ("zone", None), ("hostname", "zone")]
)
def test_no_hit_is_judged_by_a_link_that_is_nearer_than_it_goes(
    make_spec: MakeSpec, within: str | None, reach: str | None
) -> None:
    near = {"domain": "hostname", "bitsPerSecond": "400G", "roundTrip": "10us"}
    spec = make_spec(T0 | {"placement.links": [near], "placement.within": within})
    assert declared_link(spec, reach=reach) is None
    found = assess(spec, reach=reach)
    assert (found.verdict, found.reason) == (Verdict.UNKNOWN, "LinkNotDeclared")
    assert "declare one for zone in placement.links" in found.message
    streamed = assess_access(spec, Access.PER_TOKEN_STREAM, reach=reach)
    assert all(row.remote_seconds is None for row in streamed.rows)


def test_the_farthest_declared_link_is_judged(make_spec: MakeSpec) -> None:
    links = [
        {"domain": "zone", "bitsPerSecond": "8G", "roundTrip": "1ms"},
        {"domain": "hostname", "bitsPerSecond": "400G", "roundTrip": "10us"},
    ]
    found = assess(make_spec({"placement.links": links})).link
    assert found is not None
    assert (found.domain, found.bytes_per_second) == ("zone", 1e9)
    assert found.round_trip_seconds == pytest.approx(0.001)


def test_without_a_link_the_verdict_is_unknown(make_spec: MakeSpec) -> None:
    found = assess(make_spec(T0))
    assert (found.verdict, found.reason) == (Verdict.UNKNOWN, "LinkNotDeclared")
    assert found.minimum_hit is None
    assert found.break_even == 1.6384e9
    assert "13.1 Gb/s" in found.message


@pytest.mark.parametrize("half", [{}, {"pool.hitLatency": "1ms"}, {"pool.hitEngineTime": "1ms"}])
def test_an_undeclared_t0_is_not_zero(make_spec: MakeSpec, half: dict[str, Any]) -> None:
    found = assess(make_spec({"placement.links": LINK} | half))
    assert (found.verdict, found.reason) == (Verdict.UNKNOWN, "T0NotDeclared")
    assert found.ratio == pytest.approx(12.5e9 / 1.6384e9)
    assert set(by_length(found).values()) == {None}


def test_a_link_below_break_even_never_pays_even_without_t0(make_spec: MakeSpec) -> None:
    slow = [{"domain": "zone", "bitsPerSecond": "13G", "roundTrip": "50us"}]
    found = assess(make_spec({"placement.links": slow}))
    assert (found.verdict, found.reason) == (Verdict.NEVER_PAYS, "BelowBreakEven")


def test_a_link_of_exactly_break_even_never_pays(make_spec: MakeSpec) -> None:
    exact = [{"domain": "zone", "bitsPerSecond": str(8 * 327_680 * 5000), "roundTrip": "50us"}]
    found = assess(make_spec(T0 | {"placement.links": exact}))
    assert found.ratio == 1
    assert (found.verdict, found.minimum_hit) == (Verdict.NEVER_PAYS, math.inf)
    assert assess(make_spec({"placement.links": exact})).verdict is Verdict.NEVER_PAYS


def test_a_tier_that_wins_at_every_standard_length_pays(make_spec: MakeSpec) -> None:
    found = assess(make_spec(GOOD))
    assert found.verdict is Verdict.PAYS
    assert found.gain_seconds is None
    assert by_length(found) == dict.fromkeys(STANDARD_LENGTHS, True)


def test_the_minimum_hit_is_the_first_length_that_wins(make_spec: MakeSpec) -> None:
    found = assess(make_spec(GOOD | {"pool.hitLatency": "1s"}))
    assert found.verdict is Verdict.PAYS_WHEN_LONG
    least = found.minimum_hit
    # (T0 + rtt) / (1/R - s/B) = 1.02005 / (1/5000 - 327680/12.5e9)
    assert least == math.floor(1.02005 / (1 / 5000 - 327_680 / 12.5e9)) + 1
    assert f"{least:,} tokens" in found.message
    assert all(wins is (tokens >= least) for tokens, wins in by_length(found).items())
    lengths = [{"quantile": "0.5", "tokens": least - 1}, {"quantile": "1", "tokens": least}]
    again = assess(make_spec(GOOD | {"pool.hitLatency": "1s", "workload.promptTokens": lengths}))
    assert by_length(again)[least] is True
    assert by_length(again)[least - 1] is False


def test_the_papers_tier_pays_when_long(make_spec: MakeSpec) -> None:
    """arXiv 2610.21500 by its own figures: 22.5k tokens, with an even spread over the ranks."""
    found = assess(
        make_spec(
            {
                "model.layout": {"bytesPerToken": 48_400},
                "model.kvCacheDtype": "fp8_e4m3",
                "pool.prefillRate": [{"tokensPerSecond": 52_200}],
                "pool.hitLatency": "300ms",
                "pool.hitEngineTime": "30ms",
                "placement.links": [
                    {"domain": "zone", "bitsPerSecond": "86080M", "roundTrip": "1us"}
                ],
                "workload.promptTokens": [{"quantile": "1", "tokens": 16_384}],
            }
        )
    )
    assert found.verdict is Verdict.PAYS_WHEN_LONG
    assert found.minimum_hit == pytest.approx(22_500, rel=0.001)
    row = next(row for row in found.rows if row.tokens == 16_384)
    assert row.fetch_seconds == pytest.approx(0.404, abs=5e-4)
    assert row.recompute_seconds == pytest.approx(0.314, abs=5e-4)
    assert "none of the lengths in workload.promptTokens" in found.message


def test_hash_divides_the_link_by_the_imbalance_of_the_hit(make_spec: MakeSpec) -> None:
    even = {row.tokens: row for row in assess(make_spec(GOOD)).rows}
    hashed = {row.tokens: row for row in assess(make_spec(GOOD | {"pool.striping": "Hash"})).rows}
    fixed = 0.12 + 50e-6
    for tokens in (1024, 16_384, 131_072):
        slower = (hashed[tokens].fetch_seconds or 0) - fixed
        assert slower / ((even[tokens].fetch_seconds or 0) - fixed) == pytest.approx(
            expected_imbalance(tokens // 256, 8)
        )
        needed, exact = hashed[tokens].bytes_per_second, even[tokens].bytes_per_second
        assert needed is not None
        assert exact is not None
        assert needed / exact == pytest.approx(expected_imbalance(tokens // 256, 8))


def test_a_row_wins_exactly_above_the_bandwidth_it_names(make_spec: MakeSpec) -> None:
    for striping in ("Hash", "Shard"):
        found = assess(make_spec(GOOD | {"pool.striping": striping, "pool.hitLatency": "900ms"}))
        assert {row.wins for row in found.rows} == {True, False}
        for row in found.rows:
            assert row.bytes_per_second is not None
            assert row.wins is (row.bytes_per_second < 12.5e9)


def test_break_even_takes_the_slowest_declared_rate(make_spec: MakeSpec) -> None:
    """Below it no length can win; above it only long hits of a pool that slows down may."""
    rates = [{"tokens": 1024, "tokensPerSecond": 8000}, {"tokens": 65_536, "tokensPerSecond": 4000}]
    link = [{"domain": "zone", "bitsPerSecond": "16G", "roundTrip": "50us"}]
    spec = make_spec(GOOD | {"pool.prefillRate": rates, "placement.links": link})
    found = assess(spec)
    assert found.break_even == 327_680 * 4000
    assert found.verdict is Verdict.PAYS_WHEN_LONG
    assert by_length(found)[65_536] is True
    assert by_length(found)[1024] is False
    slower = [{"domain": "zone", "bitsPerSecond": "10485M", "roundTrip": "50us"}]
    never = assess(make_spec(GOOD | {"pool.prefillRate": rates, "placement.links": slower}))
    assert never.verdict is Verdict.NEVER_PAYS
    assert not any(row.wins for row in never.rows)


def test_rates_are_interpolated_between_declared_lengths(make_spec: MakeSpec) -> None:
    rates = [{"tokens": 1024, "tokensPerSecond": 8000}, {"tokens": 3072, "tokensPerSecond": 4000}]
    found = {row.tokens: row for row in assess(make_spec({"pool.prefillRate": rates})).rows}
    assert found[1024].recompute_seconds == 1024 / 8000
    assert found[2048].recompute_seconds == 2048 / 6000
    assert found[4096].recompute_seconds == 4096 / 4000
    assert 3072 in found


def test_hit_lengths_are_judged_by_the_time_gained_on_average(make_spec: MakeSpec) -> None:
    """Half of the hits are short and lose a little; the long ones more than make up for it."""
    slow_start = GOOD | {"pool.hitLatency": "1s"}
    lengths = [{"quantile": "0.5", "tokens": 1024}, {"quantile": "1", "tokens": 100_000}]
    found = assess(make_spec(slow_start | {"workload.hitTokens": lengths}))
    assert found.verdict is Verdict.PAYS
    assert found.gain_seconds is not None
    # On average 0.5 x 1,024 + 0.5 x 50,512 tokens, and time is linear in them.
    mean = 0.5 * 1024 + 0.5 * (1024 + 100_000) / 2
    expected = mean * (1 / 5000 - 327_680 / 12.5e9) - 1.02005
    assert found.gain_seconds == pytest.approx(expected, rel=0.01)
    assert found.minimum_hit is not None
    share = 0.5 * (100_000 - found.minimum_hit) / (100_000 - 1024)
    assert found.share_won == pytest.approx(share, abs=0.01)


def test_mostly_short_hits_pay_when_long_only(make_spec: MakeSpec) -> None:
    lengths = [{"quantile": "0.95", "tokens": 1024}, {"quantile": "1", "tokens": 12_000}]
    found = assess(make_spec(GOOD | {"pool.hitLatency": "1s", "workload.hitTokens": lengths}))
    assert found.verdict is Verdict.PAYS_WHEN_LONG
    assert found.gain_seconds is not None
    assert found.gain_seconds < 0
    assert "more on average" in found.message
    assert found.lengths.source == "workload.hitTokens"


def test_prompts_are_judged_where_no_hits_are_declared(make_spec: MakeSpec) -> None:
    prompts = [{"quantile": "0.5", "tokens": 2000}, {"quantile": "0.9", "tokens": 20_000}]
    found = assess(make_spec(GOOD | {"workload.promptTokens": prompts}))
    assert found.lengths.tokens == (2000, 20_000)
    assert found.verdict is Verdict.PAYS
    assert found.share_won is None


def test_compression_lowers_break_even(make_spec: MakeSpec) -> None:
    link = [{"domain": "zone", "bitsPerSecond": "5G", "roundTrip": "20ms"}]
    spec = make_spec(T0 | {"placement.links": link})
    assert assess(spec).verdict is Verdict.NEVER_PAYS
    found = assess(spec, compression=3.5)
    assert found.verdict is Verdict.PAYS_WHEN_LONG
    assert found.break_even == pytest.approx(1.6384e9 / 3.5)
    with pytest.raises(ValueError, match="compression"):
        assess(spec, compression=0)


def test_a_link_a_hair_above_break_even_pays_at_no_length_anyone_can_declare(
    make_spec: MakeSpec,
) -> None:
    hair = [{"domain": "zone", "bitsPerSecond": "13107200100", "roundTrip": "50us"}]
    found = assess(make_spec(GOOD | {"placement.links": hair}))
    assert found.ratio is not None
    assert found.ratio > 1
    assert (found.verdict, found.minimum_hit) == (Verdict.NEVER_PAYS, math.inf)


def test_status_rounds_times_and_nothing_else(make_spec: MakeSpec) -> None:
    found = assess(make_spec(GOOD | {"pool.hitLatency": "1s", "pool.ranks": 8}))
    status = found.status()
    assert status["bytesPerToken"] == status["logicalBytesPerToken"] == 327_680
    assert status["chunkBytes"] == 83_886_080
    assert status["bytesPerSecond"] == 1_638_400_000
    assert f"break-even is {gigabits(status['bytesPerSecond'])}" in found.message
    assert status["minimumHitTokens"] == found.minimum_hit
    assert status["perLength"][3] == {
        "tokens": 8192,
        "recomputeSeconds": 1.6,
        "fetchSeconds": 1.2,
        "wins": True,
    }
    figures = found.figures()
    assert figures.keys() == status.keys()
    assert figures["bytesPerSecond"] == 1_638_400_000
    assert figures["perLength"][3]["fetchSeconds"] == pytest.approx(1.02005 + 0.214748, abs=1e-5)
    assert found.measured() == {
        "bytesPerSecond": 12_500_000_000,
        "roundTripSeconds": pytest.approx(50e-6),
        "evidence": "Declared",
        "ratio": pytest.approx(7.629, abs=1e-3),
    }


def test_status_leaves_out_what_is_not_known(make_spec: MakeSpec) -> None:
    found = assess(make_spec())
    assert found.measured() is None
    assert "minimumHitTokens" not in found.status()
    assert found.status()["perLength"][0] == {"tokens": 1024, "recomputeSeconds": 0.2}


def test_a_length_of_which_the_store_holds_one_token_less_does_not_fit(make_spec: MakeSpec) -> None:
    found = assess(make_spec())
    for held, fit in ((8192, 4), (8191, 3)):
        for form in (found.status, found.figures):
            rows = form(held=held)["perLength"]
            assert [row.get("fits") for row in rows] == [None] * fit + [False] * (len(rows) - fit)


def test_the_order_in_which_rates_are_declared_does_not_matter(make_spec: MakeSpec) -> None:
    points = [
        {"tokens": 1024, "tokensPerSecond": 6000},
        {"tokens": 8192, "tokensPerSecond": 5000},
        {"tokens": 65536, "tokensPerSecond": 3000},
    ]
    turned = {"pool.prefillRate": points[::-1]}
    assert assess(make_spec(turned)).rows == assess(make_spec({"pool.prefillRate": points})).rows
