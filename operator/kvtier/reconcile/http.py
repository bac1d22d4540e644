"""The HTTP port of a process that runs for long: /metrics, /healthz, /readyz."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from kvtier.series import Series

PIECE = 2**18
"""Characters of an answer that are sent at a time, so that no answer is ever held whole."""
_END = b"# EOF\n"
"""Of a text in OpenMetrics' format."""


@asynccontextmanager
async def serve(
    *,
    listen: str,
    registry: CollectorRegistry,
    tiers: Series | None = None,
    is_ready: Callable[[], bool],
    not_ready: str = "not watching yet",
) -> AsyncIterator[None]:
    """Serve on ``listen`` (HOST:PORT) until the block ends.

    /metrics has the registry's, and those of ``tiers``, of which there may be very many.
    /healthz answers as long as the event loop turns; /readyz is 503, with ``not_ready``, until
    ``is_ready()``. Raises OSError if the address cannot be had.
    """

    async def metrics(request: web.Request) -> web.StreamResponse:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        text, headers = encode(registry), {"Content-Type": content_type}
        if tiers is None:
            return web.Response(body=text, headers=headers)
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        openmetrics = text.endswith(_END)
        await response.write(text.removesuffix(_END))
        for piece in _pieces(tiers.text(openmetrics=openmetrics)):
            await response.write(piece)
            # Others have their turn between two pieces, also where nothing waits for the network.
            await asyncio.sleep(0)
        if openmetrics:
            await response.write(_END)
        await response.write_eof()
        return response

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        if is_ready():
            return web.Response(text="ok\n")
        return web.Response(text=f"{not_ready}\n", status=503)

    app = web.Application()
    app.add_routes(
        [
            web.get("/metrics", metrics),
            web.get("/healthz", healthz),
            web.get("/readyz", readyz),
        ]
    )
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    host, _, port = listen.rpartition(":")
    try:
        await web.TCPSite(runner, host.strip("[]") or None, int(port)).start()
        yield
    finally:
        await runner.cleanup()


def _pieces(texts: Iterable[str]) -> Iterator[bytes]:
    gathered: list[str] = []
    length = 0
    for text in texts:
        gathered.append(text)
        length += len(text)
        if length >= PIECE:
            yield "".join(gathered).encode()
            gathered, length = [], 0
    yield "".join(gathered).encode()
