"""The shortest hit that wins, where no closed formula holds: rates and spread vary with length."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

LONGEST_TOKENS = 100_000_000
"""The longest prompt that the API lets anyone declare."""

_PARTS = 64


def first_win(
    wins: Callable[[int], bool],
    *,
    points: Sequence[tuple[float, float]],
    lengths: Iterable[int] = (),
) -> float:
    """The fewest tokens of 1..LONGEST_TOKENS for which ``wins``; ``math.inf`` when there are none.

    ``points`` are the (prompt length, prefill rate) between which the rate is linear. Where the
    rate does not rise with length a longer hit wins whenever a shorter one does, so its ends decide
    and bisection is exact. Where it rises a fetch may win in between only: 64 lengths are tried
    there, and ``lengths`` are, so that none of them wins below what is found.
    """
    loses = 0
    for length in sorted({*_lengths_to_try(points), *lengths}):
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
