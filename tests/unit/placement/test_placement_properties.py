"""Whatever a valid tier declares, the chain has findings or none, and raises nothing."""

from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from paper_tier import PAPER, judged

from kvtier.api import reasons
from kvtier.api.conditions import MAX_MESSAGE, Condition
from kvtier.api.load import InvalidTier, parse_tier
from kvtier.breakeven.assessment import Evidence, LinkFigures, Verdict
from kvtier.breakeven.observed import SeenRate
from kvtier.placement.judgement import Judgement
from kvtier.plan.verdict import earning_its_keep, placement_accepted

LENGTHS = st.integers(1, 10**8)
DECIMALS = st.sampled_from(["0.0000000001", "0.001", "0.45", "1", "1.0"])
DURATIONS = st.sampled_from(["0s", "1us", "80ms", "1h"])


@st.composite
def quantiles(draw: st.DrawFn) -> list[dict[str, Any]]:
    lengths = sorted(draw(st.lists(LENGTHS, max_size=3)))
    return [
        {"quantile": quantile, "tokens": length}
        for quantile, length in zip(("0.000001", "0.5", "1"), lengths, strict=False)
    ]


@st.composite
def changes(draw: st.DrawFn) -> dict[str, Any]:
    rates = draw(st.dictionaries(LENGTHS, st.integers(1, 10**9), min_size=1, max_size=4))
    optional = {
        "pool.hitLatency": draw(st.none() | DURATIONS),
        "pool.hitEngineTime": draw(st.none() | DURATIONS),
        "workload.requestsPerSecond": draw(st.none() | DECIMALS | st.just("100000")),
        "workload.hitRate": draw(st.none() | DECIMALS),
        "workload.targetTTFT": draw(st.none() | st.sampled_from(["1ms", "1h"])),
        "workload.workingSetTokens": draw(st.none() | st.integers(1, 10**13)),
        "placement.links": draw(
            st.none()
            | st.builds(
                lambda bits, trip: [{"domain": "zone", "bitsPerSecond": bits, "roundTrip": trip}],
                st.sampled_from(["1M", "25G", "1000T"]),
                st.sampled_from(["1us", "20ms", "10s"]),
            )
        ),
    }
    return optional | {
        "model.layout": {"bytesPerToken": draw(st.integers(1, 1 << 20))},
        "store.memoryPerRank": draw(st.sampled_from(["4Gi", "16Ti", "16Ti"])),
        "pool.maxEngines": draw(st.sampled_from([1, 8, 1024])),
        "pool.ranks": draw(st.sampled_from([1, 8, 64])),
        "pool.striping": draw(st.sampled_from(["Hash", "Shard"])),
        "pool.prefillRate": [
            {"tokens": length, "tokensPerSecond": rate} for length, rate in rates.items()
        ],
        "placement.onReject": draw(st.sampled_from(["Block", "Warn"])),
        "workload.hitTokens": draw(quantiles()),
        "workload.promptTokens": draw(quantiles()),
    }


LINKS = st.none() | st.builds(
    LinkFigures,
    domain=st.just("zone"),
    bytes_per_second=st.floats(1, 1e15),
    round_trip_seconds=st.floats(0, 10),
    evidence=st.sampled_from(Evidence),
    at=st.none() | st.just("2026-11-30T01:00:00Z"),
    node=st.none() | st.just("node-2"),
    slowest_rank_bytes_per_second=st.none() | st.floats(1, 1e15),
    lower_bound=st.booleans(),
)

SEEN = st.builds(
    SeenRate,
    at_least=st.floats(0, 1e9),
    at_most=st.none() | st.floats(1e-3, 1e9),
    at=st.none(),
)


def conditions(judgement: Judgement) -> list[Condition]:
    return [placement_accepted(judgement), earning_its_keep(judgement, before={})]


@settings(max_examples=100, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    changes=changes(),
    measured=LINKS,
    seen=st.none() | SEEN,
    together=st.none() | st.integers(1, 64),
    engines=st.none() | st.integers(0, 2000),
)
def test_any_valid_tier_has_findings_or_none(
    changes: dict[str, Any],
    measured: LinkFigures | None,
    seen: SeenRate | None,
    together: int | None,
    engines: int | None,
) -> None:
    try:
        found = judged(
            changes,
            link=measured,
            seen=seen,
            ranks_together=together,
            engines=engines,
        )
    except InvalidTier:
        return
    assessment = found.assessment
    for one in found.findings:
        assert one.reason in reasons.FINDING_REASONS
        assert one.message.endswith((".", "maxEngines"))
        assert "nan" not in one.message
        assert "None" not in one.message
        # With figures of twenty digits; of a real fleet they have four.
        assert len(one.message) < MAX_MESSAGE * 0.6
    for condition in conditions(found):
        assert condition.reason in reasons.CONDITION_REASONS[condition.type]
    # One thing cannot be both judged to pay and found not to.
    listed = {one.reason for one in found.errors}
    if assessment.verdict is Verdict.PAYS:
        assert not listed & {reasons.BELOW_BREAK_EVEN, reasons.NO_HIT_LONG_ENOUGH}
        assert reasons.HITS_LOSE_ON_AVERAGE not in {one.reason for one in found.findings}
    if assessment.verdict is Verdict.NEVER_PAYS:
        assert listed & {
            reasons.BELOW_BREAK_EVEN,
            reasons.NO_HIT_LONG_ENOUGH,
            reasons.NO_PROMPT_LONG_ENOUGH,
        }
    if listed & {reasons.LINK_QUEUE_UNSTABLE, reasons.BELOW_BREAK_EVEN}:
        assert assessment.earns is not True
    link = assessment.link
    if link is not None and link.lower_bound and assessment.floor_hit != float("inf"):
        assert assessment.verdict is not Verdict.NEVER_PAYS


@pytest.mark.parametrize(
    ("workload", "line"),
    [
        (
            {"hitTokens": [{"quantile": "0.9", "tokens": 5}, {"quantile": "0.5", "tokens": 9}]},
            "spec.workload.hitTokens: tokens fall from 9 at 0.5 to 5 at 0.9; tokens must not fall"
            " as the quantile rises",
        ),
        (
            {"requestsPerSecond": "0"},
            "spec.workload.requestsPerSecond: 0 is not above 0 and at"
            ' most 100000; write one such as "0.45"',
        ),
        (
            {"hitRate": "1.1"},
            'spec.workload.hitRate: 1.1 is not above 0 and at most 1; write one such as "0.8"',
        ),
        (
            {"targetTTFT": "2h"},
            "spec.workload.targetTTFT: 2h is not from 1ms to 1h; write a time"
            " to first token such as 2s",
        ),
    ],
)
def test_what_cannot_be_is_one_line_before_it_is_judged(
    workload: dict[str, Any], line: str
) -> None:
    document = {**PAPER, "spec": {**PAPER["spec"], "workload": workload}}
    with pytest.raises(InvalidTier) as error:
        parse_tier(document)
    assert error.value.errors == (line,)
