"""A reverse proxy before the real API server that misbehaves as a test says.

It ends TLS with the API server's own certificate, so that a kubeconfig differs in the address only.
"""

import asyncio
import json
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web
from apiserver_process import ApiServer

Fault = Callable[[web.Request], Awaitable[web.StreamResponse | None]]
"""Answers a request instead of the API server; None lets it through."""

_HOP = frozenset({"connection", "host", "transfer-encoding", "content-length", "keep-alive"})


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as it came in. ``at`` is monotonic."""

    at: float
    method: str
    path: str
    query: str

    @property
    def is_watch(self) -> bool:
        return "watch=" in self.query

    @property
    def is_lease(self) -> bool:
        return "/leases" in self.path


@dataclass(slots=True)
class FaultProxy:
    """``kubeconfig`` leads through it; ``seen`` is every request since it began."""

    kubeconfig: Path
    seen: list[Seen] = field(default_factory=list)
    fault: Fault | None = None
    page_size: int = 0
    """If above 0, lists are cut into pages of so many objects."""
    silent: threading.Event = field(default_factory=threading.Event)
    """While it is set, open watches pass nothing on."""
    break_watches: bytes | None = None
    """What open watches get as their last event."""

    @contextmanager
    def failing(self, fault: Fault) -> Iterator[None]:
        self.fault = fault
        try:
            yield
        finally:
            self.fault = None

    def since(self, begin: float) -> list[Seen]:
        return [each for each in self.seen if each.at >= begin]


def status(code: int, reason: str, *, headers: dict[str, str] | None = None) -> web.Response:
    """An error as the API server words it."""
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": reason,
        "message": f"{reason}, says the test",
        "code": code,
    }
    return web.json_response(body, status=code, headers=headers)


def watch_error(code: int, reason: str) -> bytes:
    """The event with which an API server ends a watch."""
    said = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}
    event = {"type": "ERROR", "object": {**said, "reason": reason, "message": reason}}
    return json.dumps(event).encode() + b"\n"


@contextmanager
def proxy(server: ApiServer, directory: Path) -> Iterator[FaultProxy]:
    """Run it in a thread of its own on a free port."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="fault-proxy", daemon=True)
    thread.start()
    config = directory / "proxy.kubeconfig"
    made = FaultProxy(kubeconfig=config)
    runner, port = asyncio.run_coroutine_threadsafe(_start(made, server), loop).result(20)
    document = yaml.safe_load(server.kubeconfig.read_text())
    document["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
    config.write_text(yaml.safe_dump(document))
    try:
        yield made
    finally:
        asyncio.run_coroutine_threadsafe(_stop(runner), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _start(made: FaultProxy, server: ApiServer) -> tuple[web.AppRunner, int]:
    there = ssl.create_default_context(cafile=server.ca)
    here = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    here.load_cert_chain(server.ca, server.ca.with_name("server.key"))
    app = web.Application(client_max_size=8 << 20)

    handles: list[Callable[[web.Request], Awaitable[web.StreamResponse]]] = []

    async def session(_: web.Application) -> Any:
        connector = aiohttp.TCPConnector(ssl=there, limit=0)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as client:

            async def handle(request: web.Request) -> web.StreamResponse:
                return await _pass_on(request, made=made, client=client, url=server.url)

            handles.append(handle)
            yield

    async def entry(request: web.Request) -> web.StreamResponse:
        made.seen.append(Seen(time.monotonic(), request.method, request.path, request.query_string))
        answer = await made.fault(request) if made.fault is not None else None
        return answer if answer is not None else await handles[0](request)

    app.cleanup_ctx.append(session)
    app.router.add_route("*", "/{path:.*}", entry)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=here)
    await site.start()
    return runner, runner.addresses[0][1]


async def _stop(runner: web.AppRunner) -> None:
    await runner.cleanup()
    # Answers that a fault still holds back.
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _pass_on(
    request: web.Request, *, made: FaultProxy, client: aiohttp.ClientSession, url: str
) -> web.StreamResponse:
    watch = "watch" in request.query
    query = dict(request.query)
    if made.page_size and "limit" in query:
        query["limit"] = str(made.page_size)
    headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP}
    async with client.request(
        request.method,
        url + request.path,
        params=query,
        headers=headers,
        data=await request.read() or None,
        timeout=aiohttp.ClientTimeout(total=None),
    ) as reply:
        kept = {k: v for k, v in reply.headers.items() if k.lower() not in _HOP}
        answer = web.StreamResponse(status=reply.status, headers=kept)
        await answer.prepare(request)
        if watch:
            await _pass_events(reply, answer, made=made)
        else:
            await answer.write(await reply.read())
        with suppress(ConnectionError):
            await answer.write_eof()
        return answer


async def _pass_events(
    reply: aiohttp.ClientResponse, answer: web.StreamResponse, *, made: FaultProxy
) -> None:
    pending: asyncio.Task[bytes] | None = None
    try:
        while True:
            pending = pending or asyncio.create_task(reply.content.readany())
            await asyncio.wait({pending}, timeout=0.1)
            if made.break_watches is not None:
                await answer.write(made.break_watches)
                return
            if made.silent.is_set() or not pending.done():
                continue
            data, pending = pending.result(), None
            if not data:
                return
            await answer.write(data)
    except ConnectionError:
        return
    finally:
        if pending is not None:
            pending.cancel()
