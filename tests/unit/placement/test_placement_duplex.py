"""A link carries reads and writes at once: what the checks make of both."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st
from paper_tier import QUICK, finding, link, spec, tokens

from kvtier.api import reasons
from kvtier.breakeven.tier import assess
from kvtier.placement.case import Case
from kvtier.placement.findings import Finding

PERCENT = st.integers(1, 99)
BITS = st.sampled_from(["1G", "10G", "25G", "100G", "400G"])
RATES = st.sampled_from(["0.01", "0.3", "1", "4", "20"])


@settings(max_examples=60, deadline=None)
@given(percent=PERCENT, bits=BITS, rate=RATES, length=st.integers(1, 2000))
def test_rho_is_between_half_of_the_sum_and_the_sum(
    percent: int, bits: str, rate: str, length: int
) -> None:
    known = spec(
        QUICK,
        link(bits),
        {"workload.promptTokens": tokens(length, 100 * length)},
        {"workload.hitRate": f"{percent / 100:.2f}", "workload.requestsPerSecond": rate},
    )
    found = assess(known)
    case = Case(spec=known, assessment=found, engines=1)
    assert found.load is not None
    assert found.link is not None
    assert case.moved is not None
    whole = float(rate) * (case.moved.read + case.moved.written) / found.link.bytes_per_second
    rho = found.load.link.utilisation(float(rate))
    assert whole / 2 * (1 - 1e-9) <= rho <= whole * (1 + 1e-9)
    assert found.link_full is (rho >= 1)
    threshold = found.load.threshold
    if threshold is not None:
        assert found.load.link.utilisation(threshold) < 1
        full = found.load.full_at(None)
        assert (full is not None) is (found.load.link.limit < 2 * threshold)


def ranks_contended(percent: int, bits: str, rate: str, together: int | None) -> Finding | None:
    return finding(
        reasons.RANKS_CONTENDED,
        QUICK,
        link(bits),
        {"workload.promptTokens": tokens(25_600), "workload.hitRate": f"{percent / 100:.2f}"},
        {"workload.requestsPerSecond": rate},
        ranks_together=together,
        engines=8,
    )


def exchanged(message: str) -> str:
    """The message with reads for writes."""
    message = re.sub(r"reads (\S+ Gb/s), writes (\S+ Gb/s)", r"reads \2, writes \1", message)
    ways = {"way out of that": "way into that", "way into that": "way out of that"}
    return re.sub("way (out of|into) that", lambda way: ways[way[0]], message)


@settings(max_examples=60, deadline=None)
@given(percent=PERCENT, bits=BITS, rate=RATES, together=st.none() | st.sampled_from([1, 4, 8]))
def test_contention_is_the_same_with_reads_and_writes_exchanged(
    percent: int, bits: str, rate: str, together: int | None
) -> None:
    """Hits of a share h and of 1 - h: what one reads the other writes."""
    one = ranks_contended(percent, bits, rate, together)
    other = ranks_contended(100 - percent, bits, rate, together)
    assert (one is None) is (other is None)
    if one is not None and other is not None:
        assert one.severity is other.severity
        if percent != 50:
            assert exchanged(one.message) == other.message
            assert ("way out of that" in one.message) is (percent > 50)
