"""Figures that are known at a few points: prefill rate by prompt length, length by quantile."""

from bisect import bisect_right
from collections.abc import Sequence

from kvtier.breakeven.checks import not_negative, positive

Point = tuple[float, float]


def interpolate(points: Sequence[Point], x: float) -> float:
    """The value at ``x``: linear between two of ``points``, that of the nearest outside them.

    ``points`` are (x, value), sorted by x. Raises ValueError when there are none.
    """
    if not points:
        raise ValueError("points must hold at least one (x, value)")
    after = bisect_right([known for known, _ in points], x)
    if after == 0:
        return points[0][1]
    if after == len(points):
        return points[-1][1]
    (left, low), (right, high) = points[after - 1], points[after]
    return low + (high - low) * (x - left) / (right - left)


def prefill_rate(points: Sequence[Point], tokens: float) -> float:
    """Tokens per second of one engine for prompts of ``tokens``.

    ``points`` are (prompt length in tokens, tokens per second), sorted by length. Raises ValueError
    for a length that is negative or a rate that is not positive.
    """
    not_negative(tokens=tokens)
    for length, rate in points:
        not_negative(prompt_length=length)
        positive(rate=rate)
    return interpolate(points, tokens)


def sample(quantiles: Sequence[Point], count: int) -> list[float]:
    """``count`` equally likely values of the distribution that ``quantiles`` outline.

    ``quantiles`` are (share in 0..1, value), sorted by share: the middle of each of ``count`` equal
    shares is looked up between them. Raises ValueError when there are none or ``count`` is not
    positive.
    """
    positive(count=count)
    return [interpolate(quantiles, (index + 0.5) / count) for index in range(count)]
