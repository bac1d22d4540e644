"""Connections: how many there are at once, what ends them, and who is no peer."""

import asyncio
import ssl
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from webhook_reviews import body, tier

from certificates import Ca, Pair
from kvtier.store.tls import server_context
from kvtier.webhook import listener
from kvtier.webhook.metrics import WebhookMetrics
from kvtier.webhook.server import application
from webhook_process import free_port

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "MAX_CONNECTIONS", 3)


@pytest.fixture
async def port(first: Pair, metrics: WebhookMetrics) -> AsyncIterator[int]:
    runner = web.AppRunner(application(metrics))
    await runner.setup()
    port, context = free_port(), server_context(*first.files())
    async with listener.listening(runner, host="127.0.0.1", port=port, context=context):
        yield port
    await runner.cleanup()


@pytest.fixture
def trust(ca: Ca) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=ca.pem)


async def connect(port: int, trust: ssl.SSLContext) -> Stream:
    async with asyncio.timeout(20):
        return await asyncio.open_connection(
            "127.0.0.1", port, ssl=trust, server_hostname="localhost"
        )


async def status(stream: Stream) -> bytes:
    """Of a review that is asked for on this connection."""
    reader, writer = stream
    content = body(tier())
    head = f"POST /validate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n"
    writer.write(head.encode() + content)
    async with asyncio.timeout(20):
        answer = await reader.readuntil(b"\r\n\r\n")
        length = int(answer.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
    return answer.split(b" ")[1]


async def has_ended(reader: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(20):
            return await reader.read() == b""
    except ConnectionError:
        return True


async def test_one_connection_serves_many_reviews(port: int, trust: ssl.SSLContext) -> None:
    stream = await connect(port, trust)
    assert [await status(stream) for _ in range(3)] == [b"200"] * 3
    stream[1].close()


async def test_one_more_than_the_most_ends_the_oldest_and_is_answered(
    port: int, trust: ssl.SSLContext
) -> None:
    silent = [await asyncio.open_connection("127.0.0.1", port), await connect(port, trust)]
    slow = await connect(port, trust)
    slow[1].write(b"POST /validate HTTP/1.1\r\nX: ")
    held = [*silent, slow]
    for oldest in held:
        newest = await connect(port, trust)
        assert await status(newest) == b"200"
        assert await has_ended(oldest[0])
        held.append(newest)
        if len(held) == 6:
            break
    # Those that ended themselves make room: nobody else has to go.
    for _, writer in held[4:6]:
        writer.close()
        await writer.wait_closed()
    for _ in range(20):
        # A turn of the loop, in which the server sees its end.
        await asyncio.sleep(0.01)
    held += [await connect(port, trust), await connect(port, trust)]
    assert await status(held[3]) == b"200"
    for _, writer in held:
        writer.close()


async def test_who_does_not_finish_the_handshake_is_let_go(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "HANDSHAKE_SECONDS", 0.1)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    assert await has_ended(reader)
    writer.close()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /validate HTTP/1.1\r\n\r\n")
    assert b"HTTP" not in await reader.read()
    writer.close()


async def test_the_listener_is_gone_with_its_connections_at_the_end(
    first: Pair, metrics: WebhookMetrics, trust: ssl.SSLContext
) -> None:
    runner = web.AppRunner(application(metrics))
    await runner.setup()
    port, context = free_port(), server_context(*first.files())
    async with listener.listening(runner, host="", port=port, context=context):
        stream = await connect(port, trust)
        assert await status(stream) == b"200"
        with pytest.raises(OSError, match=str(port)):
            async with listener.listening(runner, host="", port=port, context=context):
                pass
    async with asyncio.timeout(20):
        await runner.cleanup()
    assert await has_ended(stream[0])
    stream[1].close()
    with pytest.raises(OSError, match="Connect call failed"):
        await asyncio.open_connection("127.0.0.1", port)
