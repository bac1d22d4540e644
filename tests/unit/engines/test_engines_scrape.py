"""The scraper against real HTTP servers on loopback that do what none should."""

import asyncio
import threading
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from kvtier.api.types import API_VERSION, KIND
from kvtier.engines import scrape, watch
from kvtier.engines.endpoint import Endpoint
from kvtier.engines.exposition import Counters, parse
from kvtier.engines.scrape import Scraper
from kvtier.engines.watch import EngineWatcher
from kvtier.metrics import Metrics
from kvtier.placement.topology import Engine
from kvtier.reconcile.clock import FakeClock
from kvtier.reconcile.memory import Memory
from small_tier import spec

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
TEXT = "vllm:request_prompt_tokens_sum 1\n"
METRICS = Path(__file__).parent / "metrics"
KEY = ("serving", "demo")
BODY = {
    "apiVersion": API_VERSION,
    "kind": KIND,
    "metadata": {"namespace": KEY[0], "name": KEY[1], "uid": "1"},
    "spec": spec(),
}


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[Endpoint]:
    app = web.Application()
    app.router.add_get("/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield Endpoint("127.0.0.1", runner.addresses[0][1])
    finally:
        await runner.cleanup()


async def read(handler: Handler, *, timeout: float = 30.0) -> str | None:
    async with serving(handler) as endpoint, Scraper(timeout=timeout) as scraper:
        return await scraper.read(endpoint)


def answer(text: str = TEXT, **how: object) -> Handler:
    async def handler(_: web.Request) -> web.StreamResponse:
        return web.Response(text=text, **how)  # type: ignore[arg-type]

    return handler


async def test_it_reads_the_text() -> None:
    assert await read(answer()) == TEXT
    assert await read(answer(content_type="application/openmetrics-text")) == TEXT


async def test_it_asks_for_plain_text_at_the_path_and_shows_no_credentials() -> None:
    seen: list[web.Request] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        seen.append(request)
        response = web.Response(text=TEXT)
        response.set_cookie("who", "me")
        return response

    async with serving(handler) as endpoint, Scraper() as scraper:
        for _ in range(2):
            await scraper.read(Endpoint(endpoint.host, endpoint.port, "/v2/metrics"))
    for request in seen:
        assert request.path == "/v2/metrics"
        assert request.headers["Accept-Encoding"] == "identity"
        assert not {"Cookie", "Authorization"} & set(request.headers)


@pytest.mark.parametrize("status", [204, 404, 429, 500, 503])
async def test_an_error_is_no_text(status: int) -> None:
    assert await read(answer(status=status)) is None


async def test_a_redirect_is_not_followed() -> None:
    asked: list[str] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        if request.path == "/metrics":
            raise web.HTTPFound("/elsewhere")
        return web.Response(text=TEXT)

    assert await read(handler) is None
    assert asked == ["/metrics"]


@pytest.mark.parametrize("content_type", ["text/html", "application/json"])
async def test_what_is_not_a_metrics_text_is_not_read(content_type: str) -> None:
    assert await read(answer(content_type=content_type)) is None


async def test_nothing_is_unpacked() -> None:
    async def handler(_: web.Request) -> web.StreamResponse:
        packed = zlib.compress(b"#" * 10_000_000)
        headers = {"Content-Encoding": "deflate", "Content-Type": "text/plain"}
        return web.Response(body=packed, headers=headers)

    assert await read(handler) is None


async def test_an_endless_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape, "MOST_BYTES", 500_000)
    sent = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        while True:
            await response.write(b"# so it goes\n" * 1000)
            sent += 13_000

    assert await read(handler) is None
    assert sent < 20_000_000


async def test_an_answer_of_just_the_bound_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape, "MOST_BYTES", 1000)
    assert await read(answer("#" * 1000)) == "#" * 1000
    assert await read(answer("#" * 1001)) is None


