"""What the storm machine remembers from one look to the next."""

from dataclasses import dataclass, field, replace
from enum import StrEnum

from kvtier.admission.hits import Hits
from kvtier.admission.ranks import Known
from kvtier.admission.rate import Seen


class State(StrEnum):
    OPEN = "Open"
    STORM = "Storm"
    RECOVERING = "Recovering"


class Cause(StrEnum):
    RANK_LOST = "RankLost"
    RANK_RESTARTED = "RankRestarted"
    RANK_EMPTIED = "RankEmptied"
    HITS_COLLAPSED = "HitsCollapsed"
    PLANNED = "Planned"


@dataclass(frozen=True, slots=True)
class Storm:
    """What the machine remembers. ``Storm()`` is the start: Open, knows nothing.

    ``since`` is when it came into this state, ``struck`` when the last blow fell, ``rank`` which
    rank it hit. ``offered`` [tokens/s] is smoothed, ``peak`` the highest of it. ``calm`` is since
    when there has been room enough, ``lowest`` the least share of hits in this storm, ``planned``
    since when planned work has been announced.
    """

    state: State = State.OPEN
    cause: Cause | None = None
    rank: int | None = None
    since: float | None = None
    struck: float | None = None
    looked: float | None = None
    offered: float | None = None
    peak: float = 0.0
    calm: float | None = None
    lowest: float = 0.0
    planned: float | None = None
    ranks: tuple[Known, ...] = ()
    hits: Hits = field(default_factory=Hits)
    rate: Seen = field(default_factory=Seen)

    @property
    def hit_low(self) -> float | None:
        """The share of hits that limits count with; None where none was ever needed."""
        return self.hits.low


def moved(storm: Storm, *, by: float, now: float) -> Storm:
    """The same memory on a clock that jumped."""

    def shifted(at: float | None) -> float | None:
        return None if at is None else at + by

    return replace(
        storm,
        looked=now,
        since=shifted(storm.since),
        struck=shifted(storm.struck),
        calm=shifted(storm.calm),
        planned=shifted(storm.planned),
        ranks=tuple(
            replace(each, first=each.first + by, at=shifted(each.at)) for each in storm.ranks
        ),
        hits=replace(storm.hits, at=shifted(storm.hits.at)),
        rate=replace(
            storm.rate,
            full_at=storm.rate.full_at + by,
            at_least_at=storm.rate.at_least_at + by,
        ),
    )
