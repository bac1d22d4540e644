"""The circuit breaker of one rank: pure, with the time handed in.

A rank is never asked because a request wants it to be: whoever holds the breaker tries it on its
own, when the breaker says so, and requests only look at the state.
"""

from collections.abc import Callable
from enum import StrEnum

FIRST_WAIT, LONGEST_WAIT = 0.5, 2.0
"""Seconds from a failure to the next attempt: they double, and jitter takes up to half of them."""
LASTING = 10.0
"""Seconds that a rank must have answered for the waits to begin anew: each attempt that succeeds
costs new connections, and a rank that fails again at once must not have them twice a second."""


class State(StrEnum):
    """``STARTING`` until the first attempt ended: only then do requests wait for an outcome."""

    STARTING = "starting"
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Breaker:
    """``jitter`` gives a number from 0 to 1. ``now`` is in seconds and never falls."""

    def __init__(self, *, jitter: Callable[[], float]) -> None:
        self._jitter = jitter
        self._state = State.STARTING
        self._wait = FIRST_WAIT
        self._next = 0.0
        self._since = 0.0

    @property
    def state(self) -> State:
        return self._state

    def failed(self, now: float) -> None:
        """The rank is not there: an attempt failed, or a request while it was closed.

        What requests of earlier connections still report while it is open changes nothing.
        """
        if self._state is State.OPEN:
            return
        if self._state is State.CLOSED and now - self._since >= LASTING:
            self._wait = FIRST_WAIT
        self._state = State.OPEN
        self._next = now + self._wait * (1 - self._jitter() / 2)
        self._wait = min(LONGEST_WAIT, 2 * self._wait)

    def seconds_to_attempt(self, now: float) -> float | None:
        """How long to wait with the next attempt; None where none is due."""
        if self._state is State.STARTING:
            return 0.0
        return max(0.0, self._next - now) if self._state is State.OPEN else None

    def trying(self) -> None:
        """An attempt begins. While STARTING it stays that, so that requests wait for it."""
        if self._state is State.OPEN:
            self._state = State.HALF_OPEN

    def succeeded(self, now: float) -> None:
        """An attempt did: the rank answers."""
        if self._state in (State.STARTING, State.HALF_OPEN):
            self._state = State.CLOSED
            self._since = now
