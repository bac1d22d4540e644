"""Waiting for something to become true, without sleeping longer than needed."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL_SECONDS = 0.1


def eventually(
    probe: Callable[[], T | None],
    *,
    seconds: float,
    what: str,
    detail: Callable[[], object] | None = None,
) -> T:
    """The first true value of ``probe``; AssertionError with ``what`` if none comes in time.

    ``detail`` is asked once, for the error, what there was instead.
    """
    deadline = time.monotonic() + seconds
    while True:
        value = probe()
        if value:
            return value
        if time.monotonic() > deadline:
            instead = f"; instead: {detail()}" if detail else ""
            raise AssertionError(f"not within {seconds:g} s: {what}{instead}")
        time.sleep(POLL_SECONDS)


def never(probe: Callable[[], object], *, seconds: float, what: str) -> None:
    """Watch for so many seconds that ``probe`` stays false."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = probe()
        assert not value, f"{what}: {value}"
        time.sleep(POLL_SECONDS)
