"""All that looks, together: an API server, real ranks and engines' ports on loopback."""

import asyncio
import os
import signal
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from time import monotonic

import pytest
from aiohttp import web
from signals_kit import ACL, ApiServer, pod, serving, tier, until
from valkey import Valkey
from valkey_servers import Server, running_server

from kvtier.admission.storm import Cause, State
from kvtier.cluster.protocol import POD, TIER
from kvtier.engines import endpoint
from kvtier.limiter.observe import Observer
from kvtier.limiter.ranks import TIMEOUT
from kvtier.reconcile.clock import SystemClock
from kvtier.redact import new_token
from kvtier.store.client import connector
from kvtier.store.protocol import Address, Credentials

TOKEN = new_token()
TEXT = (Path(__file__).parents[1] / "engines/metrics/vllm-0.32.0-hits.prom").read_text()


@pytest.fixture
def ranks(tmp_path: Path):
    with ExitStack() as stack:
        found: list[Server] = []
        for rank in range(2):
            directory = tmp_path / str(rank)
            directory.mkdir()
            acl = ACL.format(token=TOKEN)
            server = running_server("9.1", directory=directory, acl=acl)
            found.append(stack.enter_context(server))
            with Valkey(port=found[-1].port, username="writer", password="x") as client:
                client.mset({f"key-{each}": "x" for each in range(500)})
        yield found


@asynccontextmanager
async def an_engine() -> AsyncIterator[int]:
    """An engine that waits for prompts; its port."""

    async def handler(request: web.Request) -> web.Response:
        return web.Response(text=TEXT, content_type="text/plain")

    app = web.Application()
    app.router.add_get("/metrics", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def observing(
    server: ApiServer, ranks: list[Server], *, namespaces: tuple[str, ...] = ()
) -> AsyncIterator[Observer]:
    plain = connector(connect_seconds=TIMEOUT, reply_seconds=TIMEOUT)

    def connect(address: Address, credentials: Credentials):
        rank = int(address.host.split(".")[0][-1])
        return plain(Address("127.0.0.1", ranks[rank].port), credentials)

    server.secrets["llama-limiter"] = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "llama-limiter"},
        "data": {"token": b64encode(TOKEN.encode()).decode()},
    }
    async with serving(server) as cluster:
        observer = Observer(
            cluster, namespaces=namespaces, clock=SystemClock(), connect=connect, jitter=lambda: 0.1
        )
        stop = asyncio.Event()
        task = asyncio.create_task(observer.run(stop))
        try:
            yield observer
        finally:
            stop.set()
            await asyncio.wait_for(task, 5)


def view(observer: Observer):
    return observer.tiers.get("prefill", "llama")


def ranks_known(observer: Observer) -> bool:
    found = view(observer)
    return found is not None and [each.run_id != "" for each in found.storm.ranks] == [True] * 2


async def test_a_real_rank_that_stands_still_is_a_storm_within_three_seconds(
    ranks: list[Server], monkeypatch: pytest.MonkeyPatch
):
    # Engines on loopback are nobody's but a test's.
    monkeypatch.setattr(endpoint, "_address", lambda text: text)
    server = ApiServer()
    async with an_engine() as port:
        server.objects["kvcachetiers"] = [tier()]
        server.objects["pods"] = [pod("a", address="127.0.0.1", port=port)]
        async with observing(server, ranks) as observer:
            await until(lambda: observer.listed() and ranks_known(observer))
            await until(lambda: view(observer).queued_seen == 0)
            assert view(observer).storm.state is State.OPEN
            assert view(observer).engines == 1
            os.kill(ranks[1].pid, signal.SIGSTOP)
            began = monotonic()
            try:
                await until(lambda: view(observer).storm.state is State.STORM)
                took = monotonic() - began
                assert view(observer).storm.cause is Cause.RANK_LOST
                assert view(observer).limit.tokens_per_second == pytest.approx(4000)
            finally:
                os.kill(ranks[1].pid, signal.SIGCONT)
    assert took <= 3.0


async def test_a_real_rank_that_is_emptied_is_a_storm_and_a_new_pod_counts(ranks: list[Server]):
    server = ApiServer()
    server.objects["kvcachetiers"] = [tier()]
    server.objects["pods"] = [pod("a", address=None)]
    async with observing(server, ranks, namespaces=("prefill",)) as observer:
        await until(lambda: ranks_known(observer) and server.watchers("pods"))
        server.tell("pods", "ADDED", pod("b", address=None))
        await until(lambda: view(observer).engines == 2)
        with Valkey(port=ranks[0].port, username="writer", password="x") as client:
            client.flushall()
        await until(lambda: view(observer).storm.state is State.STORM)
        assert view(observer).storm.cause is Cause.RANK_EMPTIED
        assert view(observer).limit.tokens_per_second == pytest.approx(8000)
    paths = {path for path, _ in server.requests}
    base = "/api/v1/namespaces/prefill"
    assert paths == {
        f"{base}/pods",
        f"{base}/secrets/llama-limiter",
        "/apis/kvtier.dev/v1alpha1/namespaces/prefill/kvcachetiers",
    }
    assert (TIER.plural, POD.plural) == ("kvcachetiers", "pods")


async def test_what_is_looked_at_ends_at_once_when_it_is_told_to(ranks: list[Server]):
    server = ApiServer()
    server.objects["kvcachetiers"] = [tier()]
    server.objects["pods"] = [pod("a", address=None)]
    async with observing(server, ranks) as observer:
        await until(lambda: ranks_known(observer) and server.watchers("pods"))
        began = monotonic()
    assert monotonic() - began < 2
    with Valkey(port=ranks[0].port, username="writer", password="x") as client:
        assert "limiter" not in {each["user"] for each in client.client_list()}


async def test_what_is_cancelled_ends_too():
    server = ApiServer()
    server.objects["kvcachetiers"] = [tier()]
    server.objects["pods"] = [pod("a", address=None)]
    async with serving(server) as cluster:
        observer = Observer(cluster, clock=SystemClock(), jitter=lambda: 0.1)
        task = asyncio.create_task(observer.run(asyncio.Event()))
        await until(observer.listed)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 5)
