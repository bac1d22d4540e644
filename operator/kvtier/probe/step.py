"""Keeps the processes of a probe in step: an engine waits for its slowest rank.

Connections share a narrow link as they happen to, some get twice what others do for seconds. In a
hit that evens out: every rank has the same bytes to give, and the slower gets the whole link once
the faster is done. So no rank is read much further than the slowest one.
"""

import multiprocessing
from ctypes import c_uint64
from typing import Any, Final

AHEAD_SHARE: Final = 0.05
"""Of what a rank has given it may be ahead: ranks that share CPUs take turns of some ms."""
FLIGHTS_AHEAD: Final = 2
"""What a connection has asked for is on its way, so it may be so far ahead in any case."""


class Step:
    """How many bytes each rank has given, in memory that the ranks' processes share."""

    def __init__(self, ranks: int) -> None:
        context = multiprocessing.get_context("spawn")
        # Each process writes one number, its own.
        self._given: Any = context.RawArray(c_uint64, ranks)

    def give(self, place: int, total: int) -> None:
        self._given[place] = total

    def may_ask(self, place: int, *, asked: int, in_flight: int) -> bool:
        """Whether the rank at ``place`` may be asked for more than the ``asked`` bytes that it was
        asked for already; ``in_flight`` are the most bytes that are on their way at a time."""
        given = self._given[:]
        ahead = max(FLIGHTS_AHEAD * in_flight, int(AHEAD_SHARE * given[place]))
        return bool(asked < min(given) + ahead)
