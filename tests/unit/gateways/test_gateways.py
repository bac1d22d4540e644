"""What a client of a real Envoy or nginx gets, when the limiter is well and when it is not."""

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from gateways import GATEWAYS, gateway

from limiter_process import TIER, Limiter, limiter, start, until
from webhook_process import free_port

RATE = 200
"""Requests/s."""
LABELS = f'namespace="prod",tier="{TIER.partition("/")[2]}"'
TIMEOUT = 0.2
"""What gateways wait for the limiter [s]."""


@dataclass(slots=True)
class Stand:
    """A gateway, an engine behind it that counts, and the limiter that the gateway asks."""

    session: aiohttp.ClientSession
    url: str
    limiter: Limiter
    tiers: Path
    seen: list[dict[str, str]]
    relay: "AsyncRelay | None"

    async def post(self, body: Any = b"{}", **headers: str) -> tuple[int, Any, str]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        url = f"{self.url}/v1/chat/completions?stream=1"
        async with self.session.post(url, data=body, headers=named) as answer:
            return answer.status, answer.headers, await answer.text()

    async def metric(self, name: str) -> float:
        text = (await asyncio.to_thread(self.limiter.get, "/metrics"))[1].decode()
        (line,) = [line for line in text.splitlines() if line.startswith(name)]
        return float(line.rpartition(" ")[2])

    async def load(self, seconds: float) -> tuple[list[int], list[float], list[float]]:
        """Statuses, seconds each took, and the moments at which each was sent."""
        statuses: list[int] = []
        took: list[float] = []
        sent: list[float] = []
        begin = time.perf_counter()

        async def one() -> None:
            at = time.perf_counter()
            status, _, _ = await self.post()
            statuses.append(status)
            took.append(time.perf_counter() - at)
            sent.append(at - begin)

        async with asyncio.TaskGroup() as group:
            for number in range(int(seconds * RATE)):
                await asyncio.sleep(max(0.0, begin + number / RATE - time.perf_counter()))
                group.create_task(one())
        return statuses, took, sent


@asynccontextmanager
async def standing(
    kind: str, directory: Path, told: dict[str, Any], *, relayed: bool = False
) -> AsyncIterator[Stand]:
    """``relayed``: the gateway reaches the limiter by a link that can be made slow."""
    seen: list[dict[str, str]] = []

    async def engine(request: web.BaseRequest) -> web.Response:
        seen.append(dict(request.headers))
        await request.read()
        return web.Response(text="tokens\n")

    tiers = directory / "tiers.json"
    tiers.write_text(json.dumps({TIER: told}))
    port, asked = free_port(), free_port()
    async with AsyncExitStack() as stack:
        runner = web.ServerRunner(web.Server(engine, access_log=None))  # type: ignore[arg-type]
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        running = stack.enter_context(limiter(asked, tiers=tiers))
        relay = None
        if relayed:
            relay = await stack.enter_async_context(AsyncRelay(asked))
            asked = relay.port
        engines = runner.addresses[0][1]
        stack.enter_context(gateway(kind, directory, port=port, engines=engines, limiter=asked))
        session = await stack.enter_async_context(
            aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=20),
                connector=aiohttp.TCPConnector(limit=200),
            )
        )
        stand = Stand(session, f"http://127.0.0.1:{port}", running, tiers, seen, relay)
        await _until_it_answers(stand)
        seen.clear()
        yield stand


