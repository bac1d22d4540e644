"""Replicas tell each other their demand: each 200 ms, and at once where a risen one is denied."""

import asyncio
import json
import logging
import secrets
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import aiohttp

from kvtier.limiter.gates import Gates
from kvtier.limiter.membership import Peer, counts, is_over, said
from kvtier.limiter.report import BadReport, Report, from_json, to_json

log = logging.getLogger(__name__)

Address = tuple[str, int]
Resolve = Callable[[], Awaitable[frozenset[Address]]]
"""The addresses of all replicas, this one's too. Raises OSError while they cannot be had."""

TICK_SECONDS: Final = 0.2
LEAST_SECONDS: Final = 0.05
"""Between two exchanges."""
RESOLVE_SECONDS: Final = 1.0
TIMEOUT_SECONDS: Final = 0.5
CONNECT_SECONDS: Final = 0.25


def by_dns(name: str, port: int) -> Resolve:
    """All addresses of a headless Service."""

    async def resolve() -> frozenset[Address]:
        found = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
        return frozenset((str(entry[4][0]), port) for entry in found)

    return resolve


async def alone() -> frozenset[Address]:
    """No other replica."""
    return frozenset()


class Peers:
    """The other replicas of this one, which is called ``replica``."""

    def __init__(self, gates: Gates, *, resolve: Resolve, replica: str) -> None:
        self.replica = replica
        self.run_id = secrets.token_hex(8)
        self.failures = 0
        self.first_round = asyncio.Event()
        """Set once each replica that DNS has was asked: what they know is known here too."""
        self._gates = gates
        self._resolve = resolve
        self._peers: dict[Address, Peer] = {}
        self._asking: dict[Address, asyncio.Task[None]] = {}
        self._kicked = asyncio.Event()
        self._unresolved = False
        gates.denied = self._kicked.set

    async def run(self, stop: asyncio.Event) -> None:
        """Exchange until ``stop``."""
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS, sock_connect=CONNECT_SECONDS)
        stopped = asyncio.ensure_future(stop.wait())
        resolving = asyncio.ensure_future(self._keep_resolving())
        async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as session:
            try:
                while not stop.is_set():
                    self._kicked.clear()
                    try:
                        self._exchange(session)
                    except Exception:
                        # The shares stay as they are, and requests are answered all the while.
                        log.exception("an exchange between replicas failed")
                    await asyncio.sleep(LEAST_SECONDS)
                    kicked = asyncio.ensure_future(self._kicked.wait())
                    await asyncio.wait(
                        {kicked, stopped},
                        timeout=TICK_SECONDS - LEAST_SECONDS,
                        return_when=asyncio.FIRST_COMPLETED,
                    )
                    kicked.cancel()
            finally:
                await _cancelled(stopped, resolving, *self._asking.values())

    def document(self) -> dict[str, object]:
        """What this replica says."""
        tiers = self._gates.reports()
        return to_json(replica=self.replica, run=self.run_id, tiers=tiers)

    def told(self, report: Report, *, host: str | None) -> None:
        """A replica has called from ``host``. It counts if it is one that is known by that run at
        that address; whoever else calls changes nothing here, and a new one is asked soon."""
        for address, peer in list(self._peers.items()):
            known = peer.report is not None and peer.report.run == report.run
            if known and not peer.ours and address[0] == host:
                self._heard(peer, report)

    def _exchange(self, session: aiohttp.ClientSession) -> None:
        self._gates.look()
        document = self.document()
        self._gates.are_told()
        for address, peer in self._peers.items():
            if not peer.ours and address not in self._asking:
                task = asyncio.ensure_future(self._ask(session, address, peer, document))
                self._asking[address] = task
                task.add_done_callback(partial(self._asked, address))
        self._count()

    async def _ask(
        self,
        session: aiohttp.ClientSession,
        address: Address,
        peer: Peer,
        document: dict[str, object],
    ) -> None:
        host, port = address
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}/peers"
        try:
            async with session.post(url, json=document) as response:
                body = await response.read()
                if response.status != 200:
                    raise BadReport(f"HTTP {response.status}")
                report = from_json(json.loads(body))
        except (TimeoutError, aiohttp.ClientError, BadReport, ValueError, RecursionError) as error:
            self.failures += 1
            os_error = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else None
            if not isinstance(os_error, ConnectionRefusedError):
                peer.refused = None
            elif peer.refused is None:
                peer.refused = self._gates.clock()
            return
        peer.refused = None
        if report.run == self.run_id:
            peer.ours = True
            return
        self._heard(peer, report)

    def _heard(self, peer: Peer, report: Report) -> None:
        if peer.heard is None:
            log.info("replica %s is there", report.replica)
        peer.report, peer.heard = report, self._gates.clock()
        self._count()

    def _asked(self, address: Address, _: object) -> None:
        del self._asking[address]
        if not self._asking and self._peers:
            self.first_round.set()

    def _count(self) -> None:
        now = self._gates.clock()
        for address in [each for each, peer in self._peers.items() if is_over(peer, now=now)]:
            gone = self._peers.pop(address)
            if gone.report is not None and not gone.ours:
                log.info("replica %s is gone", gone.report.replica)
        counting = [peer for peer in self._peers.values() if counts(peer, now=now)]
        self._gates.hear([said(peer, now=now) for peer in counting])

    async def _keep_resolving(self) -> None:
        while True:
            try:
                async with asyncio.timeout(5 * RESOLVE_SECONDS):
                    addresses = await self._resolve()
            except (OSError, TimeoutError) as error:
                # A name server that is away says nothing of who is there: all stay.
                if not self._unresolved:
                    log.warning("cannot list the replicas, those known stay: %s", error)
                self._unresolved = True
                self.first_round.set()
            else:
                self._unresolved = False
                self._list(addresses)
            await asyncio.sleep(RESOLVE_SECONDS)

    def _list(self, addresses: frozenset[Address]) -> None:
        for address in addresses - self._peers.keys():
            self._peers[address] = Peer()
            self._kicked.set()
        for address, peer in self._peers.items():
            peer.listed = address in addresses
        if not addresses:
            self.first_round.set()


async def _cancelled(*tasks: "asyncio.Future[Any]") -> None:
    for task in tasks:
        task.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks, return_exceptions=True)
