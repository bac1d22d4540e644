"""Pure: what people are told when a rank is lost, and when it is back."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvtier.api import reasons
from kvtier.api.conditions import find
from kvtier.plan.observed import EventSpec, EventType, NodeFacts, Plan, RankState
from kvtier.plan.waiting import not_ready

Down = dict[int, str | None]
"""By rank that people were told is down: when its server had started."""


def rank_events(
    before: Mapping[str, Any],
    ranks: Sequence[RankState],
    *,
    nodes: Mapping[str, NodeFacts],
    plan: Plan | None,
    down: Down,
) -> tuple[list[EventSpec], Down]:
    """One event for all ranks that were lost since the status ``before``, one for those that are
    back, and what ``down`` is from now on.

    A restart that ``plan`` makes, or that an earlier one began, has an event of its own. Back is
    only what somebody was told is down: ranks of a new tier become ready without a word.
    """
    was = {each["rank"]: each for each in before.get("rankStates", ())}
    lost, restarted = [], []
    for state in ranks:
        entry = was.get(state.rank, {})
        if not entry.get("ready") or _is_planned(before, plan):
            continue
        if not state.ready:
            lost.append(state)
        elif _is_another_run(entry.get("startedAt"), state):
            restarted.append(state)
    back = [state for state in ranks if state.ready and state.rank in down]
    events = []
    if lost:
        said = f"Rank {_names(lost)} is lost: {not_ready(ranks, nodes=nodes, ready=_ready(ranks))}"
        events.append(EventSpec(EventType.WARNING, reasons.RANK_DOWN, f"{said} {_COST}"))
    if restarted:
        said = f"Rank {_names(restarted)} has started again, empty."
        events.append(EventSpec(EventType.WARNING, reasons.RANK_DOWN, f"{said} {_COST}"))
    for what, group in (
        ("empty: it fills as engines store", [s for s in back if _is_another_run(down[s.rank], s)]),
        ("with what it held", [s for s in back if not _is_another_run(down[s.rank], s)]),
    ):
        if group:
            said = f"Rank {_names(group)} is ready again, {what}."
            events.append(EventSpec(EventType.NORMAL, reasons.RANK_BACK, said))
    still = {rank: since for rank, since in down.items() if rank not in {s.rank for s in back}}
    return events, still | {state.rank: was[state.rank].get("startedAt") for state in lost}


_COST = "Losing one rank loses the tier until it is back and has filled again."


def _is_planned(before: Mapping[str, Any], plan: Plan | None) -> bool:
    """Whether kvtier restarts ranks itself, now or since the status ``before``."""
    rolled = find(before.get("conditions", ()), reasons.STORE_READY).get("reason")
    now = plan is not None and bool(plan.restarts or plan.moves or plan.outdated)
    return now or rolled == reasons.ROLLING


def _is_another_run(started_at: str | None, state: RankState) -> bool:
    return None not in (started_at, state.started_at) and started_at != state.started_at


def _ready(ranks: Sequence[RankState]) -> int:
    return sum(state.ready for state in ranks)


def _names(ranks: Sequence[RankState]) -> str:
    return ", ".join(str(state.rank) for state in ranks)
