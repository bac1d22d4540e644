"""Each check: when it speaks, with which figures, and when it does not."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from paper_tier import QUICK, expect, finding, judged, link, spec, tokens

from kvtier.api import reasons
from kvtier.api.types import KVCacheTierSpec
from kvtier.breakeven.observed import SeenRate
from kvtier.breakeven.tier import assess
from kvtier.placement.case import Case
from kvtier.placement.chain import CHAIN, examine
from kvtier.placement.findings import Severity
from kvtier.placement.store_checks import memory_too_small
from measured_link import ONE_VALKEY

ERROR, WARNING = Severity.ERROR, Severity.WARNING
HITS_16K = {"workload.hitTokens": tokens(16_384)}
HITS_64K = {"workload.hitTokens": tokens(65_536)}


def rate(requests_per_second: str) -> dict[str, Any]:
    return {"workload.requestsPerSecond": requests_per_second}


def test_nothing_is_found_of_a_tier_that_pays() -> None:
    found = judged(QUICK, HITS_64K, rate("0.45"), {"pool.maxEngines": 6})
    assert found.findings == ()
    assert found.rejected is None


def test_memory_for_fewer_than_16_chunks() -> None:
    """The parser refuses it; a spec from elsewhere is judged too."""
    document = spec().model_dump(mode="json", by_alias=True, exclude_none=True)
    document["store"]["memoryPerRank"] = "64Mi"
    small = KVCacheTierSpec.model_validate(document)
    assessment = assess(small)
    found = memory_too_small(Case(spec=small, assessment=assessment, engines=1))
    expect(found, ERROR, "spec.store.memoryPerRank", "needs 16", blocks=True)
    assert examine(small, assessment=assessment)[0] == found


def test_a_t0_that_no_prompt_makes_up_for_on_any_link() -> None:
    """The paper: a hit on fewer than 17.2k tokens loses at any bandwidth."""
    reason = reasons.NO_PROMPT_LONG_ENOUGH
    expect(finding(reason, HITS_16K), ERROR, "330 ms", "17,227 tokens", "16,384", blocks=True)
    assert finding(reason, {"workload.hitTokens": tokens(17_227)}) is None
    assert finding(reason) is None, "no length is declared"
    longer = {"workload.promptTokens": tokens(20_000)}
    assert finding(reason, HITS_16K, longer) is None, "a hit can be as long as a prompt"


def test_it_does_not_block_where_the_declared_load_makes_up_for_it() -> None:
    reason = reasons.NO_PROMPT_LONG_ENOUGH
    threshold = judged(HITS_16K).assessment.load
    assert threshold is not None
    assert threshold.threshold == pytest.approx(1.2, abs=0.1)
    expect(finding(reason, HITS_16K, rate("2")), WARNING, "2 are declared", "1.2")
    # On a link without limits 0.9 would be enough, so it is this link that decides: no block.
    expect(finding(reason, HITS_16K, rate("0.9")), ERROR)
    expect(finding(reason, HITS_16K, rate("0.1")), ERROR, blocks=True)


def test_hits_that_the_store_cannot_hold() -> None:
    reason, small = reasons.HITS_DO_NOT_FIT, {"store.memoryPerRank": "1Gi", "pool.maxEngines": 1}
    held = Case(spec=spec(small), assessment=assess(spec(small)), engines=1).held_tokens
    assert held is not None
    fits, longer = {"workload.hitTokens": tokens(held)}, {"workload.hitTokens": tokens(held + 1)}
    assert finding(reason, small, fits) is None
    expect(finding(reason, small, longer), ERROR, f"{held:,}", f"{held + 1:,}", blocks=True)
    some = {"workload.hitTokens": tokens(held // 2, held * 2)}
    expect(finding(reason, small, some), WARNING, f"{held * 2:,}")


def test_the_store_of_hashed_chunks_holds_as_much_as_all_ranks_do() -> None:
    for striping in ("Hash", "Shard"):
        tier = spec({"pool.striping": striping})
        case = Case(spec=tier, assessment=assess(tier), engines=1)
        assert case.held_tokens is not None
        assert case.held_tokens * 48_400 == pytest.approx(8 * 64 * 2**30 * 0.88, rel=0.02)


def test_a_link_below_break_even_is_an_error_with_both_figures() -> None:
    reason = reasons.BELOW_BREAK_EVEN
    expect(finding(reason, link("16G")), ERROR, "16 Gb/s", "20.2 Gb/s", "0.792 x break-even")
    assert finding(reason, link("20.3G")) is None
    expect(
        finding(reason, link=ONE_VALKEY),
        ERROR,
        "needs 2.53 GB/s, slowest rank x 8 gives 1.71 GB/s, measured at 2026-11-30T01:00:00Z from"
        " node-2",
    )


def test_a_lower_bound_is_no_finding() -> None:
    bound = replace(ONE_VALKEY, lower_bound=True)
    changes = (HITS_64K, rate("3"), {"pool.maxEngines": 64})
    assert {one.reason for one in judged(*changes, link=bound).findings} == {
        reasons.GPU_QUEUE_UNSTABLE
    } & {one.reason for one in judged(*changes).findings}


def test_a_link_below_break_even_only_warns_under_a_load_that_makes_up_for_it() -> None:
    """0.7 B* and a hit rate of a half: GPU and link can do more than the GPU alone, up to 1.1/s."""
    reason, half = reasons.BELOW_BREAK_EVEN, {"workload.hitRate": "0.5"}
    known = ({"workload.promptTokens": tokens(65_536)}, half, QUICK, link("14.1G"))
    expect(finding(reason, *known, rate("0.7")), WARNING)
    for each in ("0.01", "1.2"):
        expect(finding(reason, *known, rate(each)), ERROR)
    expect(finding(reason, *known), ERROR, "0.698 x break-even")


def test_no_declared_hit_reaches_the_minimum_hit() -> None:
    reason = reasons.NO_HIT_LONG_ENOUGH
    hits = {"workload.hitTokens": tokens(18_000, 20_000)}
    expect(finding(reason, hits), ERROR, "from 22,5", "20,000", "86.1 Gb/s")
    expect(finding(reason, hits, rate("1.5")), WARNING)
    assert finding(reason, {"workload.hitTokens": tokens(20_000, 40_000)}) is None
    assert finding(reason) is None, "the standard lengths are nobody's"
    assert finding(reason, HITS_16K) is None, "no link would help: another finding says so"
    assert finding(reason, hits, link("16G")) is None, "below B* says so already"


def test_no_length_at_all_is_found_without_any_being_declared() -> None:
    hours = {"pool.hitLatency": "1h", "pool.hitEngineTime": "1h"}
    for given in (hours, hours | link("20.3G")):
        found = finding(reasons.NO_PROMPT_LONG_ENOUGH, given)
        expect(found, ERROR, "longer than a prefill of any length", "on no link", blocks=True)
    assert finding(reasons.NO_HIT_LONG_ENOUGH, hours, link("20.3G")) is None


def test_hits_that_lose_more_than_they_gain() -> None:
    reason = reasons.HITS_LOSE_ON_AVERAGE
    few = {"workload.hitTokens": [{"quantile": "0.8", "tokens": 1000}, *tokens(30_000)]}
    expect(finding(reason, few), WARNING, "5 %", "on average")
    longer = {"workload.hitTokens": [{"quantile": "0.5", "tokens": 8000}, *tokens(30_000)]}
    expect(finding(reason, longer, rate("0.5")), WARNING, "17 %")
    assert finding(reason, longer, rate("3")) is None, "the load makes up for it"
    assert finding(reason, {"workload.hitTokens": tokens(30_000)}) is None
    assert finding(reason, HITS_16K) is None, "none wins: another finding says so"


def test_a_round_trip_as_long_as_the_prefill() -> None:
    """papers.md: below rtt x R no bandwidth helps."""
    reason, far = reasons.ROUND_TRIP_TOO_LONG, link("86080M", "20ms")
    expect(finding(reason, far), WARNING, "20 ms", "1,044 tokens", "one chunk (256")
    some = {"workload.hitTokens": tokens(1000, 100_000)}
    expect(finding(reason, far, some), WARNING, "50 %")
    expect(finding(reason, far, {"workload.hitTokens": tokens(1000)}), ERROR, "100 %")
    assert finding(reason, far, HITS_64K) is None
    assert finding(reason) is None


def test_chunks_of_a_hash_are_uneven() -> None:
    reason, hashed = reasons.CHUNKS_UNEVEN, {"pool.striping": "Hash"}
    found = finding(reason, hashed, {"workload.hitTokens": tokens(8192)})
    expect(found, WARNING, "32 chunks", "56.8 %", "chunkTokens")
    gqa = {"model.layout": {"gqa": {"layers": 24, "kvHeads": 8, "headDim": 128}}}
    expect(finding(reason, hashed, gqa, {"workload.hitTokens": tokens(8192)}), WARNING, "Shard")
    assert finding(reason, hashed, {"workload.hitTokens": tokens(131_072)}) is None
    assert finding(reason, {"workload.hitTokens": tokens(8192)}) is None
    assert finding(reason, hashed) is None


def test_the_gpus_queue() -> None:
    """The prompt of 64k takes 1.2555 s; half of it hits: 0.628 + 0.005 s."""
    reason, workload = reasons.GPU_QUEUE_UNSTABLE, {"workload.promptTokens": tokens(65_536)}
    half = {"workload.hitRate": "0.5"}
    assert finding(reason, QUICK, workload, half, rate("1.2")) is None
    expect(finding(reason, QUICK, workload, half, rate("1.5")), WARNING, "0.949", "1.88")
    expect(finding(reason, QUICK, workload, half, rate("1.6")), ERROR, "1.01", "633 ms")
    assert finding(reason, QUICK, workload, half) is None, "no rate is declared"
    assert finding(reason, QUICK, rate("1.6")) is None, "no length is declared"


def test_the_queue_of_one_engines_link_is_that_of_its_busier_direction() -> None:
    """A prompt of 64k is 3.17 GB, hit or missed; the link gives 10.76 GB/s each way."""
    reason, workload = reasons.LINK_QUEUE_UNSTABLE, {"workload.promptTokens": tokens(65_536)}
    for hit_rate, way, warns, fails in (
        ("1", "into", "2.8", "3.5"),
        ("0.001", "out of", "2.8", "3.5"),
        ("0.5", "into", "5.6", "7"),
    ):
        known = (QUICK, workload, {"workload.hitRate": hit_rate, "pool.maxEngines": 1})
        assert finding(reason, *known, rate("2.7")) is None
        expect(finding(reason, *known, rate(warns)), WARNING, "0.82", f"the way {way} its node")
        expect(finding(reason, *known, rate(fails)), ERROR, "1.03", "grows without end")


def test_a_link_is_not_full_of_reads_and_writes_together() -> None:
    """66.5 Gb/s in and 44.3 Gb/s out over 100 Gb/s: 0.67 of it, though the sum is 1.11."""
    reason = reasons.LINK_QUEUE_UNSTABLE
    known = ({"workload.promptTokens": tokens(65_536), "workload.hitRate": "0.6"}, rate("4.366"))
    assert finding(reason, QUICK, *known, link("100G")) is None
    said = ("reads 66.5 Gb/s, writes 44.3 Gb/s", "80 Gb/s each way", "busy 0.831")
    expect(finding(reason, QUICK, *known, link("80G")), WARNING, *said)


def test_six_engines_of_the_paper_ask_for_two_gigabytes_a_second() -> None:
    """0.45 requests/s each and 0.79 GB a prompt; one engine was measured to get 10.76 GB/s."""
    eight = replace(ONE_VALKEY, bytes_per_second=10.76e9, slowest_rank_bytes_per_second=1.345e9)
    known = (HITS_16K, rate("0.45"))
    case = Case(spec=spec(*known), assessment=assess(spec(*known)), engines=6)
    assert case.moved is not None
    assert case.moved.read == pytest.approx(0.79e9, rel=0.01)
    assert case.moved.times(6 * 0.45).busier == pytest.approx(2.1e9, rel=0.02)
    reason = reasons.RANKS_CONTENDED
    assert finding(reason, *known, link=eight, engines=6) is None
    assert finding(reason, *known, link=eight, engines=30) is None
    expect(
        finding(reason, *known, link=eight, engines=31), WARNING, "31 engines", "reads 11.1 GB/s"
    )


@pytest.mark.parametrize(
    ("together", "severity"), [(None, None), (1, None), (2, None), (4, WARNING), (8, ERROR)]
)
def test_ranks_on_one_node_share_its_link_once(
    together: int | None, severity: Severity | None
) -> None:
    """20 engines ask for 14.3 GB/s of all nodes, a node's link gives 8."""
    known = (HITS_16K, rate("0.9"), link("64G"), {"pool.maxEngines": 20})
    found = finding(reasons.RANKS_CONTENDED, *known, ranks_together=together)
    if severity is None:
        assert found is None
    else:
        expect(found, severity, f"{together} of 8 ranks", "20 engines")


