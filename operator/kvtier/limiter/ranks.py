"""One session with each rank of a tier, asked each second whether it is there and what it holds.

A run of a server is told once, when a session begins: what restarts ends the session.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass
from typing import Final, Protocol

from kvtier.admission.signals import RankSignal
from kvtier.reconcile.clock import Clock
from kvtier.redact import redact
from kvtier.store.protocol import (
    Address,
    Connect,
    Credentials,
    Store,
    StoreDenied,
    StoreError,
    StoreUnreachable,
    StoreUntrusted,
)

log = logging.getLogger(__name__)

PERIOD: Final = 1.0
"""Seconds from the start of one look to the start of the next."""
TIMEOUT: Final = 0.75
"""Seconds of one look, so that two that fail and the second between them are less than three."""
LATE: Final = 0.25
"""Seconds beyond the timeout after which it was this process that stood still, not the rank."""
FAILURES: Final = 2
"""Looks in a row without an answer that make a rank lost. One whose port refuses is lost at once,
but for one that answered a moment ago: then it may be a restart, which the next look tells."""


class Login(Protocol):
    """Where ranks are and how to get in."""

    def get(self, rank: int) -> tuple[Address, Credentials] | None:
        """None while that is not known."""

    def refused(self) -> None:
        """A rank did not take what ``get`` gave."""


@dataclass(slots=True)
class _Held:
    run_id: str = ""
    keys: int = 0
    used_bytes: int = 0
    started: float | None = None
    """When its run began, of the clock."""


class RankWatch:
    """One rank. ``changed`` is called when it is lost, found again, or found to be another run.

    ``turns`` bounds how many ranks are being found at a time. A rank that answered a moment ago
    waits for no turn: that it is lost must be known in time.
    """

    def __init__(
        self,
        rank: int,
        *,
        login: Login,
        connect: Connect,
        clock: Clock,
        changed: Callable[[], None],
        turns: asyncio.Semaphore | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rank = rank
        self._login = login
        self._connect = connect
        self._clock = clock
        self._changed = changed
        self._turns = turns
        self._monotonic = monotonic
        self._held = _Held()
        self._asked: float | None = None
        self._at: float | None = None
        self._failures = 0
        self._lost = False
        self._stack = AsyncExitStack()
        self._store: Store | None = None

    def signal(self) -> RankSignal | None:
        """What the machine is told, None for a rank that nobody could be asked of yet."""
        if self._asked is None:
            return None
        return RankSignal(
            rank=self.rank,
            asked=self._asked,
            answers=not self._lost,
            at=self._at,
            run_id=self._held.run_id,
            keys=self._held.keys,
            used_bytes=self._held.used_bytes,
            uptime=None if self._held.started is None else self._asked - self._held.started,
        )

    async def run(self, stop: asyncio.Event, *, delay: float = 0.0) -> None:
        """Look after look until ``stop`` is set, the first in ``delay`` seconds."""
        try:
            await self._clock.wait(stop, delay)
            while not stop.is_set():
                began = self._clock.monotonic()
                await self.look()
                spent = self._clock.monotonic() - began
                await self._clock.wait(stop, max(0.0, PERIOD - spent))
        finally:
            await self._close()

    async def look(self) -> None:
        """Ask once. Raises nothing but what cancels it."""
        login = self._login.get(self.rank)
        if login is None:
            return
        is_known = self._at is not None and not self._lost
        async with nullcontext() if is_known or self._turns is None else self._turns:
            await self._look(login)

    async def _look(self, login: tuple[Address, Credentials]) -> None:
        began = self._monotonic()
        try:
            async with asyncio.timeout(TIMEOUT):
                if not await self._ask_again(*login):
                    await self._ask(*login)
        except (StoreDenied, StoreUntrusted) as error:
            # Somebody is there, who just does not tell.
            log.debug("%s", redact(str(error)))
            await self._close()
            self._login.refused()
            self._answered(None)
        except (StoreError, TimeoutError) as error:
            await self._close()
            if self._monotonic() - began > TIMEOUT + LATE:
                log.debug("a look at rank %d took too long to say anything of it", self.rank)
                return
            self._failed(refused=is_refused(error))
        except Exception:
            await self._close()
            log.exception("rank %d: no look", self.rank)
            self._failed(refused=False)

    async def _ask_again(self, address: Address, credentials: Credentials) -> bool:
        """Ask in the session there is. False without one, or if it broke: whoever listens now may
        be the next run."""
        if self._store is None:
            return False
        try:
            await self._ask(address, credentials)
        except StoreUnreachable:
            await self._close()
            return False
        return True

    async def _ask(self, address: Address, credentials: Credentials) -> None:
        store, run_id, started = self._store, self._held.run_id, self._held.started
        if store is None:
            store = await self._stack.enter_async_context(self._connect(address, credentials))
            self._store = store
            server = await store.info("server")
            run_id = server.get("run_id", "")
            started = self._clock.monotonic() - _number(server.get("uptime_in_seconds", ""))
        found = await store.info("memory", "keyspace")
        self._answered(
            _Held(
                run_id=run_id,
                keys=sum(_keys(text) for name, text in found.items() if _is_database(name)),
                used_bytes=_number(found.get("used_memory", "")),
                started=started,
            )
        )

    def _answered(self, held: _Held | None) -> None:
        self._asked = self._at = self._clock.monotonic()
        self._failures = 0
        news = self._lost or (held is not None and held.run_id != self._held.run_id)
        self._lost = False
        if held is not None:
            self._held = held
        if news:
            self._changed()

    def _failed(self, *, refused: bool) -> None:
        self._asked = self._clock.monotonic()
        self._failures += 1
        if self._lost or not (refused or self._failures >= FAILURES):
            return
        self._lost = True
        self._changed()

    async def _close(self) -> None:
        self._store = None
        stack, self._stack = self._stack, AsyncExitStack()
        try:
            # Closing waits for the other side, which may be what is gone.
            async with asyncio.timeout(TIMEOUT):
                await stack.aclose()
        except Exception as error:
            log.debug("closing a session: %s", redact(str(error)))


def is_refused(error: BaseException | None) -> bool:
    """Whether nobody listens there, by what the error was made from."""
    seen = 0
    while error is not None and seen < 8:
        if isinstance(error, ConnectionRefusedError):
            return True
        error, seen = error.__cause__ or error.__context__, seen + 1
    return False


def _is_database(name: str) -> bool:
    return name.startswith("db") and name[2:].isdigit()


def _keys(text: str) -> int:
    """Of ``keys=3,expires=0,avg_ttl=0``."""
    fields = dict(part.partition("=")[::2] for part in text.split(","))
    return _number(fields.get("keys", ""))


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0
