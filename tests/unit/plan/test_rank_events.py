"""What is told when a rank is lost, and when it is back."""

from collections.abc import Mapping
from typing import Any

import pytest

from kvtier.plan.observed import Delete, Plan, RankState
from kvtier.plan.rank_events import Down, rank_events

NINE, TEN = "2026-01-01T09:00:00Z", "2026-01-01T10:00:00Z"
COST = "Losing one rank loses the tier until it is back and has filled again."


def status(*ready: bool, reason: str = "AllRanksReady") -> dict[str, Any]:
    """A status with these ranks, which all started at nine."""
    return {
        "conditions": [{"type": "StoreReady", "status": "True", "reason": reason}],
        "rankStates": [
            {"rank": rank, "ready": each, "startedAt": NINE} for rank, each in enumerate(ready)
        ],
    }


def runs(rank: int, *, since: str = NINE) -> RankState:
    return RankState(rank=rank, ready=True, pod=f"chat-r{rank}-0", started_at=since)


def ended(rank: int, why: str | None = "OOMKilled") -> RankState:
    return RankState(rank=rank, pod=f"chat-r{rank}-0", waiting=why)


def told(
    before: Mapping[str, Any], *ranks: RankState, plan: Plan | None = None, down: Down | None = None
) -> tuple[list[tuple[str, str, str]], Down]:
    events, still = rank_events(before, ranks, nodes={}, plan=plan, down=down or {})
    return [(str(each.type), each.reason, each.message) for each in events], still


def test_ranks_that_are_lost_at_once_are_one_warning_with_the_cause() -> None:
    events, down = told(status(True, True, True), runs(0), ended(1), ended(2))
    assert events == [
        (
            "Warning",
            "RankDown",
            f"Rank 1, 2 is lost: 1 of 3 ranks are ready (rank 1, 2: OOMKilled). {COST}",
        )
    ]
    assert down == {1: NINE, 2: NINE}


@pytest.mark.parametrize(
    ("since", "how"),
    [(TEN, "empty: it fills as engines store"), (NINE, "with what it held")],
    ids=["another run", "the same run"],
)
def test_a_rank_that_is_back_says_whether_it_is_empty(since: str, how: str) -> None:
    events, down = told(status(True, False), runs(0), runs(1, since=since), down={1: NINE})
    assert events == [("Normal", "RankBack", f"Rank 1 is ready again, {how}.")]
    assert down == {}


def test_a_restart_that_nobody_saw_is_told_too() -> None:
    events, _ = told(status(True, True), runs(0), runs(1, since=TEN))
    assert events == [("Warning", "RankDown", f"Rank 1 has started again, empty. {COST}")]


def test_ranks_of_a_new_tier_come_without_a_word() -> None:
    assert told({}, ended(0), ended(1)) == ([], {})
    assert told(status(False, False), runs(0), runs(1)) == ([], {})


def test_a_rank_that_stays_down_is_told_of_once() -> None:
    assert told(status(True, False), runs(0), ended(1), down={1: NINE}) == ([], {1: NINE})


DELETION = Delete(kind="Pod", name="chat-r1-0", uid="u")


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (Plan(restarts=(DELETION,)), "AllRanksReady"),
        (Plan(moves=(DELETION,)), "AllRanksReady"),
        (Plan(outdated=(1,)), "AllRanksReady"),
        (Plan(), "Rolling"),
        (None, "Rolling"),
    ],
)
def test_a_planned_restart_has_an_event_of_its_own(plan: Plan | None, reason: str) -> None:
    assert told(status(True, True, reason=reason), runs(0), ended(1), plan=plan) == ([], {})
