"""What one look at a tier's generations comes to."""

from dataclasses import dataclass, field

from kvtier.generation.record import Record


@dataclass(frozen=True, slots=True)
class Told:
    """One thing that happened, for an event."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """``clocks`` are seconds, by generation or token; they go into the next look. ``leaving`` are
    the generations whose Secret nobody needs any more: they go once it is deleted."""

    record: Record
    told: tuple[Told, ...] = ()
    clocks: dict[str, float] = field(default_factory=dict)
    leaving: frozenset[str] = frozenset()