def test_a_working_set_that_does_not_stay() -> None:
    reason = reasons.CAPACITY_BELOW_WORKING_SET
    held = Case(spec=spec(), assessment=assess(spec()), engines=1).held_tokens
    assert held is not None
    assert finding(reason, {"workload.workingSetTokens": held}) is None
    expect(finding(reason, {"workload.workingSetTokens": 2 * held}), WARNING, "50 %", f"{held:,}")


def test_a_link_too_slow_for_a_short_timeout() -> None:
    reason = reasons.LINK_TOO_SLOW_FOR_POOL
    assert finding(reason) is None
    expect(finding(reason, {"pool.maxEngines": 400}), WARNING, "400 engines", "request_timeout")
    found = finding(reason, {"pool.maxEngines": 400, "placement.links": None})
    expect(found, WARNING, "an assumed link of 25 Gb/s")


def test_a_timeout_that_the_measured_rank_does_not_meet() -> None:
    """Workers x engines x chunk on a rank: 99 MB, in 0.93 s at an eighth of 856 MB/s."""
    reason = reasons.REQUEST_TIMEOUT_TOO_SHORT
    slow = replace(ONE_VALKEY, bytes_per_second=0.856e9, slowest_rank_bytes_per_second=0.107e9)
    expect(finding(reason, link=slow), WARNING, "0.107 GB/s", "926 ms", "0.3 s")
    assert finding(reason, link=replace(slow, lower_bound=True)) is None
    assert finding(reason, link=replace(slow, slowest_rank_bytes_per_second=0.6e9)) is None
    assert finding(reason) is None


