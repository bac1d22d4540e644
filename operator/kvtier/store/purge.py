"""Removing the keys of one generation from a rank that serves others meanwhile.

Valkey runs one command at a time, and frees a string within UNLINK, whatever its size: only
collections are freed beside the main thread. So each command is kept short, and between two of
them the server has a multiple of that time for everybody else: so much that of reads that are as
short as such a command fewer than one in a hundred meets one.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from kvtier.store.protocol import Store

Clock = Callable[[], float]
Sleep = Callable[[float], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Pace:
    """How much of a server a purge may take.

    ``share``: the part of the time in which the server works for the purge, at most (above 0, up
    to 1), while it removes large values, which take as long to be read. ``small_share``: that part
    while it walks through keys, or removes more than ``few`` at a time: they are small, and others
    read such in a fraction of a command, which is ``small_turn`` at most: the rest of what it took
    is this process's own time, and the network's. ``scan``: about how many keys a SCAN looks at. An
    UNLINK removes 1 to ``unlink`` keys, as many as take about ``turn`` seconds longer than a SCAN:
    freeing 4 KiB takes a server two microseconds, 8 MiB over a millisecond where its allocator
    gives the memory back at once.
    """

    share: float = 0.2
    small_share: float = 0.01
    scan: int = 500
    unlink: int = 100
    few: int = 8
    turn: float = 0.001
    small_turn: float = 0.0004

    def pause(self, took: float, *, keys: int) -> float:
        """Seconds to leave the server alone after a command that took so many, about ``keys`` keys.

        Work takes about ``turn`` at most; what is beyond two of them is waiting, for the network
        or behind others, and costs the server nothing.
        """
        if keys <= self.few:
            return min(took, 2 * self.turn) * (1 / self.share - 1)
        return min(took, self.small_turn) * (1 / self.small_share - 1)

    def batch(self, keys: int, *, longer: float) -> int:
        """Keys of the next UNLINK, after one of ``keys`` took so much longer than a SCAN."""
        if longer > self.turn:
            return max(1, keys // 2)
        return min(self.unlink, keys * 2) if longer < self.turn / 2 else keys


DEFAULT_PACE = Pace()


@dataclass(frozen=True, slots=True)
class Purged:
    """What a purge did.

    ``whole``: all keys were walked through, so none is left that was there when it began; if not,
    it stopped because its time was over, or because nobody leads any more, and the next one goes on
    from ``cursor``. ``steps`` are SCANs, ``seconds`` all it took.
    """

    keys: int
    steps: int
    seconds: float
    whole: bool
    cursor: int = 0


async def purge(
    store: Store,
    *,
    prefix: str,
    leads: Callable[[], bool],
    pace: Pace = DEFAULT_PACE,
    cursor: int = 0,
    most_seconds: float = math.inf,
    clock: Clock = time.monotonic,
    sleep: Sleep = asyncio.sleep,
) -> Purged:
    """Walk once through all keys and remove those under ``prefix``.

    Nobody may store under ``prefix`` any more, or some are left. ``leads`` is asked before each
    command; once it is False none follows. After ``most_seconds`` it stops between two SCANs, and
    another purge of the same run of the server may go on from its ``cursor``. Raises what Store
    does: what was removed until then stays removed.
    """
    begun = clock()
    head = f"{prefix}@".encode()
    removed = steps = 0
    pending: list[bytes] = []
    here = cursor
    batch = 1

    def done(*, whole: bool, at: int) -> Purged:
        return Purged(keys=removed, steps=steps, seconds=clock() - begun, whole=whole, cursor=at)

    while leads():
        if not pending:
            # A walk that stops with keys pending goes on from where it found the first of them.
            here = cursor
        sent = clock()
        cursor, found = await store.scan(cursor, match=f"{prefix}@*", count=pace.scan)
        scan_took = clock() - sent
        steps += 1
        await sleep(pace.pause(scan_took, keys=pace.scan))
        # The pattern is what the server looks for; what goes is decided here.
        pending += [key for key in found if key.startswith(head)]
        over = cursor == 0 or clock() - begun >= most_seconds
        while len(pending) >= batch or (over and pending):
            if not leads():
                return done(whole=False, at=here)
            part, pending = pending[:batch], pending[batch:]
            sent = clock()
            removed += await store.unlink(*part)
            took = clock() - sent
            # By what a batch may be: the last one of many small values is small too.
            await sleep(pace.pause(took, keys=batch))
            batch = pace.batch(batch, longer=took - scan_took)
        if over:
            return done(whole=cursor == 0, at=cursor)
    return done(whole=False, at=here if pending else cursor)
