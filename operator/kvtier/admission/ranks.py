"""What happened to a tier's ranks between two looks: lost, restarted, emptied, or back unharmed.

Losing one rank loses the tier, so that each of these is told at once, and once.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from kvtier.admission.signals import RankSignal

LOST_AFTER: Final = 2.0
"""Seconds without an answer. Ranks are asked each second: one lost packet is no lost rank, and the
limit must be there within 3 s."""
ASKED_LATELY: Final = 10.0
"""Seconds after which a rank that nobody asked is unknown, not lost."""
FEW_KEYS: Final = 100
"""Keys below which a rank is cold: losing it loses nothing."""
EMPTIED_SHARE: Final = 0.05
"""What is left of a rank's keys from one look to the next when it was emptied. Eviction takes
single keys, and a generation that is purged goes batch by batch over minutes."""
YOUNG: Final = 300.0
"""Seconds of uptime below which a rank, first seen beside older ones that are warm, has restarted
in the storm that is going on."""
MUCH_OLDER: Final = 60.0
"""By how many seconds the others must be older: ranks that start together are no storm."""
UNHARMED_SHARE: Final = 0.5


class Blow(StrEnum):
    """What can happen to a rank. The values are causes of a storm."""

    LOST = "RankLost"
    RESTARTED = "RankRestarted"
    EMPTIED = "RankEmptied"


@dataclass(frozen=True, slots=True)
class Known:
    """What is remembered of a rank: its last answer, and when it was first asked.

    ``most`` is the most bytes that it ever held. ``lost``: told as lost, and not yet back.
    """

    rank: int
    first: float
    at: float | None = None
    run_id: str = ""
    keys: int = 0
    used_bytes: int = 0
    most: int = 0
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """The ranks as known now; the ``blow`` that one took, if any, and ``rank`` which.

    ``unharmed``: the last rank that was missing is back, with all that it held.
    """

    known: tuple[Known, ...]
    blow: Blow | None = None
    rank: int = 0
    unharmed: bool = False


def look(known: tuple[Known, ...], ranks: tuple[RankSignal, ...], *, now: float) -> Look:
    """Compare what ranks say with what is remembered of them. Times are of one clock."""
    memory = {each.rank: each for each in known}
    others = {each.rank: each for each in ranks}
    after: list[Known] = []
    blows: list[tuple[Blow, int]] = []
    back_unharmed = False
    for signal in sorted(ranks, key=lambda each: each.rank):
        before = memory.get(signal.rank, Known(rank=signal.rank, first=signal.asked))
        warm = before.keys >= FEW_KEYS or _warm_beside(signal, others)
        blow = _blow(before, signal, others, now=now) if warm else None
        if blow is not None:
            blows.append((blow, signal.rank))
        elif before.lost and signal.answers:
            back_unharmed = signal.keys >= UNHARMED_SHARE * before.keys
        after.append(_remembered(before, signal, lost=blow is Blow.LOST))
    missing = any(each.lost for each in after)
    # Of several the one that says most: what is gone for good before what may come back.
    blows.sort(key=lambda found: list(Blow).index(found[0]))
    if blows:
        return Look(tuple(after), blow=blows[0][0], rank=blows[0][1])
    return Look(tuple(after), unharmed=back_unharmed and not missing)


def all_answer(ranks: tuple[RankSignal, ...], *, wanted: int) -> bool:
    """Whether each of the tier's ranks answered when it was last asked."""
    return len(ranks) >= wanted and all(signal.answers for signal in ranks)


def fill(known: tuple[Known, ...]) -> float:
    """How full the emptiest rank is, of the most that any rank held: a tier stripes evenly."""
    most = max((each.most for each in known), default=0)
    if not most:
        return 0.0
    return min(0.0 if each.lost else each.used_bytes / most for each in known)


def _blow(
    before: Known, signal: RankSignal, others: dict[int, RankSignal], *, now: float
) -> Blow | None:
    if not signal.answers:
        last = before.at if signal.at is None else signal.at
        silent = now - (before.first if last is None else last)
        asked = now - signal.asked <= ASKED_LATELY
        return Blow.LOST if asked and silent >= LOST_AFTER and not before.lost else None
    if before.run_id and signal.run_id and signal.run_id != before.run_id:
        return Blow.RESTARTED
    if before.keys >= FEW_KEYS and signal.keys <= EMPTIED_SHARE * before.keys:
        return Blow.EMPTIED
    if not before.run_id and before.at is None and _young_beside(signal, others):
        return Blow.RESTARTED
    return None


def _warm_beside(signal: RankSignal, others: dict[int, RankSignal]) -> bool:
    return any(
        other.answers and other.keys >= FEW_KEYS
        for other in others.values()
        if other.rank != signal.rank
    )


def _young_beside(signal: RankSignal, others: dict[int, RankSignal]) -> bool:
    """Whether a rank that is first seen started long after others that are warm."""
    uptime = signal.uptime
    if uptime is None or uptime >= YOUNG:
        return False
    return any(
        other.uptime is not None
        and other.uptime >= uptime + MUCH_OLDER
        and other.keys >= FEW_KEYS
        and signal.keys < UNHARMED_SHARE * other.keys
        for other in others.values()
        if other.answers
    )


def _remembered(before: Known, signal: RankSignal, *, lost: bool) -> Known:
    if not signal.answers:
        return replace(before, lost=before.lost or lost)
    return replace(
        before,
        at=signal.asked if signal.at is None else signal.at,
        run_id=signal.run_id or before.run_id,
        keys=signal.keys,
        used_bytes=signal.used_bytes,
        most=max(before.most, signal.used_bytes),
        lost=False,
    )
