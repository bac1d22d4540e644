"""The client keeps the contract against a real kube-apiserver, and what only a real one shows."""

import asyncio
import os
import re
import uuid

import pytest

from cluster_contract import ClusterContract
from cluster_objects import configmap, lease, uid
from kvtier.cluster.client import AioCluster
from kvtier.cluster.connect import NoCluster, configure, connect
from kvtier.cluster.protocol import (
    CONFIGMAP,
    EVENT,
    LEASE,
    TIER,
    Forbidden,
    Invalid,
    NotFound,
    Unavailable,
)
from kvtier.plan.observed import EventSpec, EventType
from kvtier.reconcile.events import Recorder
from kvtier.reconcile.lease import Lease


@pytest.fixture
def namespace(apiserver) -> str:
    name = f"contract-{uuid.uuid4().hex[:12]}"
    made = apiserver.kubectl("create", "namespace", name)
    assert made.code == 0, made.message
    return name


@pytest.fixture
async def cluster(apiserver):
    async with connect(kubeconfig=str(apiserver.kubeconfig)) as cluster:
        yield cluster


@pytest.fixture
async def edit(apiserver):
    configuration = await configure(kubeconfig=str(apiserver.kubeconfig))
    other = AioCluster(configuration, field_manager="kubectl")
    yield other.merge_patch
    await other.close()


class TestContract(ClusterContract):
    pass


def tier(namespace: str, **extra):
    layout = {"gqa": {"layers": 80, "kvHeads": 8, "headDim": 128}}
    model = {"name": "m", "revision": "r", "kvCacheDtype": "bfloat16", "layout": layout}
    return {
        "apiVersion": "kvtier.dev/v1alpha1",
        "kind": "KVCacheTier",
        "metadata": {"name": "t", "namespace": namespace},
        "spec": {
            "model": model,
            "pool": {"ranks": 8, "prefillRate": [{"tokensPerSecond": 5000}]},
            "store": {"memoryPerRank": "64Gi"},
            **extra,
        },
    }


async def test_the_status_of_a_tier_is_applied_and_moves_no_generation(cluster, namespace):
    made = await cluster.post(tier(namespace))
    intent = {**tier(namespace), "status": {"observedGeneration": 1, "ranks": "0/8"}}
    written = await cluster.apply_status(intent, uid=uid(made))
    assert written["status"]["ranks"] == "0/8"
    assert written["metadata"]["generation"] == 1
    again = await cluster.apply_status(intent, uid=uid(made))
    assert again["metadata"]["resourceVersion"] == written["metadata"]["resourceVersion"]
    [listed] = await cluster.list(TIER, namespace)
    assert (listed["kind"], listed["status"]["ranks"]) == ("KVCacheTier", "0/8")


async def test_an_object_that_breaks_its_schema_is_invalid_and_the_field_is_named(
    cluster, namespace
):
    with pytest.raises(Invalid) as refused:
        await cluster.post(tier(namespace, paused="perhaps"))
    assert "spec.paused" in refused.value.message


async def test_a_list_of_many_pages_is_whole_and_in_one_snapshot(apiserver, namespace):
    configuration = await configure(kubeconfig=str(apiserver.kubeconfig))
    cluster = AioCluster(configuration, page_size=3)
    try:
        for index in range(10):
            await cluster.create(configmap(namespace, f"c{index}", k="v"))
        found = await cluster.list(CONFIGMAP, namespace)
    finally:
        await cluster.close()
    assert [each["metadata"]["name"] for each in found] == [f"c{index}" for index in range(10)]


async def test_creating_in_a_namespace_that_is_gone_is_not_found(cluster):
    with pytest.raises(NotFound):
        await cluster.create(configmap("no-such-namespace", k="v"))


async def test_every_request_is_reported_with_its_verb_kind_and_answer(apiserver, namespace):
    seen: list[tuple[str, str, int]] = []
    async with connect(
        kubeconfig=str(apiserver.kubeconfig),
        on_request=lambda verb, kind, code, seconds: seen.append((verb, kind, code)),
    ) as cluster:
        made = await cluster.create(configmap(namespace, k="v"))
        await cluster.apply(configmap(namespace, k="w"), uid=uid(made))
        await cluster.get(LEASE, namespace, "none")
        await cluster.list(CONFIGMAP, namespace)
        await cluster.post(lease(namespace))
        await cluster.delete(CONFIGMAP, namespace, "a", uid=uid(made))
    assert seen == [
        ("create", "ConfigMap", 201),
        ("apply", "ConfigMap", 200),
        ("get", "Lease", 404),
        ("list", "ConfigMap", 200),
        ("post", "Lease", 201),
        ("delete", "ConfigMap", 200),
    ]


async def test_no_more_requests_are_in_flight_than_allowed(apiserver, namespace):
    async with connect(kubeconfig=str(apiserver.kubeconfig), in_flight=3) as cluster:
        at_work = most = 0
        send = cluster._send

        async def counting(*arguments, **options):
            nonlocal at_work, most
            at_work += 1
            most = max(most, at_work)
            try:
                return await send(*arguments, **options)
            finally:
                at_work -= 1

        cluster._send = counting
        await asyncio.gather(*(cluster.get(CONFIGMAP, namespace, str(n)) for n in range(20)))
    assert most == 3


