"""The floor of the limiter: aiohttp's server with a handler that answers 200 and does no more."""

import asyncio
import signal
import sys

from aiohttp import web


async def run(port: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)

    async def answer(_: web.BaseRequest) -> web.Response:
        return web.Response()

    runner = web.ServerRunner(web.Server(answer, access_log=None))  # type: ignore[arg-type]
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await stop.wait()
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(run(int(sys.argv[1])))
