"""What happened to a tier lately: its events, and conditions that changed. Nothing is asked."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvtier.plan.probing import seconds_of

MOST: Final = 6
WARNING: Final = "Warning"
NORMAL: Final = "Normal"


@dataclass(frozen=True, slots=True)
class Change:
    """``at`` is RFC 3339; ``subject`` names a condition, and is empty for an event. ``count`` is
    how often it was told; ``severity`` Normal or Warning."""

    at: str
    subject: str
    severity: str
    reason: str
    message: str
    count: int = 1
    status: str = ""

    @property
    def title(self) -> str:
        """What it is, in a few words."""
        if self.subject:
            return f"{self.subject} is {self.status} ({self.reason})"
        times = f" x{self.count}" if self.count > 1 else ""
        return f"{self.severity} {self.reason}{times}"

    def document(self) -> dict[str, Any]:
        """An event for programs, under the names that Kubernetes has for it."""
        return {
            "lastTimestamp": self.at,
            "type": self.severity,
            "reason": self.reason,
            "count": self.count,
            "message": self.message,
        }


@dataclass(frozen=True, slots=True)
class History:
    """Events of a tier; None, and a sentence that says why, where they may not be read."""

    events: Sequence[Mapping[str, Any]] | None = ()
    hint: str = ""


NO_HISTORY: Final = History()


def of_event(event: Mapping[str, Any]) -> Change:
    """A core/v1 Event."""
    return Change(
        at=_when(event),
        subject="",
        severity=WARNING if event.get("type") == WARNING else NORMAL,
        reason=str(event.get("reason", "")),
        message=" ".join(str(event.get("message", "")).split()),
        count=int(event.get("count") or (event.get("series") or {}).get("count") or 1),
    )


def _when(event: Mapping[str, Any]) -> str:
    """When it happened last, in whichever of its fields that is."""
    series = event.get("series") or {}
    found = (
        event.get("lastTimestamp"),
        series.get("lastObservedTime"),
        event.get("eventTime"),
        event["metadata"].get("creationTimestamp"),
    )
    return str(next(filter(None, found), ""))


def of_conditions(status: Mapping[str, Any]) -> Iterator[Change]:
    """When each condition came into its status."""
    for each in status.get("conditions", ()):
        yield Change(
            at=str(each.get("lastTransitionTime", "")),
            subject=each["type"],
            severity=WARNING if each["status"] == "False" else NORMAL,
            reason=each["reason"],
            message=" ".join(each.get("message", "").split()),
            status=each["status"],
        )


def latest(status: Mapping[str, Any], history: History, *, most: int = MOST) -> list[Change]:
    """The newest first; those without a time are left out."""
    found = [*map(of_event, history.events or ()), *of_conditions(status)]
    dated = [each for each in found if seconds_of(each.at)]
    return sorted(dated, key=lambda each: seconds_of(each.at), reverse=True)[:most]


def documents(history: History) -> list[dict[str, Any]] | None:
    """All events, the newest first; None where they may not be read."""
    if history.events is None:
        return None
    return [each.document() for each in latest({}, history, most=len(history.events))]