async def test_a_hanging_engine_is_given_up() -> None:
    async def handler(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        raise AssertionError

    begin = time.monotonic()
    assert await read(handler, timeout=0.2) is None
    assert time.monotonic() - begin < 30


async def test_an_engine_that_answers_byte_by_byte_is_given_up_too() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        while True:
            await response.write(b"#")
            await asyncio.sleep(0.01)

    begin = time.monotonic()
    assert await read(handler, timeout=0.3) is None
    assert time.monotonic() - begin < 30


async def test_nobody_there_is_no_text(unused_tcp_port: int) -> None:
    async with Scraper() as scraper:
        assert await scraper.read(Endpoint("127.0.0.1", unused_tcp_port)) is None


async def test_what_is_not_http_is_no_text() -> None:
    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x00\x16\x03garbage\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server, Scraper() as scraper:
        port = server.sockets[0].getsockname()[1]
        assert await scraper.read(Endpoint("127.0.0.1", port)) is None


async def test_bytes_that_are_no_text_are_read_as_far_as_they_are() -> None:
    async def handler(_: web.Request) -> web.StreamResponse:
        return web.Response(body=b"\xff\xfe 1\n", headers={"Content-Type": "text/plain"})

    found = await read(handler)
    assert found is not None
    assert found.endswith(" 1\n")


async def test_only_so_many_are_asked_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape, "AT_ONCE", 3)
    now, most = 0, 0

    async def handler(_: web.Request) -> web.StreamResponse:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.01)
        now -= 1
        return web.Response(text=TEXT)

    async with serving(handler) as endpoint, Scraper() as scraper:
        found = await asyncio.gather(*(scraper.read(endpoint) for _ in range(12)))
    assert found == [TEXT] * 12
    assert most == 3


async def test_no_engine_s_text_is_read_where_the_lease_is_renewed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    readers: list[threading.Thread] = []

    def slow(text: str) -> Counters | None:
        readers.append(threading.current_thread())
        return parse(text)

    async def text(_: Endpoint) -> str:
        return TEXT

    monkeypatch.setattr(watch, "parse", slow)
    memory = Memory()
    watcher = EngineWatcher(
        memory=memory,
        read=text,
        changed=lambda _: None,
        clock=FakeClock(),
        metrics=Metrics(),
        jitter=lambda: 0.5,
    )
    endpoint = Endpoint("127.0.0.1", 8000, "/metrics")
    memory.of(KEY).engines["a"] = Engine("a", "n", ready_since="now", metrics=endpoint)
    await watcher.look()
    assert len(readers) == 1
    assert threading.main_thread() not in readers


async def test_a_fleet_with_a_hanging_engine_is_observed_by_the_others() -> None:
    """The whole way, over HTTP: two readings of real counters, and the rate in the memory."""
    texts = [(METRICS / f"vllm-0.32.0-{name}.prom").read_text() for name in ("idle", "alone")]
    told: list[tuple[str, str]] = []
    clock, memory = FakeClock(), Memory()

    async def figures(_: web.Request) -> web.StreamResponse:
        return web.Response(text=texts[0])

    async def hang(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        raise AssertionError

    async with (
        serving(figures) as good,
        serving(hang) as bad,
        Scraper(timeout=2.0) as scraper,
    ):
        watcher = EngineWatcher(
            memory=memory,
            read=scraper.read,
            changed=told.append,
            clock=clock,
            metrics=Metrics(),
            jitter=lambda: 0.5,
        )
        tier = memory.of(KEY)
        tier.body = BODY
        for name, endpoint in (("a", good), ("b", bad)):
            tier.engines[name] = Engine(name, "n", ready_since="now", metrics=endpoint)
        await watcher.look()
        del texts[0]
        await clock.advance(239.97)
        await watcher.look()
    assert tier.seen is not None
    assert tier.seen.at_least == pytest.approx(447, abs=1)
    assert tier.seen.at_most == pytest.approx(883, abs=1)
    assert told == [KEY]
