"""Pure: how replicas split one limit by their demand, and how demand is measured."""

import math
from collections.abc import Iterable
from typing import Final

FLOOR: Final = 0.02
"""The part of a limit that replicas share evenly under overload, so that whoever gets traffic next
has something until its peers hear of it. It is lost while the traffic is elsewhere."""
MEAN_SECONDS: Final = 1.0
SHORTEST_SECONDS: Final = 0.05
"""A rate is not told from what came in less."""
RISEN: Final = 1.25


def share(*, limit: float, own: float, others: Iterable[float], floor: float = FLOOR) -> float:
    """One replica's part of ``limit``; all in tokens/s, ``others`` are the other replicas' demands.

    With N replicas, demands d, their sum D: d + (limit - D) / N while that leaves each the floor
    (D <= (1 - floor) x limit), else limit x (floor / N + (1 - floor) x d / D), which is the same
    there. Shares of replicas that know the same demands sum to the limit, and no share is above
    it, so a partition admits at most N x limit.
    """
    demands = [max(0.0, demand) for demand in others]
    own = max(0.0, own)
    replicas = len(demands) + 1
    total = own + sum(demands)
    if total <= (1 - floor) * limit:
        return own + (limit - total) / replicas
    return limit * (floor / replicas + (1 - floor) * own / total)


class Meter:
    """Tokens/s that come, before anything is refused.

    ``offered`` is the mean of the last second or so; ``demand`` is the same, but rises and falls at
    once where that is surely no chance: tokens of independent requests vary by the root of the sum
    of their squares (compound Poisson), and 0.2 s have few requests. ``typical`` is the size of the
    request that a token is in, on average.
    """

    __slots__ = (
        "_at",
        "_quick",
        "_silent",
        "_spread",
        "_squares",
        "_tokens",
        "demand",
        "offered",
        "typical",
    )

    def __init__(self, *, now: float) -> None:
        self._at = now
        self._tokens = 0.0
        self._squares = 0.0
        self._spread = 0.0
        self._quick = 0.0
        self._silent = 0.0
        self.demand = 0.0
        self.offered = 0.0
        self.typical = 0.0

    def add(self, tokens: float) -> None:
        self._tokens += tokens
        self._squares += tokens * tokens

    def rises(self, now: float) -> bool:
        """Whether surely more comes than ``demand`` says, which is worth telling at once."""
        seconds = max(now - self._at, SHORTEST_SECONDS)
        return self._tokens - math.sqrt(self._squares) > RISEN * self.demand * seconds

    def look(self, now: float) -> None:
        """Close the window that began with the last look."""
        seconds = now - self._at
        if seconds <= 0:
            self._at = min(self._at, now)
            return
        rate = self._tokens / seconds
        weight = -math.expm1(-seconds / MEAN_SECONDS)
        self.offered += (rate - self.offered) * weight
        self._spread += (self._squares / seconds - self._spread) * weight
        self.typical = self._spread / self.offered if self.offered > 0 else 0.0
        chance = math.sqrt(self.typical * self._quick * seconds)
        at_least = (self._tokens - math.sqrt(self._squares)) / seconds
        at_most = (self._tokens + 2 * chance) / seconds
        self._silent = 0.0 if self._tokens else self._silent + seconds
        if self._silent:
            # Three requests were expected in this time, and none came.
            at_most = min(at_most, 3 * self.typical / self._silent)
        self._quick = min(self._quick + (rate - self._quick) * weight, at_most)
        self.demand = max(self._quick, at_least)
        self._at, self._tokens, self._squares = now, 0.0, 0.0
