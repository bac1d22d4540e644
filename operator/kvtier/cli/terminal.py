"""What a person looks at: its width, whether it shows colours, and a bar for what takes long."""

import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TextIO

from kvtier.cli.screen import WIDTH

LEAST_WIDTH: Final = 40
MOST_WIDTH: Final = 120
_BAR: Final = 24
_CLEAR: Final = "\r\x1b[K"
_TICK: Final = 0.5


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a person reads it while it is written."""
    return stream is not None and not stream.closed and stream.isatty()


def width() -> int | None:
    """Characters of a line on standard output; None where nobody looks at its width."""
    if not is_terminal(sys.stdout):
        return None
    columns = shutil.get_terminal_size((WIDTH + 1, 24)).columns
    return max(LEAST_WIDTH, min(columns - 1, MOST_WIDTH))


def colours() -> bool:
    """Only on a terminal that has them, and not against https://no-color.org."""
    return (
        is_terminal(sys.stdout)
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM", "") not in ("", "dumb")
    )


_STEERS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""What moves a cursor, sets a colour, or turns the order of letters."""


def plain(text: str) -> str:
    """A text in which others' words (names of models, messages, events) only say something: what
    would steer a terminal is written out, such as ``\\x1b``."""
    return _STEERS.sub(lambda found: ascii(found[0])[1:-1], text)


class Bar:
    """One line on standard error that says how far something is; on a terminal only.

    With ``total`` 0 there is no bar, but the time that has passed. The line is drawn anew twice a
    second, by a thread, so that it moves while the work waits.
    """

    def __init__(self, what: str, *, total: float = 0.0) -> None:
        self._what = what
        self._total = total
        self._done = 0.0
        self._began = time.monotonic()
        self._lock = threading.RLock()
        self._drawn = False
        self._stop = threading.Event()

    def at(self, done: float, what: str | None = None) -> None:
        """So much is done of the total; ``what`` is going on."""
        with self._lock:
            self._done = done
            self._what = self._what if what is None else what
            self._draw()

    def says(self, what: str) -> None:
        """Something else is going on."""
        self.at(self._done, what)

    def _line(self) -> str:
        passed = int(time.monotonic() - self._began)
        if self._total <= 0:
            return f"{passed:3d} s  {self._what}"
        share = min(max(self._done / self._total, 0.0), 1.0)
        full = int(share * _BAR)
        return f"[{'#' * full}{'.' * (_BAR - full)}] {100 * share:3.0f} %  {passed} s  {self._what}"

    def _draw(self) -> None:
        if not self._stop.is_set():
            columns = shutil.get_terminal_size((WIDTH, 24)).columns
            line = " ".join(self._line().split("\n"))
            sys.stderr.write(f"{_CLEAR}{line[: columns - 1]}")
            sys.stderr.flush()
            self._drawn = True

    def clear(self) -> None:
        """Take the line away, so that something else can be written; it comes back."""
        with self._lock:
            if self._drawn:
                sys.stderr.write(_CLEAR)
                sys.stderr.flush()
                self._drawn = False

    def _tick(self) -> None:
        while not self._stop.wait(_TICK):
            with self._lock:
                self._draw()

    @contextmanager
    def shown(self) -> Iterator["Bar"]:
        """Until the end of the block."""
        ticker = threading.Thread(target=self._tick, name="bar", daemon=True)
        ticker.start()
        try:
            yield self
        finally:
            self._stop.set()
            self.clear()
            ticker.join()


class NoBar(Bar):
    """What there is where nobody would see one."""

    def _draw(self) -> None:
        pass

    @contextmanager
    def shown(self) -> Iterator[Bar]:
        yield self


_active: list[Bar] = []


@contextmanager
def bar(what: str, *, total: float = 0.0) -> Iterator[Bar]:
    """A bar for the length of the block; ``clear`` is called by who writes to standard error."""
    made = (Bar if is_terminal(sys.stderr) else NoBar)(what, total=total)
    with made.shown() as shown:
        _active.append(shown)
        try:
            yield shown
        finally:
            _active.remove(shown)


def clear() -> None:
    """Take away the bar that is shown, if one is."""
    for each in _active:
        each.clear()
