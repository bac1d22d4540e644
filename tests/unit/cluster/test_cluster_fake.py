"""The in-memory cluster keeps the contract, and its own promises to tests."""

import pytest

from cluster_contract import ClusterContract
from cluster_objects import configmap, statefulset, uid
from kvtier.cluster.fake import FakeCluster, Stopped
from kvtier.cluster.protocol import CONFIGMAP, NODE, POD, STATEFULSET, Unavailable
from kvtier.reconcile.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def cluster(clock: FakeClock) -> FakeCluster:
    return FakeCluster(clock=clock)


@pytest.fixture
def namespace() -> str:
    return "default"


@pytest.fixture
def edit(cluster: FakeCluster):
    async def edit(kind, namespace, name, patch):
        return cluster.edit(kind, namespace, name, patch)

    return edit


class TestContract(ClusterContract):
    pass


def owned(obj, owner):
    reference = {key: owner[key] for key in ("apiVersion", "kind")}
    reference |= {"name": owner["metadata"]["name"], "uid": uid(owner), "controller": True}
    return {**obj, "metadata": {**obj["metadata"], "ownerReferences": [reference]}}


def unavailable() -> Unavailable:
    return Unavailable(status=503, reason="ServiceUnavailable", message="later")


async def test_a_stop_before_a_call_leaves_no_trace_and_one_after_it_does(cluster):
    cluster.stop_at(0, "before")
    cluster.stop_at(1, "after")
    for _ in range(2):
        with pytest.raises(Stopped):
            await cluster.create(configmap("default", k="v"))
        if len(cluster.requests) == 1:
            assert cluster.peek(CONFIGMAP, "default", "a") is None
    assert cluster.peek(CONFIGMAP, "default", "a") is not None
    assert not issubclass(Stopped, Exception)


async def test_an_injected_error_hits_only_the_calls_it_names(cluster):
    cluster.fail(unavailable(), verb="create", kind=CONFIGMAP, name="b", times=1)
    await cluster.create(configmap("default", "a"))
    with pytest.raises(Unavailable):
        await cluster.create(configmap("default", "b"))
    await cluster.create(configmap("default", "b"))
    assert [(r.index, r.verb, r.name) for r in cluster.requests] == [
        (0, "create", "a"),
        (1, "create", "b"),
        (2, "create", "b"),
    ]


async def test_watchers_are_told_of_changes_and_of_nothing_else(cluster):
    seen = []
    cluster.watch(lambda event, obj: seen.append((event, obj["metadata"]["name"])))
    made = await cluster.create(configmap("default", k="v"))
    await cluster.apply(configmap("default", k="v"), uid=uid(made))
    await cluster.apply(configmap("default", k="w"), uid=uid(made))
    await cluster.get(CONFIGMAP, "default", "a")
    await cluster.delete(CONFIGMAP, "default", "a", uid=uid(made))
    assert seen == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]


async def test_what_is_handed_out_is_a_copy(cluster):
    made = await cluster.create(configmap("default", k="v"))
    made["data"]["k"] = "spoiled"
    listed = await cluster.list(CONFIGMAP, "default")
    listed[0]["data"]["k"] = "spoiled"
    assert cluster.peek(CONFIGMAP, "default", "a")["data"] == {"k": "v"}


async def test_garbage_is_what_only_gone_objects_own_down_to_the_last(cluster):
    root = await cluster.create(configmap("default", "root"))
    child = await cluster.create(owned(configmap("default", "child"), root))
    await cluster.create(owned(configmap("default", "grandchild"), child))
    await cluster.create(configmap("default", "free"))
    assert list(cluster.collect_garbage()) == []
    await cluster.delete(CONFIGMAP, "default", "root", uid=uid(root))
    assert list(cluster.collect_garbage()) == ["ConfigMap/child", "ConfigMap/grandchild"]
    assert [each["metadata"]["name"] for each in cluster.all(CONFIGMAP)] == ["free"]


async def one_rank(cluster: FakeCluster, **env: str):
    made = await cluster.create(statefulset("default", env=env, replicas=1))
    cluster.run_statefulsets()
    return made


def status(cluster: FakeCluster):
    return cluster.peek(STATEFULSET, "default", "r0")["status"]


def is_ready(pod) -> bool:
    conditions = {each["type"]: each["status"] for each in pod["status"]["conditions"]}
    return conditions.get("Ready") == "True"