@pytest.fixture
def in_a_pod(apiserver, tmp_path, monkeypatch):
    """The environment of a pod: a token file that may change, a CA file, two variables."""
    from kubernetes.aio.config import incluster_config

    token = tmp_path / "token"
    token.write_text(apiserver.token)
    host, port = apiserver.url.removeprefix("https://").split(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(apiserver.ca))
    return token


async def test_in_a_pod_its_service_account_is_used_without_a_kubeconfig(
    in_a_pod, namespace, monkeypatch
):
    monkeypatch.setenv("KUBECONFIG", os.devnull)
    async with connect() as cluster:
        await cluster.create(configmap(namespace, k="v"))
        assert await cluster.get(CONFIGMAP, namespace, "a") is not None


async def test_a_token_that_was_replaced_is_read_again(in_a_pod, namespace, monkeypatch):
    from datetime import timedelta

    from kubernetes.aio.config.incluster_config import InClusterConfigLoader

    read = InClusterConfigLoader._read_token_file

    def read_always(self):
        self._token_refresh_period = timedelta(0)
        read(self)

    monkeypatch.setattr(InClusterConfigLoader, "_read_token_file", read_always)
    good = in_a_pod.read_text()
    async with connect() as cluster:
        assert await cluster.get(CONFIGMAP, namespace, "a") is None
        in_a_pod.write_text("revoked")
        with pytest.raises(Forbidden) as refused:
            await cluster.get(CONFIGMAP, namespace, "a")
        assert refused.value.status == 401
        in_a_pod.write_text(good)
        assert await cluster.get(CONFIGMAP, namespace, "a") is None


async def test_what_a_service_account_may_not_do_is_forbidden(apiserver, in_a_pod, namespace):
    assert apiserver.kubectl("-n", namespace, "create", "serviceaccount", "poor").code == 0
    made = apiserver.kubectl("-n", namespace, "create", "token", "poor")
    assert made.code == 0, made.message
    in_a_pod.write_text(made.out.strip())
    async with connect() as cluster:
        with pytest.raises(Forbidden) as refused:
            await cluster.list(CONFIGMAP, namespace)
    assert (refused.value.status, refused.value.reason) == (403, "Forbidden")
    assert "configmaps" in refused.value.message


async def test_a_server_of_another_authority_is_unavailable_not_trusted(
    apiserver, tmp_path, cluster
):
    config = apiserver.kubeconfig.read_text().splitlines()
    other = tmp_path / "kubeconfig"
    other.write_text("\n".join(line for line in config if "certificate-authority" not in line))
    async with connect(kubeconfig=str(other)) as stranger:
        with pytest.raises(Unavailable) as refused:
            await stranger.get(CONFIGMAP, "default", "a")
    assert "CERTIFICATE_VERIFY_FAILED" in str(refused.value)
    assert await cluster.get(CONFIGMAP, "default", "kvtier-none") is None


async def test_a_context_that_does_not_exist_is_one_line_that_names_the_fix(apiserver):
    with pytest.raises(NoCluster) as refused:
        await configure(kubeconfig=str(apiserver.kubeconfig), context="nowhere")
    assert "nowhere" in str(refused.value)
    assert "\n" not in str(refused.value)


def elector(cluster, namespace: str, identity: str) -> Lease:
    return Lease(cluster, namespace=namespace, name="kvtier", identity=identity)


async def test_a_lease_goes_from_one_controller_to_the_next_when_it_is_released(cluster, namespace):
    first, second = elector(cluster, namespace, "one"), elector(cluster, namespace, "two")
    tasks = [asyncio.create_task(first.run())]
    try:
        async with asyncio.timeout(20):
            await first.held.wait()
            tasks.append(asyncio.create_task(second.run()))
            await asyncio.sleep(1.5)
            assert (first.holds(), second.holds()) == (True, False)
            first.stop()
            await second.held.wait()
        assert first.lost.is_set()
        held = await cluster.get(LEASE, namespace, "kvtier")
        assert held["spec"]["holderIdentity"].startswith("two_")
        assert held["spec"]["leaseTransitions"] == 1
        second.stop()
        await asyncio.gather(*tasks)
        released = await cluster.get(LEASE, namespace, "kvtier")
        assert "holderIdentity" not in released["spec"]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_lease_deleted_under_its_holder_is_made_again(cluster, namespace, monkeypatch):
    monkeypatch.setattr("kvtier.reconcile.lease.RENEW_EVERY", 0.2)
    holder = elector(cluster, namespace, "one")
    task = asyncio.create_task(holder.run())
    try:
        async with asyncio.timeout(20):
            await holder.held.wait()
            held = await cluster.get(LEASE, namespace, "kvtier")
            await cluster.delete(LEASE, namespace, "kvtier", uid=uid(held))
            while await cluster.get(LEASE, namespace, "kvtier") is None:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert holder.holds()
    finally:
        holder.stop()
        await task


async def test_people_see_one_event_with_a_count(apiserver, cluster, namespace):
    made = await cluster.post(tier(namespace))
    recorder = Recorder(cluster, instance="kvtier-0")
    for _ in range(3):
        await recorder.record(
            made, EventSpec(type=EventType.WARNING, reason="NameConflict", message="t-r0 is taken")
        )
    [event] = await cluster.list(EVENT, namespace)
    assert (event["count"], event["reason"]) == (3, "NameConflict")
    described = apiserver.kubectl("-n", namespace, "describe", "kvt", "t")
    assert re.search(r"Warning +NameConflict +.*x3.* kvtier +t-r0 is taken", described.out)
