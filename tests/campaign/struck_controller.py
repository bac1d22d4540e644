"""``kvtier controller`` that dies at one of its calls, as kill -9 has it die.

``python struck_controller.py CALLS INDEX before|after ARGUMENTS OF KVTIER ...``: once SIGUSR1 has
come its calls to the API server and to Valkeys are counted from 0 and written to the file CALLS, a
line each; at call INDEX it ends at once, before it is made or after it was answered. An INDEX below
0 only counts. Calls for its Lease, which come by the clock, and the watches are not counted.

At SIGUSR2 its clocks, the monotonic one too, jump an hour ahead, and back at the next one.
"""

import inspect
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

from kvtier import process
from kvtier.cli.main import main
from kvtier.cluster.protocol import LEASE, Kind
from kvtier.reconcile.clock import SystemClock

DEAD = 137
JUMP_SECONDS = 3600.0
NO_CALLS = frozenset({"server", "bound_writes", "watch_session"})
"""What of a cluster asks the API server for nothing by itself."""


class Gate:
    """Counts calls once it is armed."""

    def __init__(self, calls: str, *, index: int, side: str) -> None:
        self._file = os.open(calls, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self._strike = (index, side)
        self._count = 0
        self.armed = False

    async def through(self, what: str, call: Any, *arguments: Any, **options: Any) -> Any:
        """Make the call, if the process lives so long."""
        if not self.armed:
            return await call(*arguments, **options)
        index, self._count = self._count, self._count + 1
        os.write(self._file, f"{what}\n".encode())
        self._pass(index, "before")
        answer = await call(*arguments, **options)
        self._pass(index, "after")
        return answer

    def _pass(self, index: int, side: str) -> None:
        if (index, side) == self._strike:
            os._exit(DEAD)


class Counted:
    """A cluster or a session with a Valkey whose calls go through the gate."""

    def __init__(self, inner: Any, gate: Gate) -> None:
        self._inner = inner
        self._gate = gate

    def __getattr__(self, verb: str) -> Any:
        inner, gate = getattr(self._inner, verb), self._gate
        if verb in NO_CALLS:
            return inner
        if not inspect.iscoroutinefunction(inner):
            return inner

        async def call(*arguments: Any, **options: Any) -> Any:
            subject = arguments[0] if arguments else ""
            kind = subject.kind if isinstance(subject, Kind) else ""
            if isinstance(subject, dict):
                kind = subject.get("kind", "")
            if kind == LEASE.kind:
                return await inner(*arguments, **options)
            return await gate.through(f"{verb} {kind}".strip(), inner, *arguments, **options)

        return call


class JumpingClock(SystemClock):
    """The machine's, by ``ahead`` seconds ahead, as all parts of the process see it."""

    ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + JumpingClock.ahead

    def now(self) -> datetime:
        return super().now() + timedelta(seconds=JumpingClock.ahead)

    @classmethod
    def jump(cls) -> None:
        JumpingClock.ahead = 0.0 if JumpingClock.ahead else JUMP_SECONDS


def strike(gate: Gate) -> None:
    """Put the gate before everything that the controller's process calls."""
    connect, connector = process.connect, process.connector

    @asynccontextmanager
    async def counted_connect(*arguments: Any, **options: Any) -> AsyncIterator[Any]:
        async with connect(*arguments, **options) as cluster:
            yield Counted(cluster, gate)

    def counted_connector(*arguments: Any, **options: Any) -> Any:
        opened = connector(*arguments, **options)

        @asynccontextmanager
        async def session(*where: Any, **how: Any) -> AsyncIterator[Any]:
            context = opened(*where, **how)
            store = await gate.through("connect", context.__aenter__)
            try:
                yield Counted(store, gate)
            finally:
                await context.__aexit__(*sys.exc_info())

        return session

    process.connect = counted_connect  # type: ignore[assignment]
    process.connector = counted_connector
    process.SystemClock = JumpingClock  # type: ignore[misc]


if __name__ == "__main__":
    calls, index, side, *rest = sys.argv[1:]
    the_gate = Gate(calls, index=int(index), side=side)
    strike(the_gate)
    signal.signal(signal.SIGUSR1, lambda *_: setattr(the_gate, "armed", True))
    signal.signal(signal.SIGUSR2, lambda *_: JumpingClock.jump())
    sys.exit(main(rest))
