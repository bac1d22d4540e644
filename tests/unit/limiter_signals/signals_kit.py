"""Tiers, pods and an API server on loopback that does what a test tells it."""

import asyncio
import copy
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from kubernetes.aio.client import Configuration

from kvtier.cluster.client import AioCluster

Object = dict[str, Any]
ACL = (
    "user default off\n"
    "user limiter on >{token} resetkeys resetchannels -@all +ping +info +hello +auth"
    " +client|setinfo +client|setname\n"
    "user writer on nopass ~* +@all\n"
)

TIER: Object = {
    "apiVersion": "kvtier.dev/v1alpha1",
    "kind": "KVCacheTier",
    "metadata": {"name": "llama", "namespace": "prefill", "uid": "u1", "resourceVersion": "1"},
    "spec": {
        "model": {
            "name": "m",
            "revision": "r",
            "kvCacheDtype": "bfloat16",
            "layout": {"gqa": {"layers": 4, "kvHeads": 8, "headDim": 128}},
        },
        "pool": {"ranks": 2, "prefillRate": [{"tokensPerSecond": 5000}]},
        "workload": {"promptTokens": [{"quantile": "0.5", "tokens": 4000}], "targetTTFT": "2s"},
        "store": {"memoryPerRank": "4Gi"},
    },
}


def tier(*, ranks: int = 2, **changed: Any) -> Object:
    """A tier; ``changed`` are fields of its metadata, or ``status``."""
    found = copy.deepcopy(TIER)
    found["spec"]["pool"]["ranks"] = ranks
    if "status" in changed:
        found["status"] = changed.pop("status")
    found["metadata"] |= changed
    return found


def pod(name: str, *, tier: str = "llama", ready: bool = True, **changed: Any) -> Object:
    """An engine's pod; ``changed`` are fields of its metadata, or ``address`` and ``port``."""
    address, port = changed.pop("address", "10.0.0.1"), changed.pop("port", 8000)
    return {
        "metadata": {
            "name": name,
            "namespace": "prefill",
            "resourceVersion": "1",
            "labels": {"kvtier.dev/tier": tier},
            **changed,
        },
        "spec": {
            "nodeName": "n",
            "containers": [{"ports": [{"name": "http", "containerPort": port}]}],
        },
        "status": {
            "podIP": address,
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


class ApiServer:
    """Tiers, pods and Secrets. Whoever watches gets what ``tell`` says."""

    def __init__(self) -> None:
        self.objects: dict[str, list[Object]] = {"kvcachetiers": [], "pods": []}
        self.secrets: dict[str, Object] = {}
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.away = False
        self.too_old = False
        self.refuses = False
        self.page = 500
        self._watchers: dict[str, list[asyncio.Queue[bytes | None]]] = {}

    def tell(self, plural: str, kind: str, found: Object) -> None:
        self.tell_raw(plural, json.dumps({"type": kind, "object": found}).encode() + b"\n")

    def tell_raw(self, plural: str, line: bytes | None) -> None:
        """None ends the stream."""
        for queue in self._watchers.get(plural, ()):
            queue.put_nowait(line)

    def watchers(self, plural: str) -> int:
        return len(self._watchers.get(plural, ()))

    def lists(self, plural: str) -> int:
        return sum(
            path.endswith(plural) and "watch" not in query and "continue" not in query
            for path, query in self.requests
        )

    async def handle(self, request: web.Request) -> web.StreamResponse:
        parts, query = request.path.split("/"), dict(request.query)
        self.requests.append((request.path, query))
        if self.away:
            return web.Response(status=503, text="away")
        if self.refuses:
            return web.json_response({"kind": "Status", "message": "no such right"}, status=403)
        if parts[-2] == "secrets":
            found = self.secrets.get(parts[-1])
            status = {"kind": "Status", "reason": "NotFound", "details": {"name": parts[-1]}}
            return web.json_response(found or status, status=200 if found else 404)
        plural = parts[-1]
        if "watch" in query:
            return await self._watch(request, plural)
        first = int(query.get("continue") or 0)
        items = self.objects[plural][first : first + self.page]
        more = first + self.page < len(self.objects[plural])
        metadata = {"resourceVersion": "7", "continue": str(first + self.page) if more else ""}
        return web.json_response({"kind": "List", "metadata": metadata, "items": items})

    async def _watch(self, request: web.Request, plural: str) -> web.StreamResponse:
        if self.too_old:
            self.too_old = False
            return web.json_response({"kind": "Status", "code": 410}, status=410)
        response = web.StreamResponse()
        await response.prepare(request)
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._watchers.setdefault(plural, []).append(queue)
        try:
            while (line := await queue.get()) is not None:
                await response.write(line)
        finally:
            self._watchers[plural].remove(queue)
        return response


@asynccontextmanager
async def serving(server: ApiServer) -> AsyncIterator[AioCluster]:
    """A client of it."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    cluster = AioCluster(Configuration(host=f"http://127.0.0.1:{port}"), timeout=2)
    try:
        yield cluster
    finally:
        await cluster.close()
        await runner.cleanup()


async def until(condition: Any, *, seconds: float = 10.0) -> None:
    """Wait until ``condition()`` is true; fails after so long."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
