"""The floors of the limiter: aiohttp's server with a handler that answers and does no more.

Its answer is 200 without a body, or with ``refuse`` a 429 as the limiter's.
"""

import asyncio
import signal
import sys

from aiohttp import web

from kvtier.limiter.answer import refusal

BODY = refusal(7)
HEADERS = {"Retry-After": "7", "Content-Type": "application/json"}


async def run(port: int, *, refuse: bool) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)

    async def answer(_: web.BaseRequest) -> web.Response:
        if refuse:
            return web.Response(status=429, body=BODY.encode(), headers=HEADERS)
        return web.Response()

    runner = web.ServerRunner(web.Server(answer, access_log=None))  # type: ignore[arg-type]
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await stop.wait()
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(run(int(sys.argv[1]), refuse="refuse" in sys.argv))
