"""The checks of the load: one demand for all of them, and advice that helps."""

from dataclasses import replace

import pytest
from paper_tier import QUICK, finding, link, spec, tokens

from kvtier.api import reasons
from kvtier.breakeven.observed import SeenRate
from kvtier.breakeven.tier import assess
from kvtier.placement.case import Case
from kvtier.placement.findings import Severity
from measured_link import ONE_VALKEY


@pytest.mark.parametrize("hit_rate", ["0.1", "0.5", "1"])
@pytest.mark.parametrize("striping", ["Hash", "Shard"])
def test_the_verdict_and_the_finding_mean_the_same_demand(hit_rate: str, striping: str) -> None:
    known = spec(
        {"workload.promptTokens": tokens(1000, 65_536), "pool.striping": striping},
        {"workload.hitRate": hit_rate},
    )
    assessment = assess(known)
    case = Case(spec=known, assessment=assessment, engines=1)
    assert assessment.load is not None
    assert assessment.link is not None
    assert case.moved is not None
    asked = case.moved.times(1 / assessment.link.bytes_per_second)
    assert assessment.load.link.read.mean == pytest.approx(asked.read)
    assert assessment.load.link.written.mean == pytest.approx(asked.written)
    assert assessment.load.link.utilisation(1) == pytest.approx(asked.busier)


def test_a_rising_rate_overtakes_every_declared_hit() -> None:
    rising = {
        "pool.prefillRate": [
            {"tokens": 4096, "tokensPerSecond": 10_000},
            {"tokens": 65_536, "tokensPerSecond": 200_000},
        ]
    }
    reason, known = reasons.NO_HIT_LONG_ENOUGH, (rising, link("30G"))
    found = finding(reason, *known, {"workload.hitTokens": tokens(65_536)})
    assert found is not None
    assert found.severity is Severity.ERROR
    assert "tokens are faster, and the shortest in workload.hitTokens is 65,536" in found.message
    lost = finding(reasons.HITS_LOSE_ON_AVERAGE, *known, {"workload.hitTokens": tokens(65_536)})
    assert lost is None, "none wins: another finding says so"
    assert finding(reason, *known, {"workload.hitTokens": tokens(4096)}) is None
    assert finding(reason, *known) is None, "the standard lengths are nobody's"


@pytest.mark.parametrize(
    ("engines", "together", "said"),
    [
        # 16k hits at 0.9/s are 0.71 GB/s of an engine; a node's link gives 8 GB/s.
        (20, 8, ("8 of 8 ranks", " Spread the ranks.")),
        (95, 2, ("2 of 8 ranks", "Spread the ranks, and split the pool", "is not enough.")),
        (95, 1, ("1 of 8 ranks", "as far as they spread: split the pool into several tiers")),
        (
            95,
            None,
            ("one rank (if each rank has a node of its own) with 64 Gb/s", "split the pool"),
        ),
    ],
)
def test_what_helps_ranks_that_are_contended(
    engines: int, together: int | None, said: tuple[str, ...]
) -> None:
    known = ({"workload.hitTokens": tokens(16_384)}, link("64G"), {"pool.maxEngines": engines})
    rate = {"workload.requestsPerSecond": "0.9"}
    found = finding(reasons.RANKS_CONTENDED, *known, rate, ranks_together=together)
    assert found is not None
    assert found.severity is Severity.ERROR
    for words in said:
        assert words in found.message
    spread = together is not None and together > 1
    assert ("Spread the ranks" in found.message) is spread


def test_each_queue_names_what_shortens_it() -> None:
    workload = {"workload.promptTokens": tokens(65_536), "workload.hitRate": "0.5"}
    busy = (QUICK, workload, {"workload.requestsPerSecond": "7"})
    for reason, fix in (
        (reasons.GPU_QUEUE_UNSTABLE, "Run more engines, so that each gets fewer requests."),
        (reasons.LINK_QUEUE_UNSTABLE, "Run more engines, so that each gets fewer requests, or use"),
    ):
        found = finding(reason, *busy)
        assert found is not None
        assert fix in found.message
    measured = replace(ONE_VALKEY, bytes_per_second=10.76e9)
    found = finding(reasons.RANKS_CONTENDED, *busy, link=measured, engines=8)
    assert found is not None
    assert "Where they do, split the pool into several tiers" in found.message


@pytest.mark.parametrize(
    ("engines", "said"),
    [(1, "With 1 engine reading"), (8, "With 8 engines reading")],
)
def test_a_single_engine_is_not_told_to_be_fewer(engines: int, said: str) -> None:
    # Of a chunk of 12.4 MB.
    found = finding(reasons.LINK_TOO_SLOW_FOR_POOL, link("50M"), {"pool.maxEngines": engines})
    assert found is not None
    assert said in found.message
    assert ("Lower pool.maxEngines" in found.message) is (engines > 1)
    assert ("Lower pool.chunkTokens (for a new tier)" in found.message) is (engines == 1)


@pytest.mark.parametrize(
    ("rates", "seen", "said"),
    [
        (
            [70_000_000, 60_000_001],
            99e6,
            "metrics (Observed) they prefill 115,499,998 tok",
        ),
        ([90_000_000, 100], 10e3, "pool.prefillRate has 90,000,000 tokens/s for 8 ranks"),
        ([90_000_000], 30e6, "pool.prefillRate has 90,000,000 tokens/s for 8 ranks"),
    ],
)
def test_a_rate_that_nothing_has_is_blamed_on_who_says_it(
    rates: list[int], seen: float, said: str
) -> None:
    points = [
        {"tokens": 1000 * (place + 1), "tokensPerSecond": rate} for place, rate in enumerate(rates)
    ]
    reason, declared = reasons.IMPLAUSIBLE_FIGURE, {"pool.prefillRate": points}
    found = finding(reason, declared, seen=SeenRate(at_least=seen))
    assert found is not None
    assert said in found.message


@pytest.mark.parametrize(
    ("reason", "hits"),
    [(reasons.NO_PROMPT_LONG_ENOUGH, (16_384,)), (reasons.NO_HIT_LONG_ENOUGH, (18_000, 20_000))],
)
def test_a_load_that_fills_the_link_makes_up_for_nothing(
    reason: str, hits: tuple[int, ...]
) -> None:
    """11 of 20,000 tokens, or 13 of 16,384, are a second of the link."""
    known = {"workload.hitTokens": tokens(*hits)}
    for rate, severity in (("2", Severity.WARNING), ("14", Severity.ERROR)):
        found = finding(reason, known, {"workload.requestsPerSecond": rate})
        assert found is not None
        assert found.severity is severity
        named = "14 are declared, and the link is full at 13.6" in found.message
        assert named is (rate == "14" and reason == reasons.NO_PROMPT_LONG_ENOUGH)