async def test_a_statefulset_gets_a_ready_pod_and_a_status(cluster):
    made = await one_rank(cluster, A="1")
    [pod] = cluster.all(POD)
    labels = pod["metadata"]["labels"]
    assert (pod["metadata"]["name"], labels["app"], is_ready(pod)) == ("r0-0", "valkey", True)
    assert labels["controller-revision-hash"] == status(cluster)["updateRevision"]
    assert pod["metadata"]["ownerReferences"][0]["uid"] == uid(made)
    assert (status(cluster)["readyReplicas"], status(cluster)["observedGeneration"]) == (1, 1)


async def test_at_rest_the_controllers_change_nothing(cluster, clock):
    await one_rank(cluster)
    seen = []
    cluster.watch(lambda event, obj: seen.append((event, obj["kind"])))
    await clock.advance(60)
    cluster.run_statefulsets()
    assert seen == []


async def test_on_delete_a_pod_keeps_its_revision_until_it_is_deleted(cluster):
    made = await one_rank(cluster, A="1")
    first = cluster.all(POD)[0]
    await cluster.apply(statefulset("default", env={"A": "2"}, replicas=1), uid=uid(made))
    for _ in range(2):
        cluster.run_statefulsets()
    assert uid(cluster.all(POD)[0]) == uid(first)
    assert status(cluster)["updatedReplicas"] == 0
    assert status(cluster)["observedGeneration"] == 2
    await cluster.delete(POD, "default", "r0-0", uid=uid(first))
    cluster.run_statefulsets()
    [second] = cluster.all(POD)
    assert uid(second) != uid(first)
    assert (
        second["metadata"]["labels"]["controller-revision-hash"]
        == (status(cluster)["updateRevision"])
    )
    assert status(cluster)["updatedReplicas"] == 1


async def test_a_rolling_update_replaces_the_pod_by_itself(cluster):
    rolling = {"updateStrategy": {"type": "RollingUpdate"}, "replicas": 1}
    made = await cluster.create(statefulset("default", env={"A": "1"}, **rolling))
    cluster.run_statefulsets()
    first = cluster.all(POD)[0]
    await cluster.apply(statefulset("default", env={"A": "2"}, **rolling), uid=uid(made))
    for _ in range(2):
        cluster.run_statefulsets()
    assert uid(cluster.all(POD)[0]) != uid(first)


async def test_a_pod_that_fails_its_probe_is_not_ready(cluster):
    await one_rank(cluster)
    cluster.run_statefulsets(ready=lambda pod: False)
    assert not is_ready(cluster.all(POD)[0])
    assert status(cluster)["readyReplicas"] == 0


def node(name: str, **labels: str):
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}


async def test_a_pod_goes_to_a_node_that_its_selector_allows_or_waits(cluster):
    cluster.seed(node("far"))
    intent = statefulset("default", env={}, replicas=1)
    intent["spec"]["template"]["spec"]["nodeSelector"] = {"leaf": "a"}
    await cluster.create(intent)
    cluster.run_statefulsets()
    assert cluster.all(POD)[0]["status"]["phase"] == "Pending"
    assert status(cluster)["readyReplicas"] == 0
    cluster.seed(node("near", leaf="a"))
    cluster.remove(POD, "default", "r0-0")
    cluster.run_statefulsets()
    assert cluster.all(POD)[0]["spec"]["nodeName"] == "near"


async def test_a_pod_on_a_lost_node_stays_terminating_until_it_is_deleted_by_force(cluster):
    cluster.seed(node("n0"))
    cluster.seed(node("n1"))
    await one_rank(cluster)
    [pod] = cluster.all(POD)
    cluster.lost_nodes.add(pod["spec"]["nodeName"])
    cluster.remove(NODE, "", pod["spec"]["nodeName"])
    await cluster.delete(POD, "default", "r0-0", uid=uid(pod))
    cluster.run_statefulsets()
    [stuck] = cluster.all(POD)
    assert (uid(stuck), "deletionTimestamp" in stuck["metadata"]) == (uid(pod), True)
    await cluster.force_delete(POD, "default", "r0-0", uid=uid(pod))
    cluster.run_statefulsets()
    [fresh] = cluster.all(POD)
    assert (uid(fresh) != uid(pod), is_ready(fresh)) == (True, True)
