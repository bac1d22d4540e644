"""How long a client waits for each value, in a process of its own."""

import itertools
import multiprocessing
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from reading import plain_reader

Window = tuple[float, float]
"""Begin and end, seconds of ``time.perf_counter``."""
_FORK = multiprocessing.get_context("fork")


@dataclass(slots=True)
class Latencies:
    """``begun`` and ``took`` of every read, seconds of one clock for all processes; there once the
    client has ended."""

    begun: list[float] = field(default_factory=list)
    took: list[float] = field(default_factory=list)

    def during(self, windows: Sequence[Window]) -> list[float]:
        """Seconds of the reads that were begun in one of ``windows``."""
        found: list[float] = []
        for first, last in windows:
            found += self.took[bisect_left(self.begun, first) : bisect_left(self.begun, last)]
        return found


@contextmanager
def reading_all_the_time(
    port: int, *, token: str, keys: Sequence[bytes], size: int
) -> Iterator[Latencies]:
    """A client that reads values of ``size`` bytes, one after another, until the block ends."""
    found = Latencies()
    here, there = _FORK.Pipe()
    process = _FORK.Process(target=_read, args=(there, port, token, keys, size))
    process.start()
    try:
        yield found
        here.send(None)
        found.begun, found.took = here.recv()
    finally:
        process.kill()
        process.join()


def _read(
    pipe: "Connection[object, object]", port: int, token: str, keys: Sequence[bytes], size: int
) -> None:
    begun, took = [], []
    with plain_reader(port, size=size, user=token, password=token) as get:
        for number, key in enumerate(itertools.cycle(keys)):
            if number % 64 == 0 and pipe.poll():
                break
            sent = time.perf_counter()
            get(key)
            took.append(time.perf_counter() - sent)
            begun.append(sent)
    pipe.send((begun, took))
