"""Rates of several ranks over the time in which all of them were read."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

Sample = tuple[float, int]
"""(moment on the monotonic clock, bytes that had come by then); both never fall."""
SETTLING: Final = 0.2
"""Share of the common time that is left out at its begin: connections grow to their speed."""


class NothingInCommon(ValueError):
    """There was no time in which all ranks were read. One line."""


def common_window(ranks: Sequence[Sequence[Sample]]) -> tuple[float, float]:
    """The time in which every rank was read, without its first part. Raises NothingInCommon."""
    begin = max(samples[0][0] for samples in ranks)
    end = min(samples[-1][0] for samples in ranks)
    if not end > begin:
        raise NothingInCommon("the ranks were not read at the same time: give it more bytes")
    return begin + SETTLING * (end - begin), end


def rate(samples: Sequence[Sample], *, begin: float, end: float) -> float:
    """Bytes/s between two moments, linear between samples. ``end`` must be after ``begin``."""
    return (given(samples, at=end) - given(samples, at=begin)) / (end - begin)


def given(samples: Sequence[Sample], *, at: float) -> float:
    """Bytes that had come by then, linear between samples."""
    place = bisect_left(samples, at, key=lambda sample: sample[0])
    if place == 0:
        return samples[0][1]
    if place == len(samples):
        return samples[-1][1]
    (before, had), (after, has) = samples[place - 1], samples[place]
    return had + (has - had) * (at - before) / (after - before)
