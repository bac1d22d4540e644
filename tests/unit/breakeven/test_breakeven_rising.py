"""Where R rises with length a prefill can overtake a fetch: nothing says otherwise."""

from typing import Any

import pytest
from tier_specs import MakeSpec

from kvtier.breakeven.tier import Verdict, assess, curve

UPHILL: dict[str, Any] = {
    "pool.hitLatency": "300ms",
    "pool.hitEngineTime": "30ms",
    "pool.prefillRate": [
        {"tokens": 4096, "tokensPerSecond": 1000},
        {"tokens": 65_536, "tokensPerSecond": 20_000},
    ],
    "placement.links": [{"domain": "zone", "bitsPerSecond": "15G", "roundTrip": "50us"}],
}


def test_the_rows_turn_at_both_ends(make_spec: MakeSpec) -> None:
    found = assess(make_spec(UPHILL))
    assert found.wins is not None
    assert (found.wins.least, found.wins.most) == (400, 17_569)
    rows = curve(make_spec(UPHILL), [399, 400, 17_569, 17_570])
    assert [row.wins for row in rows] == [False, True, True, False]


@pytest.mark.parametrize(
    ("hits", "verdict", "said"),
    [
        ([], Verdict.PAYS_WHEN_LONG, "Only hits of 400 to 17,569 tokens are faster"),
        ([70_000], Verdict.PAYS_WHEN_LONG, "none of the lengths in workload.hitTokens is among"),
        ([300, 9000, 20_000], Verdict.PAYS, "Those below 400 and above 17,569 tokens are not."),
    ],
)
def test_the_verdict_names_both_ends(
    make_spec: MakeSpec, hits: list[int], verdict: Verdict, said: str
) -> None:
    quantiles = [
        {"quantile": str((place + 1) / len(hits))[:4], "tokens": length}
        for place, length in enumerate(hits)
    ]
    found = assess(make_spec(UPHILL | {"workload.hitTokens": quantiles}))
    assert found.verdict is verdict
    assert said in found.message
    assert "and more" not in found.message


def test_a_rate_that_falls_again_is_told_of(make_spec: MakeSpec) -> None:
    """From 17,570 tokens on the prefill is ahead, and at 200,000 the fetch is again."""
    hill = [*UPHILL["pool.prefillRate"], {"tokens": 200_000, "tokensPerSecond": 1000}]
    found = assess(make_spec(UPHILL | {"pool.prefillRate": hill}))
    assert "hits of 400 to 17,569 tokens, and some longer ones, are faster" in found.message
