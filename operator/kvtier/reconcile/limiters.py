"""Asking limiters for their state: every address of one name, bounded in time and bytes."""

import asyncio
import socket
from types import TracebackType
from typing import Final, Self

import aiohttp
from yarl import URL

from kvtier.plan.limiters import Limiters, Replica, parse
from kvtier.pod_session import pod_session

TIMEOUT: Final = 2.0
"""Seconds for one look: name, connections and answers."""
AT_ONCE: Final = 16
MOST_REPLICAS: Final = 64
MOST_BYTES: Final = 4 * 2**20


class LimiterReader:
    """Reads ``GET /state`` of every replica behind ``host``, a headless Service. Raises nothing but
    what cancels it."""

    def __init__(self, host: str, port: int, *, seconds: float = TIMEOUT) -> None:
        self._host = host
        self._port = port
        self._seconds = seconds
        self._looking: asyncio.Future[list[str]] | None = None

    async def __aenter__(self) -> Self:
        self._session = pod_session(
            accept="application/json",
            at_once=AT_ONCE,
            timeout=aiohttp.ClientTimeout(total=self._seconds),
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._session.close()

    async def read(self) -> Limiters:
        """All replicas at once; none where the name has no address."""
        addresses = (await self._addresses())[:MOST_REPLICAS]
        found = await asyncio.gather(*(self._ask(address) for address in addresses))
        return Limiters(told=True, replicas=found)

    async def _addresses(self) -> list[str]:
        # One look-up at a time: a name server that does not answer costs one thread.
        if self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(self._look_up())
        try:
            return await asyncio.wait_for(asyncio.shield(self._looking), self._seconds)
        except (OSError, UnicodeError, TimeoutError):
            return []

    async def _look_up(self) -> list[str]:
        found = await asyncio.get_running_loop().getaddrinfo(
            self._host, self._port, type=socket.SOCK_STREAM
        )
        return sorted({str(each[4][0]) for each in found})

    async def _ask(self, address: str) -> Replica:
        url = URL.build(scheme="http", host=address, port=self._port, path="/state")
        try:
            async with (
                asyncio.timeout(self._seconds),
                self._session.get(url, allow_redirects=False) as response,
            ):
                if response.status != 200:
                    return Replica(address, trouble=f"HTTP {response.status}")
                body = await response.content.read(MOST_BYTES + 1)
                while len(body) <= MOST_BYTES and (more := await response.content.readany()):
                    body += more
        except TimeoutError:
            return Replica(address, trouble=f"no answer within {self._seconds:g} s")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Replica(address, trouble=type(error).__name__)
        if len(body) > MOST_BYTES:
            return Replica(address, trouble=f"more than {MOST_BYTES} bytes")
        return parse(address, body)
