"""The limiter's HTTP, by real sockets."""

import asyncio
import io
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvtier.limiter.app import Served, serving
from kvtier.limiter.gate import Gate
from kvtier.reconcile.clock import SystemClock
from limiter_process import TIER, FixedTiers

ADMIT = f"/v1/admit/{TIER}"


class Client:
    """Asks one limiter."""

    def __init__(self, session: aiohttp.ClientSession, served: Served) -> None:
        self.session, self.served = session, served
        self.url = f"http://127.0.0.1:{served.port}"

    async def ask(
        self, path: str = ADMIT, method: str = "POST", **headers: str
    ) -> tuple[int, Any, str]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.request(method, self.url + path, headers=named) as answer:
            return answer.status, answer.headers, await answer.text()

    async def metric(self, name: str, **labels: str) -> float:
        _, _, text = await self.ask("/metrics", "GET")
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    return sample.value
        raise AssertionError(f"no {name} with {labels}")


@asynccontextmanager
async def serves(told: dict[str, Any], **options: Any) -> AsyncIterator[Client]:
    tiers, clock = FixedTiers(), SystemClock()
    tiers.tell(told, now=clock.monotonic())
    options = {"drain": 0.0} | options
    async with (
        serving(listen="127.0.0.1:0", replica="one", tiers=tiers, clock=clock, **options) as served,
        aiohttp.ClientSession() as session,
    ):
        await asyncio.wait_for(served.peers.first_round.wait(), 5)
        yield Client(session, served)


HUGE = b'{"tiers": [{"namespace": "a", "name": "b", "demand": 1' + b"0" * 400 + b"}]}"
STORM = {TIER: {"limit": 1000.0, "state": "Storm", "age": 5.0}}


@pytest.mark.parametrize("method", ["POST", "GET", "PUT", "DELETE"])
@pytest.mark.parametrize("path", [ADMIT, f"{ADMIT}/", f"{ADMIT}/v1/chat/completions?x=1&y=/z"])
async def test_it_admits_and_sheds_whatever_follows_the_tier(method: str, path: str) -> None:
    async with serves(STORM) as client:
        assert (await client.ask(path, method, x_kvtier_bytes="b=400000"))[0] == 200
        status, headers, body = await client.ask(path, method, x_kvtier_bytes="b=400000")
        assert status == 429
        assert int(headers["Retry-After"]) >= 1
        assert json.loads(body)["error"]["code"] == "kvtier_storm"
        assert "aiohttp" not in headers["Server"]


@pytest.mark.parametrize(
    "path", ["/v1/admit/prod/other", "/v1/admit/prod", "/v1/admit/", "/v1/admit/prod/llama2/x"]
)
async def test_an_unknown_tier_is_admitted(path: str) -> None:
    async with serves(STORM) as client:
        for _ in range(3):
            assert (await client.ask(path, x_kvtier_bytes="b=40000000"))[0] == 200


async def test_nothing_that_goes_wrong_refuses_anybody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(self: Gate, tokens: float, now: float) -> float:
        raise ZeroDivisionError

    monkeypatch.setattr(Gate, "decide", fails)
    async with serves(STORM) as client:
        assert (await client.ask(Authorization="Bearer sk-secret"))[0] == 200
    assert "sk-secret" not in caplog.text
    assert "could not be judged" in caplog.text


async def test_state_tells_people_and_the_operator() -> None:
    async with serves(STORM) as client:
        await client.ask(x_kvtier_bytes="b=400000")
        status, _, text = await client.ask("/state", "GET")
        state = json.loads(text)
        assert (status, state["replica"], state["peers"]) == (200, "one", 0)
        (tier,) = state["tiers"]
        assert set(tier) >= {
            *(
                "namespace",
                "name",
                "mode",
                "state",
                "cause",
                "sinceSeconds",
                "hitShare",
                "hitSource",
                "hitLow",
            ),
            *("limitTokensPerSecond", "offeredTokensPerSecond", "admittedTokensPerSecond"),
            *("shedTokensPerSecond", "wouldShedTokensPerSecond", "queuedTokens", "engines"),
            *("capacityTokensPerSecond", "why"),
        }
        assert (tier["state"], tier["mode"], tier["limitTokensPerSecond"]) == (
            *("Storm", "Enforce"),
            1000,
        )
        assert 5 <= tier["sinceSeconds"] < 15
        one = json.loads((await client.ask(f"/state/{TIER}", "GET"))[2])
        assert one["name"] == "llama"
        status, _, text = await client.ask("/state/prod/other", "GET")
        assert status == 404
        assert "prod/other" in json.loads(text)["error"]


