"""The checks of the load: one demand for all of them, and advice that helps."""

import pytest
from paper_tier import finding, link, spec, tokens

from kvtier.api import reasons
from kvtier.breakeven.tier import assess
from kvtier.placement.case import Case
from kvtier.placement.findings import Severity


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
    asked = (case.bytes_per_request or 0) / assessment.link.bytes_per_second
    assert assessment.load.link.mean == pytest.approx(asked)


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
