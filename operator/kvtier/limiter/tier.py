"""What is known of a tier, as one half of the limiter tells the other.

The watcher writes, the server reads; both run in one event loop, so nothing here is locked. Times
are seconds of the clock that the watcher was given, rates are prompt tokens/s.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

from kvtier.admission.storm import Limit, Storm

Mode = Literal["Observe", "Enforce"]


@dataclass(frozen=True, slots=True)
class TierView:
    """One tier at ``known_at``, published anew each second.

    ``engines`` are the Ready ones, None while that is not known. ``computed_rate`` is what one
    engine prefilled while it had more than enough to do, None while none was seen so.
    ``mean_prompt`` is the size of a request that tells no size [tokens]. ``queued_seen`` are the
    tokens that wait in engines by their own metrics, None where these tell nothing that the view
    before did not.
    """

    namespace: str
    name: str
    mode: Mode
    storm: Storm
    limit: Limit
    engines: int | None
    computed_rate: float | None
    known_at: float
    mean_prompt: float
    queued_seen: float | None = None


class Tiers(Protocol):
    """All tiers that are known."""

    def get(self, namespace: str, name: str) -> TierView | None:
        """The tier, None if none of that name is known."""

    def all(self) -> Iterable[TierView]:
        """Every tier that is known."""

    def set_offered(self, namespace: str, name: str, tokens_per_second: float) -> None:
        """Tell the machine how many prompt tokens come, before any is refused. Of an unknown tier
        it is forgotten."""
