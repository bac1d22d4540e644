"""The HTTP port of a process that runs for long: /metrics, /healthz, /readyz."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder


@asynccontextmanager
async def serve(
    *,
    listen: str,
    registry: CollectorRegistry,
    is_ready: Callable[[], bool],
    not_ready: str = "not watching yet",
) -> AsyncIterator[None]:
    """Serve on ``listen`` (HOST:PORT) until the block ends.

    /healthz answers as long as the event loop turns; /readyz is 503, with ``not_ready``, until
    ``is_ready()``. Raises OSError if the address cannot be had.
    """

    async def metrics(request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(registry), headers={"Content-Type": content_type})

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
