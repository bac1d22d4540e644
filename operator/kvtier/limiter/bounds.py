"""Pure: which limit holds for a tier here, by the own machine or by the peers'."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kvtier.limiter.report import TierReport
from kvtier.limiter.tier import TierView

STALE_SECONDS: Final = 30.0
"""A view is published each second. An older one is of a watcher that hangs, and limits nothing."""
SLACK_SECONDS: Final = 3.0
"""A machine sees a storm at most so much later than its peers."""
OPEN: Final = "Open"


@dataclass(frozen=True, slots=True)
class Bounds:
    """``limit`` of all replicas [tokens/s] and ``max_queued`` [tokens]; None: none.

    ``state`` is the one that the limit is of; ``adopted``: it is a peer's.
    """

    enforces: bool
    mean_prompt: float
    state: str
    limit: float | None = None
    max_queued: float | None = None
    adopted: bool = False


def bounds_of(
    *, view: TierView | None, reports: Iterable[TierReport], known_since: float, now: float
) -> Bounds:
    """The own machine's limit. Where it has none, that of a storm which peers have been in since
    before this replica knew the tier: it cannot have seen what was lost. Of several the lowest.

    ``known_since`` is when this replica first knew the tier. Nothing known: no limit.
    """
    fresh = view is not None and now - view.known_at <= STALE_SECONDS
    if view is not None and fresh and _positive(view.limit.tokens_per_second):
        return Bounds(
            enforces=view.mode == "Enforce",
            mean_prompt=max(1.0, view.mean_prompt),
            state=view.storm.state.value,
            limit=view.limit.tokens_per_second,
            max_queued=view.limit.max_queued,
        )
    older = [
        report
        for report in reports
        if _positive(report.limit) and now - report.age <= known_since + SLACK_SECONDS
    ]
    if older:
        lowest = min(older, key=lambda report: report.limit or 0.0)
        return Bounds(
            enforces=(view.mode if view is not None else lowest.mode) == "Enforce",
            mean_prompt=max(1.0, lowest.mean_prompt),
            state=lowest.state,
            limit=lowest.limit,
            max_queued=lowest.max_queued,
            adopted=True,
        )
    return Bounds(
        enforces=view is not None and view.mode == "Enforce",
        mean_prompt=max(1.0, view.mean_prompt) if view is not None else 1.0,
        state=view.storm.state.value if view is not None else OPEN,
    )


def _positive(limit: float | None) -> bool:
    # A limit of nothing is nobody's intent, and would be an outage.
    return limit is not None and limit > 0
