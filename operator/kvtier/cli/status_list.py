"""All tiers of a namespace, or of a cluster, a line each."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from kvtier.api import reasons
from kvtier.api.conditions import find
from kvtier.breakeven.words import digits
from kvtier.cli.next_steps import next_step
from kvtier.cli.screen import WIDTH, table
from kvtier.cli.status_report import is_ready

_UNKNOWN: Final = "-"


def text(
    bodies: Sequence[Mapping[str, Any]],
    *,
    everywhere: bool,
    width: int = WIDTH,
    clip: bool = False,
) -> str:
    """A table, what needs somebody first."""
    head = ["NAMESPACE"] if everywhere else []
    rows = [[*head, "TIER", "READY", "RANKS", "VERDICT", "RATIO", "ADMISSION", "WHY"]]
    for body in ordered(bodies):
        metadata, status = body["metadata"], body.get("status") or {}
        ratio = (status.get("measured") or {}).get("ratio")
        why = next_step(body, active=None)
        rows.append(
            [
                *([metadata["namespace"]] if everywhere else []),
                metadata["name"],
                "yes" if is_ready(body) else "no",
                status.get("ranks", _UNKNOWN),
                status.get("verdict", _UNKNOWN),
                _UNKNOWN if ratio is None else digits(ratio),
                (status.get("admission") or {}).get("state", _UNKNOWN),
                why.reason or _UNKNOWN,
            ]
        )
    return table(rows, width=width, clip=clip)


def ordered(bodies: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those that are not Ready first, then storms, then by name."""

    def rank(body: Mapping[str, Any]) -> tuple[bool, bool, str, str]:
        metadata = body["metadata"]
        warm = find((body.get("status") or {}).get("conditions", ()), reasons.WARM)
        storms = warm.get("reason") == reasons.STORM
        return is_ready(body), not storms, metadata["namespace"], metadata["name"]

    return sorted(bodies, key=rank)
