"""The access patterns that are refused, with their figures."""

import pytest
from tier_specs import MakeSpec

from kvtier.breakeven.patterns import Access, assess_access
from kvtier.breakeven.tier import Verdict

FABRIC = [{"domain": "zone", "bitsPerSecond": "100G", "roundTrip": "1ms"}]


def test_streaming_never_pays_whatever_the_link(make_spec: MakeSpec) -> None:
    fast = [{"domain": "zone", "bitsPerSecond": "10T", "roundTrip": "1us"}]
    for changes in ({}, {"placement.links": FABRIC}, {"placement.links": fast}):
        found = assess_access(make_spec(changes), Access.PER_TOKEN_STREAM)
        assert found.verdict is Verdict.NEVER_PAYS


def test_streaming_shows_both_times_per_token(make_spec: MakeSpec) -> None:
    """Decision page, access pattern 2: 216 ms a token at 8,192 tokens against 0.8 ms."""
    found = assess_access(make_spec({"placement.links": FABRIC}), Access.PER_TOKEN_STREAM)
    row = next(row for row in found.rows if row.tokens == 8192)
    assert row.remote_seconds == pytest.approx(0.216, abs=5e-4)
    assert row.local_seconds == pytest.approx(0.0008, abs=5e-6)
    figures = {row["tokens"]: row for row in found.figures()["perLength"]}
    assert figures[8192]["secondsPerToken"] == row.remote_seconds
    assert figures[8192]["localSecondsPerToken"] == row.local_seconds


def test_a_wan_cannot_carry_attention(make_spec: MakeSpec) -> None:
    """Decision page, access pattern 3: 80 layers x 20 ms = 1.6 s a token."""
    wan = [{"domain": "zone", "bitsPerSecond": "10T", "roundTrip": "20ms"}]
    found = assess_access(make_spec({"placement.links": wan}), Access.PER_TOKEN_ATTENTION)
    assert found.verdict is Verdict.NEVER_PAYS
    assert found.rows[0].remote_seconds == pytest.approx(1.6)
    assert "1.6 s" in found.message


@pytest.mark.parametrize(
    ("round_trip", "verdict"), [("360us", Verdict.UNKNOWN), ("361us", Verdict.NEVER_PAYS)]
)
def test_attention_over_a_fabric_is_left_open(
    make_spec: MakeSpec, round_trip: str, verdict: Verdict
) -> None:
    link = [{"domain": "zone", "bitsPerSecond": "100G", "roundTrip": round_trip}]
    found = assess_access(make_spec({"placement.links": link}), Access.PER_TOKEN_ATTENTION)
    assert found.verdict is verdict


def test_attention_without_a_link_or_without_layers_has_no_figure(make_spec: MakeSpec) -> None:
    found = assess_access(make_spec(), Access.PER_TOKEN_ATTENTION)
    assert (found.verdict, found.reason) == (Verdict.UNKNOWN, "LinkNotDeclared")
    opaque = {"model.layout": {"bytesPerToken": 48_400}, "placement.links": FABRIC}
    unlayered = assess_access(make_spec(opaque), Access.PER_TOKEN_ATTENTION)
    assert unlayered.verdict is Verdict.NEVER_PAYS
    assert unlayered.rows[0].remote_seconds is None
    assert "secondsPerToken" not in unlayered.figures()["perLength"][0]


def test_one_fetch_per_request_is_judged_elsewhere(make_spec: MakeSpec) -> None:
    with pytest.raises(ValueError, match="OncePerRequest"):
        assess_access(make_spec(), Access.ONCE_PER_REQUEST)
