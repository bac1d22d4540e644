"""TLS connections to an aiohttp application, never more than a number of them at once."""

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from aiohttp import web

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 128
"""A connection takes up to 0.3 MiB. An API server keeps at most 25 that are idle."""
HANDSHAKE_SECONDS = 5.0
_RETRY_SECONDS = 0.5
_BACKLOG = 128


@asynccontextmanager
async def listening(
    runner: web.AppRunner, *, host: str, port: int, context: ssl.SSLContext
) -> AsyncIterator[None]:
    """Serve the runner's application at the address until the block ends.

    Beyond MAX_CONNECTIONS a new connection ends the oldest, so that whoever opens many and says
    nothing on them takes a bounded amount of memory, and keeps nobody out. asyncio's own servers
    know no such bound. Raises OSError if the address cannot be had.
    """
    with _listener(host, port) as listener:
        accepting = asyncio.create_task(_accept(listener, runner=runner, context=context))
        try:
            yield
        finally:
            accepting.cancel()
            with suppress(asyncio.CancelledError):
                await accepting


def _listener(host: str, port: int) -> socket.socket:
    """``host`` may be empty, for all addresses of both families."""
    both = not host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both or ":" in host else socket.AF_INET
    listener = socket.create_server(
        (host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=both
    )
    listener.setblocking(False)
    return listener


async def _accept(
    listener: socket.socket, *, runner: web.AppRunner, context: ssl.SSLContext
) -> None:
    loop = asyncio.get_running_loop()
    # In the order in which they came.
    connections: dict[asyncio.Task[None], None] = {}
    while True:
        try:
            accepted, _ = await loop.sock_accept(listener)
        except OSError as error:
            log.warning("cannot accept a connection: %s", error.strerror)
            await asyncio.sleep(_RETRY_SECONDS)
            continue
        if len(connections) >= MAX_CONNECTIONS:
            oldest = next(iter(connections))
            del connections[oldest]
            oldest.cancel()
        task = asyncio.create_task(_serve(accepted, runner=runner, context=context))
        connections[task] = None
        task.add_done_callback(lambda done: connections.pop(done, None))


async def _serve(
    accepted: socket.socket, *, runner: web.AppRunner, context: ssl.SSLContext
) -> None:
    """One connection, until either end closes it; cancelled, it ends at once."""
    server = runner.server
    assert server is not None
    protocol = _Watched(server())
    try:
        transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
            lambda: protocol, accepted, ssl=context, ssl_handshake_timeout=HANDSHAKE_SECONDS
        )
    except OSError:
        # No TLS, or none that both know, or not in time.
        return
    try:
        await protocol.ended.wait()
    finally:
        transport.abort()


class _Watched(asyncio.Protocol):
    """Hands everything on to a protocol, and tells when its connection has ended."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._protocol.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()
        self._protocol.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._protocol.data_received(data)

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()
