"""Pure: planned work. When all ranks of a tier that serves may restart, and who hears before.

Losing one rank loses the tier, so kvtier restarts all of them in one storm, and announces it: the
status says Planned, limiters hold the limit, then the ranks go.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from kvtier.api import reasons
from kvtier.api.types import GROUP, KVCacheTier
from kvtier.breakeven.words import counted
from kvtier.plan.observed import EventSpec, EventType, Plan, RankState
from kvtier.plan.probing import time_of

ROLL_REQUESTED: Final = f"{GROUP}/roll-requested"
"""Annotation of a tier: the time at which somebody asked that its ranks restart."""
CONFIRM_SECONDS: Final = 30.0
"""What limiters have to take an announcement up."""
CONFIRM_LOOK: Final = 1.0
TURN_LOOK: Final = 5.0
"""Seconds between two looks whether another tier's planned work is over."""
TURN_SECONDS: Final = 1800.0
"""What another tier's planned work may hold this one's up."""


@dataclass(frozen=True, slots=True)
class Case:
    """What decides whether ranks that are to restart may.

    ``engines`` are the Ready ones. ``enforces``: the tier's mode is Enforce. ``limiters`` is how
    many there are. ``before`` is another tier whose planned work is not over, None if there is
    none; ``settled`` is False while a new process has not looked at all tiers. ``waited`` are the
    seconds since this tier's was announced, None before. ``lacking`` says of each limiter that does
    not hold the limit yet why that is.
    """

    engines: int
    enforces: bool
    limiters: int
    before: str | None = None
    settled: bool = True
    waited: float | None = None
    lacking: tuple[str, ...] = ()


def gated(plan: Plan, case: Case) -> Plan:
    """The plan, with its restarts held back until they may come; ``held`` then says why.

    Never for a tier that has lost a rank already, or that nobody uses: there is nothing to lose. A
    rank that crashed or whose node is gone is replaced by Kubernetes, or by ``lost``, and neither
    is looked at here.
    """
    if not plan.restarts or not case.engines or not all(state.ready for state in plan.ranks):
        return plan
    if case.before is not None:
        why = f"one tier at a time: {case.before} has planned work that is not over"
        return _held(plan, f"{why}; {_minutes(TURN_SECONDS)} at most", look=TURN_LOOK)
    if not case.settled and not (case.enforces and case.limiters):
        why = "a new process finds out first whether another tier's planned work is over"
        return _held(plan, why, look=TURN_LOOK)
    if not case.enforces:
        return _told(plan, "Nothing is held back meanwhile: spec.admission.mode is Observe.")
    if not case.limiters:
        return _told(plan, "Nothing is held back meanwhile: no limiter is known.")
    if case.waited is None or (case.lacking and case.waited < CONFIRM_SECONDS):
        why = f"{counted(case.limiters, 'limiter')} are told first"
        return _held(plan, f"{why}, which takes {CONFIRM_SECONDS:g} s at most", look=CONFIRM_LOOK)
    if not case.lacking:
        return _told(plan, f"The limit is held by {counted(case.limiters, 'limiter')}.")
    missing = EventSpec(
        EventType.WARNING,
        reasons.STORM_NOT_CONFIRMED,
        f"Ranks restart, though after {CONFIRM_SECONDS:g} s not all limiters hold the limit: "
        f"{'; '.join(case.lacking[:3])}.",
    )
    return replace(plan, events=(missing, *plan.events))


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:g} minutes"


def _held(plan: Plan, why: str, *, look: float) -> Plan:
    return replace(
        plan,
        restarts=(),
        events=(),
        held=f"{len(plan.restarts)} of {len(plan.ranks)} ranks are to restart; {why}",
        requeue_after=min(filter(None, (plan.requeue_after, look))),
    )


def _told(plan: Plan, more: str) -> Plan:
    events = tuple(
        replace(event, message=f"{event.message} {more}")
        if event.reason in (reasons.RESTARTING_ALL_RANKS, reasons.RESTARTING_RANKS)
        else event
        for event in plan.events
    )
    return replace(plan, events=events)


def announces(plan: Plan, case: Case) -> bool:
    """Whether a held plan waits for limiters, and so is to be announced; not for its turn."""
    waits = case.enforces and case.limiters > 0
    return plan.held is not None and case.before is None and waits


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that ranks restart, and the pods that it is about: those of before it."""

    at: str
    pods: frozenset[str]


def asked(
    tier: KVCacheTier, states: Sequence[RankState], *, now: datetime, before: Asked | None
) -> Asked | None:
    """What the tier's annotation asks for; None for nothing, or for what cannot be read.

    A request counts once its time has come: until then every new pod would be older than it. What
    was asked ``before`` stays about the same pods, whatever other clocks say.
    """
    text = tier.metadata.annotations.get(ROLL_REQUESTED)
    at = time_of(text)
    if text is None or at is None or at > now:
        return None
    if before is not None and before.at == text:
        return before
    made = {state.pod_uid: time_of(state.created_at) for state in states}
    older = frozenset(uid for uid, since in made.items() if uid and since and since < at)
    return Asked(at=text, pods=older)


def asked_in(tier: KVCacheTier, *, now: datetime) -> float | None:
    """Seconds until a request's time has come, None if there is none to come."""
    at = time_of(tier.metadata.annotations.get(ROLL_REQUESTED))
    return (at - now).total_seconds() if at is not None and at > now else None


def turn_before(
    mine: tuple[str, tuple[str, str]] | None,
    others: Mapping[tuple[str, str], "OtherWork"],
) -> str | None:
    """The tier whose planned work is to be over first, as namespace/name; None if it is one's turn.

    ``mine`` is since when this tier's is announced (RFC 3339) and its key, None before. Of two that
    are announced the earlier goes first: two processes may have announced one each.
    """
    for key, other in sorted(others.items()):
        if not other.rolled and mine is not None and mine < (other.since, key):
            continue
        return "/".join(key)
    return None


@dataclass(frozen=True, slots=True)
class OtherWork:
    """Planned work of another tier that is not over. ``since`` is when it was announced;
    ``rolled``: its ranks have restarted, and hits are not back yet."""

    since: str
    rolled: bool