def test_a_dead_rank_stalls_for_longer_than_is_promised() -> None:
    """256 chunks by 8 workers are 32 batches of 0.3 s."""
    reason = reasons.STALL_ABOVE_TARGET
    stock, short = {"pool.engine.adapter": "Stock"}, {"workload.targetTTFT": "5s"}
    expect(finding(reason, HITS_64K, stock, short), WARNING, "9.6 s", "256 chunks", "Plugin")
    assert finding(reason, HITS_64K, stock, {"workload.targetTTFT": "10s"}) is None
    assert finding(reason, HITS_64K, stock) is None
    assert finding(reason, HITS_64K, short) is None, "the plugin waits once"
    other = {"pool.engine.connector": "Generic"}
    assert finding(reason, HITS_64K, short, other) is None


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (SeenRate(at_least=65_000), None),
        (SeenRate(at_least=66_000), "at least 66,000"),
        (SeenRate(at_least=30_000, at_most=40_000), None),
        (SeenRate(at_least=30_000, at_most=39_000), "at most 39,000"),
        (SeenRate(at_least=30_000), None),
        (None, None),
    ],
)
def test_an_observed_rate_more_than_a_quarter_off(seen: SeenRate | None, said: str | None) -> None:
    one = finding(reasons.PREFILL_RATE_OFF, seen=seen)
    assert (one is not None) is (said is not None)
    if said is not None:
        expect(
            one, WARNING, "52,200 (Declared)", f"{said} tokens/s by their own metrics (Observed)"
        )


