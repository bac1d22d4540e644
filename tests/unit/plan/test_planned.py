"""When ranks that are to restart may."""

from dataclasses import replace

import pytest

from kvtier.plan.observed import Delete, EventSpec, EventType, Plan, RankState
from kvtier.plan.planned import CONFIRM_SECONDS, Case, OtherWork, gated, turn_before

RANKS = tuple(
    RankState(rank=rank, pod=f"r{rank}", pod_uid=f"u{rank}", ready=True) for rank in (0, 1)
)
ROLL = Plan(
    restarts=tuple(Delete(kind="Pod", name=str(each.pod), uid=str(each.pod_uid)) for each in RANKS),
    events=(EventSpec(EventType.WARNING, "RestartingAllRanks", "Restarting all 2 ranks at once."),),
    ranks=RANKS,
)
READY = Case(engines=4, enforces=True, limiters=2)
SILENT = ("10.0.0.2 does not answer (HTTP 500)",)


def test_a_roll_is_announced_first() -> None:
    plan = gated(ROLL, READY)
    assert (plan.restarts, plan.events, plan.requeue_after) == ((), (), 1.0)
    assert plan.held == (
        "2 of 2 ranks are to restart; 2 limiters are told first, which takes 30 s at most"
    )


@pytest.mark.parametrize(
    "case",
    [
        replace(READY, waited=3.0),
        replace(READY, waited=CONFIRM_SECONDS, lacking=SILENT),
        replace(READY, enforces=False),
        replace(READY, limiters=0),
        replace(READY, engines=0),
        replace(READY, engines=0, before="a/b"),
    ],
    ids=["all know", "30 s", "Observe", "no limiter", "no engine", "no engine, whoever else rolls"],
)
def test_the_ranks_go_together(case: Case) -> None:
    plan = gated(ROLL, case)
    assert plan.restarts == ROLL.restarts
    assert plan.held is None


@pytest.mark.parametrize("enforces", [True, False])
def test_another_tier_s_planned_work_is_waited_for_in_any_mode(enforces: bool) -> None:
    plan = gated(ROLL, replace(READY, enforces=enforces, before="prod/glm", waited=60.0))
    assert plan.restarts == ()
    assert "prod/glm has planned work that is not over; 30 minutes at most" in str(plan.held)


@pytest.mark.parametrize("before", [None, "prod/glm"])
def test_a_tier_that_has_lost_a_rank_already_waits_for_nobody(before: str | None) -> None:
    broken = replace(ROLL, ranks=(RANKS[0], replace(RANKS[1], ready=False)))
    assert gated(broken, replace(READY, before=before)) == broken


def test_nothing_else_of_a_plan_is_held_back() -> None:
    lost = Delete(kind="Pod", name="r1", uid="u1", why="its node is gone")
    plan = gated(replace(ROLL, lost=(lost,), outdated=(0, 1), requeue_after=0.2), READY)
    assert (plan.lost, plan.outdated, plan.requeue_after) == ((lost,), (0, 1), 0.2)


def test_who_does_not_know_is_told_before_the_ranks_go() -> None:
    first, second = gated(ROLL, replace(READY, waited=31.0, lacking=SILENT)).events
    assert (first.type, first.reason) == ("Warning", "StormNotConfirmed")
    assert "10.0.0.2 does not answer (HTTP 500)" in first.message
    assert second == ROLL.events[0]


def test_of_two_that_are_announced_the_earlier_goes_first() -> None:
    mine, theirs = ("ns", "b"), ("ns", "a")
    early, late = "2026-01-01T00:00:00Z", "2026-01-01T00:00:05Z"
    announced = {theirs: OtherWork(since=late, rolled=False)}
    assert turn_before((early, mine), announced) is None
    assert turn_before((late, mine), {theirs: OtherWork(since=early, rolled=False)}) == "ns/a"
    assert turn_before((late, mine), announced) == "ns/a", "by name where both are of one second"
    assert turn_before((early, mine), {theirs: OtherWork(since=late, rolled=True)}) == "ns/a"
    assert turn_before(None, announced) == "ns/a"
    assert turn_before(None, {}) is None
