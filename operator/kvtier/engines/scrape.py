"""One engine's metrics over plain HTTP: bounded in time, bytes and connections."""

import asyncio
from types import TracebackType
from typing import Final, Self

import aiohttp
from yarl import URL

from kvtier.engines.endpoint import Endpoint
from kvtier.pod_session import pod_session

TIMEOUT: Final = 5.0
"""Seconds for connection and answer together."""
AT_ONCE: Final = 16
"""Connections to engines at a time."""
MOST_BYTES: Final = 4 * 2**20
"""Of one answer: vLLM's has some 100 KB for each data parallel rank."""
_CHUNK: Final = 65536
_ACCEPT: Final = "text/plain;version=0.0.4"
_TYPES: Final = ("text/plain", "application/openmetrics-text")


class Scraper:
    """Asks engines, a few at a time. It follows no redirect, keeps no cookie and no connection, and
    unpacks nothing: who answers is nobody that kvtier trusts."""

    def __init__(self, *, timeout: float = TIMEOUT, at_once: int | None = None) -> None:
        self._at_once = AT_ONCE if at_once is None else at_once
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=timeout, sock_read=timeout)
        self._seconds = timeout

    async def __aenter__(self) -> Self:
        self._turns = asyncio.Semaphore(self._at_once)
        self._session = pod_session(accept=_ACCEPT, at_once=self._at_once, timeout=self._timeout)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._session.close()

    async def read(self, endpoint: Endpoint) -> str | None:
        """The text, None if there is none. Raises nothing but what cancels it."""
        url = URL.build(
            scheme="http", host=endpoint.host, port=endpoint.port, path=endpoint.path, encoded=True
        )
        async with self._turns:
            try:
                async with asyncio.timeout(self._seconds):
                    return await self._read(url)
            except (aiohttp.ClientError, OSError, ValueError):
                return None

    async def _read(self, url: URL) -> str | None:
        async with self._session.get(url, allow_redirects=False) as response:
            packed = response.headers.get("Content-Encoding", "identity") != "identity"
            if response.status != 200 or packed or response.content_type not in _TYPES:
                return None
            body = bytearray()
            async for chunk in response.content.iter_chunked(_CHUNK):
                body += chunk
                if len(body) > MOST_BYTES:
                    return None
            return body.decode(errors="replace")
