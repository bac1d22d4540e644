"""Which hits win, where no closed formula holds: rates and spread vary with length."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

LONGEST_TOKENS = 100_000_000
"""The longest prompt that the API lets anyone declare."""

_PARTS = 64


@dataclass(frozen=True, slots=True)
class Wins:
    """Hits of ``least`` to ``most`` tokens win; those above do not, or only some (``again``).

    ``least`` is ``math.inf`` where no length is enough, ``most`` where every longer hit wins too.
    """

    least: float
    most: float = math.inf
    again: bool = False

    def inside(self) -> str:
        """``3,470 tokens and more``, ``400 to 17,012 tokens``."""
        if math.isinf(self.most):
            return f"{self.least:,.0f} tokens and more"
        longer = ", and some longer ones," if self.again else ""
        return f"{self.least:,.0f} to {self.most:,.0f} tokens{longer}"

    def outside(self) -> str:
        """``below 3,470 tokens``, ``below 400 and above 17,012 tokens``."""
        if math.isinf(self.most):
            return f"below {self.least:,.0f} tokens"
        some = "some " if self.again else ""
        return f"below {self.least:,.0f} and {some}above {self.most:,.0f} tokens"


def winning(
    wins: Callable[[int], bool],
    *,
    points: Sequence[tuple[float, float]],
    lengths: Iterable[int] = (),
) -> Wins:
    """The first lengths that win without a gap. See ``first_win``.

    Where the rate rises with length a prefill can catch up with a fetch that was ahead.
    """
    tried = tuple(lengths)
    least = first_win(wins, points=points, lengths=tried)
    falls = all(rate >= after for (_, rate), (_, after) in pairwise(points))
    if falls or math.isinf(least):
        return Wins(least)
    loss = first_win(lambda n: not wins(n), points=points, lengths=tried, above=int(least))
    if math.isinf(loss):
        return Wins(least)
    again = first_win(wins, points=points, lengths=tried, above=int(loss))
    return Wins(least, most=loss - 1, again=math.isfinite(again))


def first_win(
    wins: Callable[[int], bool],
    *,
    points: Sequence[tuple[float, float]],
    lengths: Iterable[int] = (),
    above: int = 0,
) -> float:
    """The fewest tokens above ``above``, up to LONGEST_TOKENS, for which ``wins``; ``math.inf``
    when there are none.

    ``points`` are the (prompt length, prefill rate) between which the rate is linear. Where the
    rate does not rise with length a longer hit wins whenever a shorter one does, so its ends decide
    and bisection is exact. Where it rises a fetch may win in between only: 64 lengths are tried
    there, and ``lengths`` are, so that none of them wins below what is found.
    """
    loses = above
    for length in sorted({*_lengths_to_try(points), *lengths}):
        if length <= above:
            continue
        if wins(length):
            return _bisect(wins, loses, length)
        loses = length
    return math.inf


def _lengths_to_try(points: Sequence[tuple[float, float]]) -> Iterator[int]:
    low = 1
    rate_before = math.inf
    for point, rate in [*points, (LONGEST_TOKENS, 0.0)]:
        high = max(1, int(point))
        if rate > rate_before:
            yield from (round(low * (high / low) ** (part / _PARTS)) for part in range(1, _PARTS))
        yield high
        low, rate_before = high, rate


def _bisect(wins: Callable[[int], bool], loses: int, wins_at: int) -> float:
    while wins_at - loses > 1:
        middle = (loses + wins_at) // 2
        if wins(middle):
            wins_at = middle
        else:
            loses = middle
    return wins_at