async def test_metrics_count_by_result() -> None:
    labels = {"namespace": "prod", "tier": "llama"}
    async with serves(STORM) as client:
        await client.ask(x_kvtier_bytes="b=4000")
        await client.ask(x_kvtier_bytes="b=4000")
        await client.ask()
        await client.ask("/v1/admit/prod/other")
        count = client.metric
        requests = "kvtier_limiter_requests_total"
        assert await count(requests, result="admitted", **labels) == 1
        assert await count(requests, result="shed", **labels) == 2
        assert await count(requests, result="wouldShed", **labels) == 0
        assert await count("kvtier_limiter_tokens_total", result="shed", **labels) == 2000
        assert await count("kvtier_limiter_offered_tokens_total", **labels) == 3000
        assert await count("kvtier_limiter_unsized_requests_total", **labels) == 1
        assert await count("kvtier_limiter_unknown_requests_total") == 1
        assert await count("kvtier_limiter_limit_tokens_per_second", **labels) == 1000
        assert await count("kvtier_limiter_state", state="Storm", **labels) == 1
        assert await count("kvtier_limiter_state", state="Open", **labels) == 0
        assert await count("kvtier_limiter_enforces", **labels) == 1


async def test_it_logs_no_headers(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with serves(STORM) as client:
        for _ in range(3):
            await client.ask(Authorization="Bearer sk-secret", x_kvtier_bytes="b=99999")
    assert "sk-secret" not in caplog.text


@pytest.mark.parametrize("size", [9_000, 60_000])
async def test_a_long_token_or_path_refuses_nobody(size: int) -> None:
    async with serves({TIER: {"mode": "Observe"}}) as client:
        assert (await client.ask(Authorization="Bearer " + "s" * size))[0] == 200
        assert (await client.ask(f"{ADMIT}/v1/models?q={'s' * size}"))[0] == 200
        assert (await client.ask(**{f"x-{n}": "s" for n in range(200)}))[0] == 200


@pytest.mark.parametrize(
    "odd",
    [
        b"Authorization: Bearer sk-secret" + b"s" * (1 << 18),
        b"Authorization: Bearer sk-secret\x01",
        b"X-Sk-Secret\x01: 1",
    ],
)
async def test_what_cannot_be_read_is_let_in_and_told_nowhere(
    odd: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with serves(STORM) as client:
        reader, writer = await asyncio.open_connection("127.0.0.1", client.served.port)
        writer.write(f"POST {ADMIT} HTTP/1.1\r\nHost: x\r\n".encode() + odd + b"\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), 5)
        writer.close()
    assert answer.split()[1] == b"200"
    assert b"secret" not in answer.lower()
    assert "secret" not in caplog.text.lower()


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/nowhere", b"", 200),
        ("POST", "/v1/chat/completions", b"", 200),
        ("POST", "/state", b"", 405),
        ("POST", "/peers", b"no json", 400),
        ("POST", "/peers", b'{"tiers": 1}', 400),
        ("POST", "/peers", b"[" * 100_000, 400),
        ("POST", "/peers", HUGE, 400),
        ("POST", "/peers", b" " * (2 << 20), 413),
        ("GET", "/peers", b"", 200),
        ("GET", "/healthz", b"", 200),
    ],
)
async def test_other_paths_answer_as_they_should(
    method: str, path: str, body: bytes, status: int
) -> None:
    async with (
        serves(STORM) as client,
        client.session.request(method, client.url + path, data=io.BytesIO(body)) as answer,
    ):
        assert answer.status == status
        assert len((await answer.text()).splitlines()) == 1


async def test_a_stranger_cannot_take_demand_for_itself() -> None:
    report = {
        "namespace": "prod",
        "name": "llama",
        "demand": 1e9,
        "offered": 1e9,
        "queued": 1e9,
        "mode": "Enforce",
        "state": "Storm",
        "age": 1e6,
        "mean_prompt": 1.0,
        "limit": 1.0,
    }
    document = {"replica": "evil", "run": "x", "tiers": [report]}
    async with serves(STORM) as client:
        url = f"{client.url}/peers"
        async with client.session.post(url, json=document) as answer:
            assert answer.status == 200
        state = json.loads((await client.ask("/state", "GET"))[2])
        assert state["peers"] == 0
        assert state["tiers"][0]["shareTokensPerSecond"] == 1000


async def test_it_is_ready_once_tiers_are_listed_and_peers_were_asked() -> None:
    listed = False
    async with serves({}, watching=lambda: listed) as client:
        assert (await client.ask("/readyz", "GET"))[0] == 503
        listed = True
        assert (await client.ask("/readyz", "GET"))[0] == 200


async def test_while_it_stops_it_is_not_ready_answers_and_lets_connections_go() -> None:
    tiers, clock = FixedTiers(), SystemClock()
    tiers.tell(STORM, now=clock.monotonic())
    begun, stop = asyncio.Event(), asyncio.Event()
    port = 0

    async def run() -> None:
        nonlocal port
        async with serving(
            listen="127.0.0.1:0", replica="one", tiers=tiers, clock=clock, drain=0.5
        ) as served:
            port = served.port
            begun.set()
            await stop.wait()

    running = asyncio.create_task(run())
    await begun.wait()
    async with aiohttp.ClientSession() as session:
        stop.set()
        await asyncio.sleep(0.1)
        async with session.get(f"http://127.0.0.1:{port}/readyz") as answer:
            assert (answer.status, await answer.text()) == (503, "stopping\n")
        async with session.post(f"http://127.0.0.1:{port}{ADMIT}") as answer:
            assert answer.status == 200
            assert answer.headers["Connection"] == "close"
        await asyncio.wait_for(running, 5)
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(f"http://127.0.0.1:{port}/readyz")
