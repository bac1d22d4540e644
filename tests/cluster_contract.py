"""What every implementation of ``cluster.protocol.Cluster`` must do.

Test modules subclass ``ClusterContract`` and give it the fixtures ``cluster``, ``namespace`` (an
empty one) and ``edit`` (merge-patches an object as another client would).
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from cluster_objects import (
    configmap,
    env_of,
    event,
    lease,
    pod_on_a_node,
    statefulset,
    uid,
    version,
)
from kvtier.cluster.protocol import (
    CONFIGMAP,
    EVENT,
    LEASE,
    POD,
    SECRET,
    SERVICE,
    STATEFULSET,
    AlreadyExists,
    Cluster,
    Conflict,
    Invalid,
    Kind,
    NotFound,
    Object,
)

Edit = Callable[[Kind, str, str, Mapping[str, Any]], Awaitable[Object]]

NOT_SERVED = Kind("kvtier.example/v1", "things", "Thing")


class ClusterContract:
    """The suite."""

    async def must_get(self, cluster: Cluster, kind: Kind, namespace: str, name: str) -> Object:
        obj = await cluster.get(kind, namespace, name)
        assert obj is not None
        return obj

    async def test_what_does_not_exist_is_none(self, cluster, namespace):
        assert await cluster.get(CONFIGMAP, namespace, "a") is None

    async def test_a_resource_type_that_is_not_served_is_an_error_not_an_absent_object(
        self, cluster, namespace
    ):
        with pytest.raises(NotFound):
            await cluster.get(NOT_SERVED, namespace, "a")
        with pytest.raises(NotFound):
            await cluster.list(NOT_SERVED, namespace)

    async def test_what_was_created_is_read_back_with_its_kind_and_little_of_managed_fields(
        self, cluster, namespace
    ):
        made = await cluster.create(configmap(namespace, k="v"))
        read = await self.must_get(cluster, CONFIGMAP, namespace, "a")
        assert made == read
        assert (read["apiVersion"], read["kind"], read["data"]) == ("v1", "ConfigMap", {"k": "v"})
        # Of a ConfigMap the time of the last write is left, where the server says it.
        assert all(each.keys() == {"time"} for each in read["metadata"].get("managedFields", ()))
        assert uid(read)
        assert read["metadata"]["creationTimestamp"].endswith("Z")

    async def test_a_list_selects_by_label_and_fills_in_what_an_item_is(self, cluster, namespace):
        for name in ("a", "b", "c"):
            await cluster.create(configmap(namespace, name, k=name))
        listed = await cluster.list(CONFIGMAP, namespace, "tier=b")
        assert listed == [await cluster.get(CONFIGMAP, namespace, "b")]
        assert (listed[0]["apiVersion"], listed[0]["kind"]) == ("v1", "ConfigMap")
        found = await cluster.list(CONFIGMAP, namespace, "tier,tier!=b")
        assert [each["metadata"]["name"] for each in found] == ["a", "c"]
        assert await cluster.list(CONFIGMAP, namespace, "!tier,tier=a") == []

    async def test_a_list_of_events_selects_by_what_they_are_about(self, cluster, namespace):
        for name, kind in (("a.1", "StatefulSet"), ("b.1", "Pod")):
            about = event(namespace)
            about["metadata"]["name"] = name
            about["involvedObject"] = {"kind": kind, "namespace": namespace, "name": name}
            await cluster.post(about)
        selector = "involvedObject.kind=StatefulSet,involvedObject.name=a.1"
        found = await cluster.list(EVENT, namespace, field_selector=selector)
        assert [each["metadata"]["name"] for each in found] == ["a.1"]
        selector = "involvedObject.kind=StatefulSet,involvedObject.name=b.1"
        assert await cluster.list(EVENT, namespace, field_selector=selector) == []

    async def test_a_list_without_a_namespace_spans_all(self, cluster, namespace):
        await cluster.create(configmap(namespace, "spans", k="v"))
        everywhere = await cluster.list(CONFIGMAP, "", "tier=spans")
        assert (namespace, "spans") in [
            (each["metadata"]["namespace"], each["metadata"]["name"]) for each in everywhere
        ]

    async def test_create_never_seizes_a_name_that_is_taken(self, cluster, namespace):
        taken = await cluster.post(configmap(namespace, k="theirs"))
        with pytest.raises(AlreadyExists):
            await cluster.create(configmap(namespace, k="ours", more="ours"))
        assert await cluster.get(CONFIGMAP, namespace, "a") == taken

    async def test_of_many_who_create_at_once_one_wins(self, cluster, namespace):
        answers = await asyncio.gather(
            *(cluster.create(configmap(namespace, k=str(n))) for n in range(8)),
            return_exceptions=True,
        )
        won = [each for each in answers if isinstance(each, dict)]
        lost = [each for each in answers if isinstance(each, AlreadyExists)]
        assert (len(won), len(lost)) == (1, 7)
        assert await cluster.get(CONFIGMAP, namespace, "a") == won[0]

    async def test_a_field_left_out_is_pruned_and_others_fields_stay(
        self, cluster, namespace, edit: Edit
    ):
        made = await cluster.create(configmap(namespace, keep="1", drop="1"))
        await edit(CONFIGMAP, namespace, "a", {"data": {"theirs": "1"}})
        applied = await cluster.apply(configmap(namespace, keep="2"), uid=uid(made))
        assert applied["data"] == {"keep": "2", "theirs": "1"}

    async def test_apply_brings_back_what_another_client_changed_or_removed(
        self, cluster, namespace, edit: Edit
    ):
        intent = configmap(namespace, a="1", b="1")
        made = await cluster.create(intent)
        await edit(CONFIGMAP, namespace, "a", {"data": {"a": "edited", "b": None}})
        applied = await cluster.apply(intent, uid=uid(made))
        assert applied["data"] == {"a": "1", "b": "1"}

    async def test_a_field_that_another_client_took_over_is_not_pruned(
        self, cluster, namespace, edit: Edit
    ):
        made = await cluster.create(configmap(namespace, a="1", b="1"))
        await edit(CONFIGMAP, namespace, "a", {"data": {"b": "theirs"}})
        applied = await cluster.apply(configmap(namespace, a="1"), uid=uid(made))
        assert applied["data"] == {"a": "1", "b": "theirs"}

    async def test_a_field_that_was_left_out_once_is_free_for_others(
        self, cluster, namespace, edit: Edit
    ):
        made = await cluster.create(configmap(namespace, a="1", b="1"))
        await cluster.apply(configmap(namespace, a="1"), uid=uid(made))
        await edit(CONFIGMAP, namespace, "a", {"data": {"b": "theirs"}})
        applied = await cluster.apply(configmap(namespace, a="2"), uid=uid(made))
        assert applied["data"] == {"a": "2", "b": "theirs"}

    async def test_what_was_made_by_post_is_not_pruned_by_apply(self, cluster, namespace):
        made = await cluster.post(configmap(namespace, a="1", b="1"))
        await cluster.apply(configmap(namespace, a="1", b="1"), uid=uid(made))
        applied = await cluster.apply(configmap(namespace, a="2"), uid=uid(made))
        assert applied["data"] == {"a": "2", "b": "1"}

    async def test_patch_and_replace_leave_the_status_alone(self, cluster, namespace):
        intent = statefulset(namespace, env={})
        made = await cluster.create(intent)
        status = {"replicas": 1, "observedGeneration": 1}
        written = await cluster.apply_status({**intent, "status": status}, uid=uid(made))
        patched = await cluster.merge_patch(
            STATEFULSET, namespace, "r0", {"status": {"replicas": 7}, "spec": {"replicas": 2}}
        )
        assert (patched["status"], patched["spec"]["replicas"]) == (written["status"], 2)
        bare = {name: value for name, value in patched.items() if name != "status"}
        replaced = await cluster.replace({**bare, "spec": {**bare["spec"], "replicas": 3}})
        assert (replaced["status"], replaced["spec"]["replicas"]) == (written["status"], 3)

    async def test_applying_what_is_there_already_changes_nothing(self, cluster, namespace):
        intent = statefulset(namespace, env={"A": "1"})
        made = await cluster.create(intent)
        assert version(await cluster.apply(intent, uid=uid(made))) == version(made)

    async def test_apply_touches_no_object_of_another_uid(self, cluster, namespace):
        made = await cluster.create(configmap(namespace, k="v"))
        wrong = "00000000-0000-0000-0000-000000000000"
        with pytest.raises(Conflict):
            await cluster.apply(configmap(namespace, k="w"), uid=wrong)
        assert await cluster.get(CONFIGMAP, namespace, "a") == made

    async def test_apply_of_a_version_touches_none_that_another_client_wrote(
        self, cluster, namespace, edit: Edit
    ):
        made = await cluster.create(configmap(namespace, k="v"))
        await edit(CONFIGMAP, namespace, "a", {"data": {"theirs": "1"}})
        live = await cluster.get(CONFIGMAP, namespace, "a")
        mine = configmap(namespace, k="w")
        with pytest.raises(Conflict):
            await cluster.apply(mine, uid=uid(made), resource_version=version(made))
        assert await cluster.get(CONFIGMAP, namespace, "a") == live
        applied = await cluster.apply(mine, uid=uid(made), resource_version=version(live))
        assert applied["data"] == {"k": "w", "theirs": "1"}

    async def test_apply_never_creates(self, cluster, namespace):
        made = await cluster.create(configmap(namespace, k="v"))
        await cluster.delete(CONFIGMAP, namespace, "a", uid=uid(made))
        with pytest.raises(Conflict):
            await cluster.apply(configmap(namespace, k="v"), uid=uid(made))
        assert await cluster.get(CONFIGMAP, namespace, "a") is None

    async def test_items_of_a_keyed_list_are_merged_and_pruned_one_by_one(
        self, cluster, namespace, edit: Edit
    ):
        made = await cluster.create(statefulset(namespace, env={"A": "1", "B": "1"}))
        [container] = made["spec"]["template"]["spec"]["containers"]
        theirs = {**container, "env": [*container["env"], {"name": "THEIRS", "value": "1"}]}
        await edit(
            STATEFULSET,
            namespace,
            "r0",
            {"spec": {"template": {"spec": {"containers": [theirs]}}}},
        )
        applied = await cluster.apply(statefulset(namespace, env={"B": "2"}), uid=uid(made))
        assert env_of(applied) == {"B": "2", "THEIRS": "1"}

    async def test_an_immutable_field_cannot_be_applied(self, cluster, namespace):
        made = await cluster.create(statefulset(namespace, env={}))
        with pytest.raises(Invalid) as refused:
            await cluster.apply(statefulset(namespace, env={}, serviceName="b"), uid=uid(made))
        assert "r0" in refused.value.message
        assert await cluster.get(STATEFULSET, namespace, "r0") == made

    async def test_the_generation_counts_changes_of_the_spec_only(
        self, cluster, namespace, edit: Edit
    ):
        made = await cluster.create(statefulset(namespace, env={"A": "1"}))
        labelled = await edit(
            STATEFULSET, namespace, "r0", {"metadata": {"annotations": {"note": "x"}}}
        )
        changed = await cluster.apply(statefulset(namespace, env={"A": "2"}), uid=uid(made))
        generations = [each["metadata"]["generation"] for each in (made, labelled, changed)]
        assert generations == [1, 1, 2]

    async def test_the_status_is_written_apart_from_the_rest(self, cluster, namespace):
        intent = statefulset(namespace, env={"A": "1"})
        made = await cluster.create({**intent, "status": {"replicas": 7}})
        assert made.get("status", {}).get("replicas", 0) == 0
        status = {"replicas": 1, "observedGeneration": 1}
        changed = {**statefulset(namespace, env={"A": "2"}), "status": status}
        written = await cluster.apply_status(changed, uid=uid(made))
        assert written["status"].items() >= status.items()
        assert written["spec"] == made["spec"]
        assert written["metadata"]["generation"] == 1
        with pytest.raises(Conflict):
            await cluster.apply_status(changed, uid="00000000-0000-0000-0000-000000000000")

    async def test_a_status_field_left_out_is_pruned(self, cluster, namespace):
        intent = statefulset(namespace, env={})
        made = await cluster.create(intent)
        for status in ({"replicas": 1, "currentRevision": "a"}, {"replicas": 1}):
            written = await cluster.apply_status({**intent, "status": status}, uid=uid(made))
        assert "currentRevision" not in written["status"]

    async def test_delete_takes_only_the_object_of_that_uid_and_version(
        self, cluster, namespace, edit: Edit
    ):
        made = await cluster.create(configmap(namespace, k="v"))
        with pytest.raises(Conflict):
            await cluster.delete(
                CONFIGMAP, namespace, "a", uid="00000000-0000-0000-0000-000000000000"
            )
        await edit(CONFIGMAP, namespace, "a", {"data": {"k": "w"}})
        with pytest.raises(Conflict):
            await cluster.delete(
                CONFIGMAP, namespace, "a", uid=uid(made), resource_version=version(made)
            )
        assert await cluster.get(CONFIGMAP, namespace, "a") is not None
        await cluster.delete(CONFIGMAP, namespace, "a", uid=uid(made))
        assert await cluster.get(CONFIGMAP, namespace, "a") is None

    async def test_deleting_what_is_gone_is_no_error(self, cluster, namespace):
        made = await cluster.create(configmap(namespace, k="v"))
        await cluster.force_delete(CONFIGMAP, namespace, "a", uid=uid(made))
        await cluster.force_delete(CONFIGMAP, namespace, "a", uid=uid(made))
        await cluster.delete(CONFIGMAP, namespace, "a", uid=uid(made))
        assert await cluster.get(CONFIGMAP, namespace, "a") is None

    async def test_a_pod_waits_for_its_kubelet_unless_it_is_deleted_by_force(
        self, cluster, namespace
    ):
        made = await cluster.post(pod_on_a_node(namespace))
        await cluster.delete(POD, namespace, "r0-0", uid=uid(made))
        leaving = await cluster.get(POD, namespace, "r0-0")
        assert leaving is not None
        assert "deletionTimestamp" in leaving["metadata"]
        with pytest.raises(Conflict):
            await cluster.force_delete(
                POD, namespace, "r0-0", uid="00000000-0000-0000-0000-000000000000"
            )
        assert await cluster.get(POD, namespace, "r0-0") is not None
        await cluster.force_delete(POD, namespace, "r0-0", uid=uid(made))
        assert await cluster.get(POD, namespace, "r0-0") is None

    async def test_a_pod_that_finalizers_keep_shows_that_it_was_deleted_by_force(
        self, cluster, namespace, edit: Edit
    ):
        made = await cluster.post(pod_on_a_node(namespace))
        await edit(POD, namespace, "r0-0", {"metadata": {"finalizers": ["example.com/x"]}})
        await cluster.delete(POD, namespace, "r0-0", uid=uid(made))
        leaving = await cluster.get(POD, namespace, "r0-0")
        assert leaving["metadata"].get("deletionGracePeriodSeconds") != 0
        await cluster.force_delete(POD, namespace, "r0-0", uid=uid(made))
        kept = await cluster.get(POD, namespace, "r0-0")
        assert kept["metadata"]["deletionGracePeriodSeconds"] == 0
        assert kept["metadata"]["finalizers"] == ["example.com/x"]

    async def test_replace_holds_to_the_version_that_was_read(self, cluster, namespace):
        made = await cluster.post(lease(namespace))
        mine = {**made, "spec": {**made["spec"], "holderIdentity": "two"}}
        replaced = await cluster.replace(mine)
        assert replaced["spec"]["holderIdentity"] == "two"
        with pytest.raises(Conflict):
            await cluster.replace({**mine, "spec": {**made["spec"], "holderIdentity": "three"}})
        assert await cluster.get(LEASE, namespace, "kvtier") == replaced

    async def test_replacing_what_is_gone_is_an_error(self, cluster, namespace):
        made = await cluster.post(lease(namespace))
        await cluster.delete(LEASE, namespace, "kvtier", uid=uid(made))
        with pytest.raises((NotFound, Conflict)):
            await cluster.replace(made)
        assert await cluster.get(LEASE, namespace, "kvtier") is None

    async def test_post_refuses_a_name_that_is_taken(self, cluster, namespace):
        made = await cluster.post(lease(namespace))
        with pytest.raises(AlreadyExists):
            await cluster.post(lease(namespace))
        assert await cluster.get(LEASE, namespace, "kvtier") == made

    async def test_a_merge_patch_changes_what_it_names(self, cluster, namespace):
        made = await cluster.post(event(namespace))
        patched = await cluster.merge_patch(EVENT, namespace, "a.1", {"count": 2})
        assert (patched["count"], patched["message"], uid(patched)) == (2, "once", uid(made))
        with pytest.raises(NotFound):
            await cluster.merge_patch(EVENT, namespace, "b.1", {"count": 2})
        with pytest.raises(Conflict):
            await cluster.merge_patch(
                EVENT,
                namespace,
                "a.1",
                {"count": 3, "metadata": {"resourceVersion": version(made)}},
            )

    async def test_secrets_and_services_are_applied_like_everything_else(self, cluster, namespace):
        meta = {"name": "r0", "namespace": namespace}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": {"a": "MQ=="}}
        made = await cluster.create(secret)
        assert (await cluster.apply(secret, uid=uid(made)))["data"] == {"a": "MQ=="}
        service: Object = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": meta,
            "spec": {
                "clusterIP": "None",
                "selector": {"app": "a"},
                "ports": [{"name": "valkey", "port": 6379}],
            },
        }
        made = await cluster.create(service)
        service["spec"] = {**service["spec"], "ports": [{"name": "valkey", "port": 6380}]}
        applied = await cluster.apply(service, uid=uid(made))
        assert [port["port"] for port in applied["spec"]["ports"]] == [6380]
        assert await cluster.get(SECRET, namespace, "r0") is not None
        assert await cluster.get(SERVICE, namespace, "r0") == applied