def test_an_observed_rate_is_that_of_the_prompts_with_the_least() -> None:
    falling = {
        "pool.prefillRate": [
            {"tokens": 1000, "tokensPerSecond": 50_000},
            {"tokens": 100_000, "tokensPerSecond": 10_000},
        ]
    }
    reason = reasons.PREFILL_RATE_OFF
    assert finding(reason, falling, seen=SeenRate(at_least=10_000)) is None
    expect(finding(reason, falling, seen=SeenRate(at_least=50_000)), WARNING, "5 times")


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        ({"hitTokens": tokens(9000), "promptTokens": tokens(8000)}, "9,000"),
        (
            {"hitTokens": tokens(4000), "promptTokens": tokens(8000), "hitRate": "0.6"},
            "would be 0.5",
        ),
        ({"hitTokens": tokens(50_000), "workingSetTokens": 40_000}, "40,000"),
        (
            {
                "promptTokens": tokens(50_000),
                "requestsPerSecond": "0.1",
                "workingSetTokens": 10**12,
            },
            "once in 289 d",
        ),
    ],
)
def test_figures_that_cannot_both_be_true(workload: dict[str, Any], said: str) -> None:
    changes = {f"workload.{name}": value for name, value in workload.items()}
    expect(finding(reasons.CONTRADICTORY_WORKLOAD, QUICK, changes), WARNING, said)


