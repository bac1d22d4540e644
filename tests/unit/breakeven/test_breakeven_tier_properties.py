"""Whatever a tier declares, its figures agree with each other."""

import math
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tier_specs import MakeSpec

from kvtier.breakeven.tier import Verdict, assess

lengths = st.integers(1, 10**8) | st.sampled_from([1, 100, 1024, 50_000, 10**8])


@st.composite
def changes(draw: st.DrawFn) -> dict[str, Any]:
    rates = draw(st.dictionaries(lengths, st.integers(1, 10**9), min_size=1, max_size=5))
    tokens = sorted(draw(st.lists(lengths, max_size=3)))
    quantiles = [
        {"quantile": quantile, "tokens": length}
        for quantile, length in zip(("0.01", "0.5", "1"), tokens, strict=False)
    ]
    return {
        "model.layout": {"bytesPerToken": draw(st.integers(1, 1 << 20))},
        "store.memoryPerRank": "16Ti",
        "pool.maxEngines": 1,
        "pool.ranks": draw(st.sampled_from([1, 2, 8, 64])),
        "pool.striping": draw(st.sampled_from(["Hash", "Shard"])),
        "pool.prefillRate": [
            {"tokens": length, "tokensPerSecond": rate} for length, rate in rates.items()
        ],
        "pool.hitLatency": draw(st.sampled_from(["0s", "1us", "330ms", "1h"])),
        "pool.hitEngineTime": "0s",
        "placement.links": [
            {
                "domain": "zone",
                "bitsPerSecond": draw(st.sampled_from(["1M", "25G", "10T"])),
                "roundTrip": draw(st.sampled_from(["1us", "20ms", "10s"])),
            }
        ],
        draw(st.sampled_from(["workload.hitTokens", "workload.promptTokens"])): quantiles,
    }


@settings(max_examples=200, deadline=None)
@given(changes=changes())
def test_rows_verdict_and_minimum_hit_agree(make_spec: MakeSpec, changes: dict[str, Any]) -> None:
    found = assess(make_spec(changes))
    assert found.link is not None
    assert found.minimum_hit is not None
    won = [row.tokens for row in found.rows if row.wins]
    assert all(tokens >= found.minimum_hit for tokens in won)
    assert found.wins is not None
    for row in found.rows:
        if row.tokens <= found.wins.most:
            assert row.wins is (row.tokens >= found.wins.least)
        elif not found.wins.again:
            assert not row.wins
    hopeless = (Verdict.NEVER_PAYS, Verdict.PAYS_UNDER_LOAD)
    assert (found.verdict in hopeless) is math.isinf(found.minimum_hit)
    assert found.ratio is not None
    if found.ratio <= 1:
        assert math.isinf(found.minimum_hit)
    for row in found.rows:
        assert row.bytes_per_second is not None
        if not math.isclose(row.bytes_per_second, found.link.bytes_per_second, rel_tol=1e-9):
            assert row.wins is (row.bytes_per_second < found.link.bytes_per_second)
    if found.verdict is Verdict.PAYS and found.gain_seconds is None:
        assert set(found.lengths.tokens) <= set(won)
    assert len(found.rows) <= 64
    assert len(found.message) <= 1000
