"""The application: what is answered to whom, and how it is counted."""

import asyncio
import io
import json
import logging
from collections.abc import AsyncIterator

import pytest
from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer
from webhook_reviews import BAD, body, tier

from kvtier.webhook import server
from kvtier.webhook.metrics import RESULTS, WebhookMetrics
from kvtier.webhook.review import Decision

Client = TestClient  # type: ignore[type-arg]


@pytest.fixture
async def client(metrics: WebhookMetrics) -> AsyncIterator[Client]:
    async with TestClient(TestServer(server.application(metrics))) as found:
        yield found


def counted(metrics: WebhookMetrics) -> dict[str, float]:
    found = {
        result: metrics.registry.get_sample_value(
            "kvtier_webhook_reviews_total", {"result": result}
        )
        for result in RESULTS
    }
    return {result: count for result, count in found.items() if count}


async def test_a_review_is_answered_with_its_own_uid(
    client: Client, metrics: WebhookMetrics
) -> None:
    for document, allowed in ((tier(), True), (tier(BAD), False)):
        reply = await client.post("/validate?timeout=3s", data=body(document, uid="its-own"))
        assert reply.status == 200
        assert reply.content_type == "application/json"
        response = (await reply.json())["response"]
        assert (response["uid"], response["allowed"]) == ("its-own", allowed)
    assert counted(metrics) == {"allowed": 1, "refused": 1}
    assert metrics.registry.get_sample_value("kvtier_webhook_review_duration_seconds_count") == 2


@pytest.mark.parametrize(
    "path", ["/", "/validate/", "/validate/x", "/Validate", "/mutate", "/metrics"]
)
async def test_any_other_path_is_404_and_never_a_yes(client: Client, path: str) -> None:
    reply = await client.post(path, data=body(tier()))
    assert reply.status == 404
    assert (await reply.text()).count("\n") <= 1


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"])
async def test_any_other_method_is_405(client: Client, method: str) -> None:
    reply = await client.request(method, "/validate", data=body(tier()))
    assert reply.status == 405
    assert reply.headers["Allow"] == "POST"


@pytest.mark.parametrize("junk", [b"", b"{", b"\xff" * 100, b"{}", b"[" * 100_000])
async def test_garbage_is_400_in_one_line(
    client: Client, metrics: WebhookMetrics, junk: bytes
) -> None:
    reply = await client.post("/validate", data=junk)
    assert reply.status == 400
    text = await reply.text()
    assert text.endswith("\n")
    assert text.count("\n") == 1
    assert counted(metrics) == {"bad": 1}


async def test_too_large_a_body_is_400_and_two_large_objects_are_not(client: Client) -> None:
    large = {"managedFields": "x" * (3 * 1024 * 1024 - 4096)}
    fits = body(tier(metadata=large), old=tier(metadata=large), operation="UPDATE")
    assert (await client.post("/validate", data=io.BytesIO(fits))).status == 200
    reply = await client.post("/validate", data=io.BytesIO(b" " * (server.MAX_BODY_BYTES + 1)))
    assert reply.status == 400
    assert await reply.text() == f"the body is larger than {server.MAX_BODY_BYTES} bytes\n"


async def test_an_object_nested_without_end_is_400(client: Client) -> None:
    nested = json.dumps(tier()).replace('"tiny"', "[" * 900 + "]" * 900)
    reply = await client.post("/validate", data=body(json.loads(nested)))
    assert reply.status == 400


async def test_a_body_that_does_not_arrive_is_given_up(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "READ_SECONDS", 0.1)
    async with asyncio.timeout(20):
        reply = await upload(client, asyncio.Event(), length=100)
    assert reply.status == 400
    assert "did not arrive" in await reply.text()


async def test_a_body_of_unknown_length_is_400(client: Client) -> None:
    async def chunked() -> AsyncIterator[bytes]:
        yield body(tier())

    reply = await client.post("/validate", data=chunked())
    assert reply.status == 400
    assert await reply.text() == "Content-Length: missing; send it\n"


async def test_large_bodies_wait_for_one_another_and_small_ones_for_nobody(client: Client) -> None:
    end = asyncio.Event()
    padded = body(tier()) + b" " * server.LARGE_BODY
    async with asyncio.timeout(20):
        slow = [
            asyncio.create_task(upload(client, end, length=server.LARGE_BODY + 1))
            for _ in range(server.LARGE_BODIES)
        ]
        # As many are in the middle of it as there may be.
        await asyncio.sleep(0.1)
        another = asyncio.create_task(client.post("/validate", data=padded))
        for _ in range(3):
            assert (await client.post("/validate", data=body(tier()))).status == 200
        assert not another.done()
        end.set()
        assert (await another).status == 200
        assert [(await each).status for each in slow] == [400] * len(slow)


async def upload(client: Client, end: asyncio.Event, *, length: int) -> ClientResponse:
    """A body of which all but the first byte waits for ``end``."""

    async def sent() -> AsyncIterator[bytes]:
        yield b"{"
        await end.wait()
        yield b" " * (length - 1)

    return await client.post("/validate", data=sent(), headers={"Content-Length": str(length)})


async def test_a_failure_of_ours_is_500_and_logged_and_counted_never_a_yes(
    client: Client,
    metrics: WebhookMetrics,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails(_: object) -> Decision:
        raise KeyError("ours")

    monkeypatch.setattr(server, "decide", fails)
    with caplog.at_level(logging.ERROR):
        reply = await client.post("/validate", data=body(tier()))
    assert reply.status == 500
    assert "KeyError" in caplog.text
    assert counted(metrics) == {"failed": 1}
