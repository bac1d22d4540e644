"""What a check has to say about a tier: the word to search for, a sentence with figures."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How bad it is. Only an error makes ``PlacementAccepted`` False."""

    ERROR = "Error"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True)
class Finding:
    """``reason`` is a constant of ``api.reasons`` and a section of docs/runbooks.md.

    ``blocks``: no link can change it, so a tier with ``placement.onReject: Block`` is not made.
    """

    reason: str
    message: str
    severity: Severity = Severity.WARNING
    blocks: bool = False


def errors(found: Iterable[Finding]) -> tuple[Finding, ...]:
    """Those of them that are errors."""
    return tuple(each for each in found if each.severity is Severity.ERROR)


MOST_NAMED = 3


def named(items: list[str], *, most: int = MOST_NAMED) -> str:
    """The first few of ``items``, and how many more there are: messages are bounded."""
    shown = ", ".join(items[:most])
    more = len(items) - most
    return f"{shown} and {more} more" if more > 0 else shown
