"""The client against an HTTP server that misbehaves as a real API server does on a bad day."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration

from kvtier import __version__
from kvtier.cluster.client import AioCluster
from kvtier.cluster.connect import NoCluster, configure
from kvtier.cluster.protocol import (
    CONFIGMAP,
    LEASE,
    POD,
    ApiError,
    NotFound,
    TooManyRequests,
    Unavailable,
)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def served(handler: Handler, **options) -> AsyncIterator[AioCluster]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    cluster = AioCluster(Configuration(host=f"http://127.0.0.1:{port}"), **options)
    try:
        yield cluster
    finally:
        await cluster.close()
        await runner.cleanup()


def refusal(status: int, reason: str, **extra) -> web.Response:
    body = {"kind": "Status", "status": "Failure", "reason": reason, "message": "no", **extra}
    return web.json_response(body, status=status)


async def test_a_server_that_sheds_load_says_when_to_come_back():
    async def handler(request):
        return web.Response(status=429, headers={"Retry-After": "7"}, text="Too many requests")

    async with served(handler) as cluster:
        with pytest.raises(TooManyRequests) as refused:
            await cluster.get(CONFIGMAP, "ns", "a")
    assert (refused.value.retry_after, refused.value.message) == (7.0, "Too many requests")


async def test_retry_after_in_the_status_object_counts_too_and_a_date_is_passed_over():
    async def handler(request):
        answer = refusal(503, "ServiceUnavailable", details={"retryAfterSeconds": 2})
        answer.headers["Retry-After"] = "Fri, 31 Dec 1999 23:59:59 GMT"
        return answer

    async with served(handler) as cluster:
        with pytest.raises(Unavailable) as refused:
            await cluster.list(CONFIGMAP, "ns")
    assert refused.value.retry_after == 2.0


async def test_a_server_that_does_not_answer_is_unavailable_after_the_timeout():
    async def handler(request):
        await asyncio.sleep(30)
        return web.Response()

    seen = []
    async with served(
        handler, timeout=0.2, on_request=lambda *what: seen.append(what[:3])
    ) as cluster:
        with pytest.raises(Unavailable) as refused:
            await cluster.get(CONFIGMAP, "ns", "a")
    assert (refused.value.status, refused.value.reason) == (0, "Timeout")
    assert seen == [("get", "ConfigMap", 0)]


def configmap() -> dict:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "ns"}}


async def test_a_write_ends_with_the_lease_that_covers_it():
    closed = asyncio.Event()

    async def handler(request):
        try:
            await asyncio.sleep(30)
        finally:
            closed.set()

    async with served(handler, timeout=20) as cluster:
        cluster.bound_writes(lambda: 0.2)
        with pytest.raises(Unavailable) as refused:
            await asyncio.wait_for(cluster.apply(configmap(), uid="u"), 10)
        assert refused.value.reason == "Timeout"
        # Closed as the server sees it: it does not go on with a request whose client is gone.
        await asyncio.wait_for(closed.wait(), 10)


async def test_without_a_lease_nothing_is_written_but_all_is_read_and_the_lease_is_renewed():
    seen = []

    async def handler(request):
        seen.append(request.method)
        return web.json_response({"metadata": {"name": "a"}, "items": []})

    async with served(handler) as cluster:
        cluster.bound_writes(lambda: -1.0)
        lease = {"apiVersion": LEASE.api_version, "kind": LEASE.kind}
        writes = [
            cluster.create(configmap()),
            cluster.apply(configmap(), uid="u"),
            cluster.apply_status(configmap(), uid="u"),
            cluster.delete(CONFIGMAP, "ns", "a", uid="u"),
            cluster.force_delete(CONFIGMAP, "ns", "a", uid="u"),
            cluster.post(configmap()),
        ]
        for write in writes:
            with pytest.raises(Unavailable) as refused:
                await write
            assert refused.value.reason == "NotLeading"
        assert seen == []
        await cluster.get(CONFIGMAP, "ns", "a")
        await cluster.list(CONFIGMAP, "ns")
        await cluster.post({**lease, "metadata": {"name": "a", "namespace": "ns"}})
    assert seen == ["GET", "GET", "POST"]


async def test_the_lease_does_not_wait_for_requests_that_hang():
    async def handler(request):
        if "/leases/" not in request.path:
            await asyncio.sleep(30)
        return web.json_response({"metadata": {"name": "a"}})

    async with served(handler, in_flight=2, timeout=20) as cluster:
        hanging = [asyncio.create_task(cluster.get(CONFIGMAP, "ns", "a")) for _ in range(5)]
        await asyncio.sleep(0.1)
        assert await asyncio.wait_for(cluster.get(LEASE, "ns", "a"), 10)
        for task in hanging:
            task.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)


async def test_a_server_that_stalls_in_the_middle_of_an_answer_is_unavailable():
    async def handler(request):
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        answer.content_length = 100
        await answer.prepare(request)
        await answer.write(b'{"items": [')
        await asyncio.sleep(30)
        return answer

    async with served(handler, timeout=0.2) as cluster:
        with pytest.raises(Unavailable):
            await cluster.list(CONFIGMAP, "ns")


async def test_a_connection_that_breaks_in_the_middle_of_an_answer_is_unavailable():
    async def handler(request):
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        answer.content_length = 100
        await answer.prepare(request)
        await answer.write(b'{"items": [')
        request.transport.close()
        return answer

    async with served(handler) as cluster:
        with pytest.raises(Unavailable):
            await cluster.list(CONFIGMAP, "ns")


async def test_a_port_that_nobody_listens_on_is_unavailable():
    async def handler(request):
        return web.Response()

    async with served(handler) as cluster:
        pass
    cluster = AioCluster(Configuration(host=cluster._host))
    try:
        with pytest.raises(Unavailable) as refused:
            await cluster.get(CONFIGMAP, "ns", "a")
    finally:
        await cluster.close()
    assert refused.value.reason == "Unreachable"


async def test_an_answer_that_is_no_json_is_unavailable():
    async def handler(request):
        return web.Response(text="<html>a captive portal</html>")

    async with served(handler) as cluster:
        with pytest.raises(Unavailable) as refused:
            await cluster.get(CONFIGMAP, "ns", "a")
    assert refused.value.reason == "BadAnswer"


async def test_a_list_whose_snapshot_was_compacted_begins_again_once():
    calls = []

    async def handler(request):
        calls.append(request.query.get("continue", ""))
        if calls[-1] == "old":
            return refusal(410, "Expired")
        token = "old" if len(calls) == 1 else ""
        item = {"metadata": {"name": f"page-{len(calls)}"}}
        return web.json_response({"metadata": {"continue": token}, "items": [item]})

    async with served(handler) as cluster:
        found = await cluster.list(CONFIGMAP, "ns")
    assert calls == ["", "old", ""]
    assert [each["metadata"]["name"] for each in found] == ["page-3"]


async def test_a_list_that_expires_again_and_again_is_an_error():
    async def handler(request):
        if "continue" in request.query:
            return refusal(410, "Expired")
        return web.json_response({"metadata": {"continue": "old"}, "items": []})

    async with served(handler) as cluster:
        with pytest.raises(ApiError) as refused:
            await cluster.list(CONFIGMAP, "ns")
    assert refused.value.status == 410


async def test_a_404_that_names_no_object_is_not_taken_for_an_absent_one():
    async def handler(request):
        return web.Response(status=404, text="404 page not found")

    async with served(handler) as cluster:
        with pytest.raises(NotFound):
            await cluster.get(CONFIGMAP, "ns", "a")
        with pytest.raises(NotFound):
            await cluster.delete(CONFIGMAP, "ns", "a", uid="u")


async def test_requests_say_who_asks_and_how_the_body_is_meant():
    seen = []

    async def handler(request):
        seen.append((request.method, request.path_qs, request.headers["Content-Type"]))
        assert request.headers["User-Agent"] == f"kvtier/{__version__}"
        return web.json_response({"metadata": {"name": "a", "managedFields": [{}]}})

    obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "ns"}}
    path = "/api/v1/namespaces/ns/configmaps"
    async with served(handler) as cluster:
        answer = await cluster.create(obj)
        await cluster.apply_status(obj, uid="u")
        await cluster.post(obj)
        await cluster.merge_patch(CONFIGMAP, "ns", "a", {"data": {}})
    assert answer == {**obj, "metadata": {"name": "a"}}
    assert seen == [
        ("PATCH", f"{path}/a?fieldManager=kvtier&force=true", "application/apply-patch+yaml"),
        (
            "PATCH",
            f"{path}/a/status?fieldManager=kvtier&force=true",
            "application/apply-patch+yaml",
        ),
        ("POST", f"{path}?fieldManager=kvtier", "application/json"),
        ("PATCH", f"{path}/a?fieldManager=kvtier", "application/merge-patch+json"),
    ]


async def test_every_deletion_names_the_object_that_was_read():
    seen = []

    async def handler(request):
        seen.append((request.method, request.path, await request.json()))
        return web.json_response({"kind": "Status", "status": "Success"})

    options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
    async with served(handler) as cluster:
        await cluster.delete(POD, "ns", "a", uid="u")
        await cluster.delete(POD, "ns", "a", uid="u", resource_version="7")
        await cluster.force_delete(POD, "ns", "a", uid="u")
    bodies = [
        {**options, "preconditions": {"uid": "u"}},
        {**options, "preconditions": {"uid": "u", "resourceVersion": "7"}},
        {**options, "preconditions": {"uid": "u"}, "gracePeriodSeconds": 0},
    ]
    assert seen == [("DELETE", "/api/v1/namespaces/ns/pods/a", body) for body in bodies]


async def test_without_a_cluster_one_line_says_what_to_give(tmp_path, monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(NoCluster) as refused:
        await configure()
    assert str(tmp_path / "none") in str(refused.value)
    assert "\n" not in str(refused.value)


async def test_strict_verification_of_certificates_can_be_switched_off(tmp_path, monkeypatch):
    config = tmp_path / "kubeconfig"
    config.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
        "contexts: [{name: c, context: {cluster: c, user: u}}]\n"
        "clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\n"
        "users: [{name: u, user: {token: t}}]\n"
    )
    default = ssl.create_default_context

    def as_in_python_3_13(*arguments, **options):
        context = default(*arguments, **options)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", as_in_python_3_13)
    is_strict = {}
    for strict in (True, False):
        cluster = AioCluster(await configure(kubeconfig=str(config), strict_x509=strict))
        flags = cluster._api.rest_client.ssl_context.verify_flags
        is_strict[strict] = bool(flags & ssl.VERIFY_X509_STRICT)
        await cluster.close()
    assert is_strict == {True: True, False: False}