def test_figures_that_agree_are_no_contradiction() -> None:
    workload = {
        "workload.hitTokens": tokens(4000),
        "workload.promptTokens": tokens(8000),
        "workload.hitRate": "0.5",
        "workload.requestsPerSecond": "0.1",
        "workload.workingSetTokens": 10**8,
    }
    assert finding(reasons.CONTRADICTORY_WORKLOAD, QUICK, workload) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"pool.prefillRate": [{"tokensPerSecond": 80_000_001}]}, "80,000,001"),
        (link("11T"), "11,000 Gb/s"),
        (link("86G", "2s"), "2 s"),
        (rate("1001"), "1,001"),
    ],
)
def test_figures_that_nothing_has(change: dict[str, Any], said: str) -> None:
    expect(finding(reasons.IMPLAUSIBLE_FIGURE, change), WARNING, said)


def test_figures_that_something_has_are_plausible() -> None:
    edge = (link("10T", "1s"), rate("1000"), {"pool.prefillRate": [{"tokensPerSecond": 8 * 10**7}]})
    assert finding(reasons.IMPLAUSIBLE_FIGURE, *edge) is None


def test_what_blocks_comes_first_then_errors_then_warnings() -> None:
    found = judged(
        HITS_16K, rate("0.1"), {"pool.striping": "Hash", "workload.workingSetTokens": 1}
    ).findings
    assert [one.blocks for one in found] == sorted((one.blocks for one in found), reverse=True)
    severities = [one.severity is ERROR for one in found]
    assert severities == sorted(severities, reverse=True)
    assert {ERROR, WARNING} <= {one.severity for one in found}


def test_a_tier_is_rejected_only_for_what_no_link_changes_and_only_if_asked() -> None:
    block = {"placement.onReject": "Block"}
    rejected = judged(HITS_16K, block).rejected
    assert rejected is not None
    assert rejected.reason == reasons.NO_PROMPT_LONG_ENOUGH
    assert judged(HITS_16K).rejected is None
    assert judged(block, link("16G")).errors[0].reason == reasons.BELOW_BREAK_EVEN
    assert judged(block, link("16G")).rejected is None


def test_every_reason_of_a_finding_is_given_by_some_check() -> None:
    """``FINDING_REASONS`` is what the code can say, no more: each is tried above, by name."""
    engine_checks = Path(__file__).with_name("test_placement_engine_checks.py")
    text = Path(__file__).read_text() + engine_checks.read_text()
    for name, value in vars(reasons).items():
        if value in reasons.FINDING_REASONS and name != "MEMORY_TOO_SMALL":
            assert f"reasons.{name}" in text, name
    assert len(CHAIN) >= len(reasons.FINDING_REASONS)
