"""When the verdict that people see changes."""

from dataclasses import replace

import pytest
from paper_tier import QUICK, judged, link, spec, tokens

from kvtier.breakeven.assessment import Evidence, LinkFigures, Verdict
from kvtier.breakeven.observed import SeenRate
from kvtier.placement.hysteresis import Shown, after_probe, is_decisive, settle
from kvtier.placement.judgement import shown_before
from measured_link import ONE_VALKEY

PAYS, NEVER, LONG = Verdict.PAYS, Verdict.NEVER_PAYS, Verdict.PAYS_WHEN_LONG
B_STAR = 48_400 * 52_200


def probes(
    *verdicts: Verdict, before: Shown | None = None, decisive: bool = False
) -> list[Verdict]:
    """What is shown after each of these probes."""
    shown, seen = before, []
    for number, verdict in enumerate(verdicts):
        shown = settle(
            shown, verdict=verdict, generation=1, at=f"probe {number}", decisive=decisive
        )
        seen.append(shown.verdict)
    return seen


def test_the_first_probe_decides() -> None:
    assert probes(NEVER) == [NEVER]
    unknown = Shown(verdict=Verdict.UNKNOWN, generation=1)
    assert probes(PAYS, before=unknown) == [PAYS]


def test_the_third_probe_in_a_row_changes_the_verdict() -> None:
    assert probes(PAYS, NEVER, NEVER, NEVER, NEVER) == [PAYS, PAYS, PAYS, NEVER, NEVER]


def test_probes_that_disagree_with_each_other_change_nothing() -> None:
    assert probes(PAYS, NEVER, LONG, NEVER, LONG, NEVER, NEVER) == [PAYS] * 7


def test_one_probe_that_agrees_with_what_is_shown_starts_the_count_anew() -> None:
    assert probes(PAYS, NEVER, NEVER, PAYS, NEVER, NEVER, NEVER) == [PAYS] * 6 + [NEVER]


def test_a_decisive_probe_changes_it_at_once() -> None:
    assert probes(PAYS, NEVER, decisive=True) == [PAYS, NEVER]


def test_a_probe_that_is_seen_again_is_counted_once() -> None:
    shown = Shown(verdict=PAYS, generation=1, at="first")
    for _ in range(10):
        shown = settle(shown, verdict=NEVER, generation=1, at="second", decisive=False)
    assert (shown.verdict, shown.agreeing) == (PAYS, 1)


def test_another_spec_is_judged_at_once() -> None:
    before = Shown(verdict=PAYS, generation=1, at="first")
    assert settle(before, verdict=NEVER, generation=2, at="first", decisive=False).verdict is NEVER


def test_another_prefill_rate_is_judged_at_once_and_once() -> None:
    before = Shown(verdict=PAYS, generation=1, at="first")
    after = settle(before, verdict=NEVER, generation=1, at="first", decisive=False, rate=70_000.0)
    assert (after.verdict, after.rate) == (NEVER, 70_000.0)
    again = settle(after, verdict=PAYS, generation=1, at="second", decisive=False, rate=70_000.0)
    assert (again.verdict, again.candidate) == (NEVER, PAYS)


def test_quicker_engines_count_and_slower_ones_do_not() -> None:
    """B* is 2.53 GB/s as declared, and 3.39 GB/s at 70,000 tokens/s."""
    measured = replace(ONE_VALKEY, bytes_per_second=3e9, slowest_rank_bytes_per_second=0.375e9)
    for seen, factor, hopeless in (
        (SeenRate(at_least=70_000), 70_000 / 52_200, True),
        (SeenRate(at_most=10_000), 1.0, False),
        (None, 1.0, False),
    ):
        found = judged(QUICK, link=measured, seen=seen)
        assert found.assessment.break_even == pytest.approx(factor * B_STAR)
        assert (found.shown.verdict is NEVER) is hopeless
        assert found.assessment.observed == (
            None if seen is None else seen.at_most or seen.at_least
        )
        assert ("that engines show" in found.assessment.message) is hopeless


@pytest.mark.parametrize("verdict", [NEVER, Verdict.UNKNOWN, LONG])
def test_a_lower_bound_lowers_nothing(verdict: Verdict) -> None:
    shown = Shown(verdict=LONG, generation=1, at="first")
    for number in range(5):
        shown = settle(
            shown,
            verdict=verdict,
            generation=1,
            at=f"probe {number}",
            decisive=True,
            lower_bound=True,
        )
    assert shown.verdict is LONG


def test_a_lower_bound_raises_a_verdict_as_any_other_probe_does() -> None:
    before = Shown(verdict=NEVER, generation=1, at="first")
    raised = settle(
        before, verdict=PAYS, generation=1, at="second", decisive=True, lower_bound=True
    )
    assert raised.verdict is PAYS


@pytest.mark.parametrize(("ratio", "decisive"), [(0.8, True), (0.84, False), (1.2, False)])
def test_decisive_is_a_bandwidth_20_percent_off_the_border(ratio: float, decisive: bool) -> None:
    """Below B* this tier never pays; from the border on long hits do."""
    measured = replace(ONE_VALKEY, bytes_per_second=ratio * B_STAR)
    assert is_decisive(spec(QUICK), link=measured, before=LONG) is decisive


def judged_in_turn(*ratios: float) -> list[Verdict]:
    shown: Shown | None = None
    seen = []
    for number, ratio in enumerate(ratios):
        measured = replace(ONE_VALKEY, bytes_per_second=ratio * B_STAR, at=f"probe {number}")
        shown = judged(QUICK, generation=1, link=measured, before=shown).shown
        seen.append(shown.verdict)
    return seen


def test_a_link_around_break_even_does_not_flap() -> None:
    assert judged_in_turn(1.05, 0.95, 1.05, 0.95, 0.97, 1.02) == [LONG] * 6
    assert judged_in_turn(1.05, 0.95, 0.96, 0.97) == [LONG, LONG, LONG, NEVER]
    assert judged_in_turn(1.05, 0.6) == [LONG, NEVER]


def test_what_was_not_measured_is_unknown() -> None:
    tier = spec(QUICK)
    before = Shown(verdict=PAYS, generation=1, at="first")
    declared = LinkFigures(domain="zone", bytes_per_second=1e10, round_trip_seconds=1e-4)
    assert declared.evidence is Evidence.DECLARED
    for known in (None, declared):
        after = after_probe(before, spec=tier, generation=1, link=known, verdict=PAYS)
        assert after.verdict is Verdict.UNKNOWN
    assert judged(QUICK, link("100G"), {"workload.hitTokens": tokens(65_536)}).shown.verdict is (
        Verdict.UNKNOWN
    )


def test_a_process_that_remembers_nothing_takes_the_verdict_from_the_status() -> None:
    status = {"verdict": "PaysWhenLong", "observedGeneration": 3, "measured": {"at": "then"}}
    assert shown_before(status) == Shown(verdict=LONG, generation=3, at="then")
    assert shown_before({}) is None
    assert shown_before({"verdict": "of a later release"}) is None