class AsyncRelay:
    """Hands bytes on to ``port`` of 127.0.0.1, and the answer ``delay`` seconds later."""

    def __init__(self, port: int) -> None:
        self.delay = 0.0
        self._to = port
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "AsyncRelay":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._to)
        for source, sink, is_answer in ((reader, back, False), (there, writer, True)):
            task = asyncio.create_task(self._copy(source, sink, is_answer=is_answer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _copy(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, is_answer: bool
    ) -> None:
        try:
            while data := await source.read(65536):
                await asyncio.sleep(self.delay if is_answer else 0.0)
                sink.write(data)
                await sink.drain()
        except ConnectionError:
            return
        finally:
            sink.close()


async def _until_it_answers(stand: Stand) -> None:
    for _ in range(400):
        try:
            async with stand.session.get(f"{stand.url}/v1/models") as answer:
                if answer.status == 200:
                    return
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(0.05)
    raise AssertionError("the gateway does not answer")


@pytest.mark.parametrize("kind", GATEWAYS)
async def test_a_refusal_reaches_the_client_with_retry_after(kind: str, tmp_path: Path) -> None:
    async with standing(kind, tmp_path, {"limit": 1000.0}) as stand:
        assert (await stand.post(b"x" * 400_000))[0] == 200
        status, headers, body = await stand.post(b"x" * 400_000, Authorization="Bearer k")
        assert status == 429
        assert 1 <= int(headers["Retry-After"]) <= 30
        assert json.loads(body)["error"]["code"] == "kvtier_storm"
        assert len(stand.seen) == 1
        # What has no prompt is no prefill.
        async with stand.session.get(f"{stand.url}/v1/models") as answer:
            assert answer.status == 200


@pytest.mark.parametrize("kind", GATEWAYS)
async def test_the_size_is_the_gateways_word_and_a_forged_one_has_no_effect(
    kind: str, tmp_path: Path
) -> None:
    offered = f"kvtier_limiter_offered_tokens_total{{{LABELS}}}"
    async with standing(kind, tmp_path, {"limit": 1e9, "mean_prompt": 700.0}) as stand:
        await stand.post(b"x" * 40_000, x_kvtier_bytes="b=1")
        assert await stand.metric(offered) == 10_000
        await stand.post(b"x" * 40_000, x_prompt_tokens="1")
        assert await stand.metric(offered) == 20_000
        await stand.post(b"x" * 40_000, x_prompt_tokens="15000")
        assert await stand.metric(offered) == 35_000


@pytest.mark.parametrize("kind", GATEWAYS)
async def test_a_chunked_request_counts_as_the_mean(kind: str, tmp_path: Path) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(10):
            yield b"x" * 4000

    async with standing(kind, tmp_path, {"limit": 1e9, "mean_prompt": 700.0}) as stand:
        status, _, _ = await stand.post(pieces(), x_kvtier_bytes="b=1")
        assert status == 200
        assert await stand.metric(f"kvtier_limiter_offered_tokens_total{{{LABELS}}}") == 700
        assert await stand.metric(f"kvtier_limiter_unsized_requests_total{{{LABELS}}}") == 1


@pytest.mark.parametrize("kind", GATEWAYS)
async def test_a_limiter_that_hangs_refuses_nobody(kind: str, tmp_path: Path) -> None:
    async with standing(kind, tmp_path, {"limit": 1e9}) as stand:
        _, usual, _ = await stand.load(0.7)
        running = asyncio.create_task(stand.load(2.5))
        await asyncio.sleep(0.5)
        stand.limiter.signal(signal.SIGSTOP)
        await asyncio.sleep(1.5)
        stand.limiter.signal(signal.SIGCONT)
        statuses, took, _ = await running
        assert statuses == [200] * len(statuses)
        assert max(took) < 2 * TIMEOUT + 4 * max(usual) + 0.5


@pytest.mark.parametrize("kind", GATEWAYS)
async def test_a_limiter_that_dies_and_comes_back_refuses_nobody(kind: str, tmp_path: Path) -> None:
    async with standing(kind, tmp_path, {"limit": 1e9}) as stand:
        _, usual, _ = await stand.load(0.7)
        running = asyncio.create_task(stand.load(3.0))
        await asyncio.sleep(0.5)
        stand.limiter.process.kill()
        stand.limiter.process.wait()
        await asyncio.sleep(0.5)
        stand.limiter.process = start(stand.limiter.port, tiers=stand.tiers).process
        await asyncio.to_thread(until, stand.limiter.is_ready)
        statuses, took, _ = await running
        assert statuses == [200] * len(statuses)
        assert max(took) < 2 * TIMEOUT + 4 * max(usual) + 0.5
        # And it is asked again.
        asked = f"kvtier_limiter_offered_tokens_total{{{LABELS}}}"
        for _ in range(100):
            await stand.post()
            if await stand.metric(asked) > 0:
                break
            await asyncio.sleep(0.1)
        assert await stand.metric(asked) > 0


@pytest.mark.parametrize("kind", GATEWAYS)
async def test_a_limiter_that_restarts_as_it_should_is_not_noticed(
    kind: str, tmp_path: Path
) -> None:
    async with standing(kind, tmp_path, {"limit": 1e9}) as stand:
        _, usual, _ = await stand.load(0.7)
        running = asyncio.create_task(stand.load(2.5))
        await asyncio.sleep(0.5)
        stand.limiter.signal(signal.SIGTERM)
        await asyncio.to_thread(stand.limiter.process.wait)
        stand.limiter.process = start(stand.limiter.port, tiers=stand.tiers).process
        statuses, took, _ = await running
        assert statuses == [200] * len(statuses)
        assert max(took) < 2 * TIMEOUT + 4 * max(usual) + 0.5


@pytest.mark.parametrize("kind", GATEWAYS)
async def test_a_limiter_that_takes_two_seconds_costs_the_timeout_at_most(
    kind: str, tmp_path: Path
) -> None:
    async with standing(kind, tmp_path, {"limit": 1e9}, relayed=True) as stand:
        _, usual, _ = await stand.load(0.7)
        assert stand.relay is not None
        stand.relay.delay = 2.0
        statuses, took, _ = await stand.load(3.0)
        assert statuses == [200] * len(statuses)
        assert max(took) < 2 * TIMEOUT + 4 * max(usual) + 0.5
        # Envoy ejects it, and does not ask for some seconds.
        added = TIMEOUT / 2 if kind == "envoy" else TIMEOUT
        assert median(took) < added + 0.05 + 4 * median(usual)
