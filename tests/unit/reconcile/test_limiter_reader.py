"""Asking limiters over HTTP: bounded, and never an error."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from kvtier.reconcile.limiters import MOST_BYTES, LimiterReader

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
TIER = {"namespace": "prod", "name": "glm", "state": "Storm", "cause": "Planned"}


@asynccontextmanager
async def served(handler: Handler) -> AsyncIterator[int]:
    app = web.Application()
    app.router.add_get("/state", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def test_each_address_of_the_name_is_asked() -> None:
    async def handler(_: web.Request) -> web.Response:
        return web.json_response({"tiers": [TIER]})

    async with served(handler) as port, LimiterReader("127.0.0.1", port) as reader:
        found = await reader.read()
    assert found.told
    (replica,) = found.replicas
    assert replica.address == "127.0.0.1"
    assert found.without_plan(("prod", "glm")) == ()


async def hanging(_: web.Request) -> web.Response:
    await asyncio.sleep(5)
    return web.Response()


async def failing(_: web.Request) -> web.Response:
    return web.Response(status=503)


async def elsewhere(_: web.Request) -> web.Response:
    raise web.HTTPFound("http://127.0.0.1:1/state")


async def huge(_: web.Request) -> web.Response:
    return web.Response(text=json.dumps({"tiers": [TIER], "more": "x" * MOST_BYTES}))


async def nonsense(_: web.Request) -> web.Response:
    return web.Response(text="hello")


@pytest.mark.parametrize(
    ("handler", "trouble"),
    [
        (hanging, "no answer within 0.3 s"),
        (failing, "HTTP 503"),
        (elsewhere, "HTTP 302"),
        (huge, f"more than {MOST_BYTES} bytes"),
        (nonsense, "no state of a limiter (1 faults)"),
    ],
)
async def test_whatever_else_comes_is_trouble(handler: Handler, trouble: str) -> None:
    async with served(handler) as port, LimiterReader("127.0.0.1", port, seconds=0.3) as reader:
        (replica,) = (await reader.read()).replicas
    assert replica.tiers is None
    assert replica.trouble == trouble


async def test_a_limiter_that_is_gone_is_trouble() -> None:
    async with served(failing) as port:
        pass
    async with LimiterReader("127.0.0.1", port, seconds=1) as reader:
        (replica,) = (await reader.read()).replicas
    assert replica.trouble == "ClientConnectorError"


async def test_a_name_without_an_address_is_no_limiter() -> None:
    async with LimiterReader("limiter.invalid", 8080, seconds=1) as reader:
        found = await reader.read()
    assert (found.told, list(found.replicas)) == (True, [])
