"""The reconciler on fakes: what is changed live, what restarts, and what restarts nothing."""

from typing import Any

import pytest
from tier_harness import KEY, Operator, spec

from kvtier.cluster.protocol import (
    POD,
    STATEFULSET,
)
from kvtier.store.fake import Fault
from kvtier.store.protocol import StoreUnreachable

NAMESPACE = KEY[0]


async def test_a_restarted_operator_writes_nothing(ready: Operator) -> None:
    before = len(ready.cluster.writes)
    ready.restart()
    ready.queue.add(KEY)
    await ready.settle()
    assert len(ready.cluster.writes) == before


async def test_a_live_setting_is_set_on_every_rank_without_a_restart(ready: Operator) -> None:
    pods = {name: pod["metadata"]["uid"] for name, pod in ready.pods().items()}
    ready.apply(spec(eviction="LFU"))
    await ready.settle()
    assert {ready.server(pod).config["maxmemory-policy"] for pod in pods} == {"allkeys-lfu"}
    assert {name: pod["metadata"]["uid"] for name, pod in ready.pods().items()} == pods
    assert ready.condition("Ready")["status"] == "True"


async def test_a_setting_that_a_rank_refuses_is_named_in_the_condition(ready: Operator) -> None:
    refusal = StoreUnreachable("CONFIG SET: timed out")
    ready.server("demo-r1-0").faults.append(Fault(call="config_set", error=refusal, times=9))
    ready.apply(spec(eviction="LFU"))
    await ready.settle()
    assert ready.condition("StoreReady")["reason"] == "SettingsNotApplied"
    assert "rank 1" in ready.condition("StoreReady")["message"]


async def test_a_change_that_needs_a_restart_restarts_all_ranks_at_once(ready: Operator) -> None:
    before = {name: pod["metadata"]["uid"] for name, pod in ready.pods().items()}
    ready.apply(spec(memoryPerRank="512Mi"))
    await ready.settle()
    after = {name: pod["metadata"]["uid"] for name, pod in ready.pods().items()}
    assert not set(before.values()) & set(after.values())
    deletions = [r for r in ready.cluster.requests if r.verb == "delete"]
    assert [r.name for r in deletions] == ["demo-r0-0", "demo-r1-0"]
    assert deletions[1].index == deletions[0].index + 1
    event = next(e for e in ready.recorder.events if e.reason == "RestartingAllRanks")
    assert event.type == "Warning"
    assert "because spec.store.memoryPerRank changed" in event.message
    assert ready.condition("Ready")["status"] == "True"


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"cpu": "200m"}, "spec.store.cpu"),
        ({"version": "8.1"}, "spec.store.image or version"),
        ({"memoryPerRank": "512Mi", "cpu": "200m"}, "spec.store.memoryPerRank and spec.store.cpu"),
        ({"tolerations": [{"operator": "Exists"}]}, "spec.store.tolerations"),
        ({"nodeSelector": {"disk": "fast"}}, "spec.store.nodeSelector"),
        ({"priorityClassName": "high"}, "spec.store.priorityClassName"),
        ({"imagePullSecrets": [{"name": "pull"}]}, "spec.store.imagePullSecrets"),
        ({"labels": {"team": "a"}}, "spec.store.labels"),
        ({"annotations": {"team": "a"}}, "spec.store.annotations"),
    ],
)
async def test_a_restart_names_the_fields_of_the_spec_that_changed(
    ready: Operator, changes: dict[str, Any], fields: str
) -> None:
    ready.apply(spec(**changes))
    await ready.settle()
    ready.apply(spec(**dict.fromkeys(changes) | spec()["store"]))
    await ready.settle()
    told = [e.message for e in ready.recorder.events if e.reason == "RestartingAllRanks"]
    # Once for what was written, and once for what was taken out again.
    assert [f" because {fields} changed: " in message for message in told] == [True, True]


async def test_threads_on_a_valkey_that_reads_them_at_its_start_are_named(
    ready: Operator,
) -> None:
    old = {"version": "8.1", "cpu": 4}
    ready.apply(spec(**old))
    await ready.settle()
    ready.apply(spec(**old, ioThreads=2))
    await ready.settle()
    *_, last = (e.message for e in ready.recorder.events if e.reason == "RestartingAllRanks")
    assert " because spec.store.ioThreads changed: " in last


async def test_paused_holds_a_restart_and_names_it(ready: Operator) -> None:
    pods = {name: pod["metadata"]["uid"] for name, pod in ready.pods().items()}
    writes = len([r for r in ready.cluster.writes if r.verb != "apply_status"])
    ready.apply({**spec(memoryPerRank="512Mi", eviction="LFU"), "paused": True})
    await ready.settle()
    assert {name: pod["metadata"]["uid"] for name, pod in ready.pods().items()} == pods
    assert len([r for r in ready.cluster.writes if r.verb != "apply_status"]) == writes
    assert ready.condition("StoreReady")["reason"] == "Paused"
    assert "StatefulSet demo-r0" in ready.condition("StoreReady")["message"]
    ready.apply({**spec(memoryPerRank="512Mi", eviction="LFU"), "paused": False})
    await ready.settle()
    assert not set(pods.values()) & {pod["metadata"]["uid"] for pod in ready.pods().values()}


async def test_rollout_restart_of_one_rank_restarts_that_rank_with_a_warning(
    ready: Operator,
) -> None:
    before = {name: pod["metadata"]["uid"] for name, pod in ready.pods().items()}
    annotation = {"kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z"}
    ready.cluster.edit(
        STATEFULSET,
        NAMESPACE,
        "demo-r1",
        {"spec": {"template": {"metadata": {"annotations": annotation}}}},
    )
    await ready.settle()
    after = {name: pod["metadata"]["uid"] for name, pod in ready.pods().items()}
    assert after["demo-r0-0"] == before["demo-r0-0"]
    assert after["demo-r1-0"] != before["demo-r1-0"]
    event = next(e for e in ready.recorder.events if e.reason == "RestartingRanks")
    assert event.type == "Warning"
    assert "rank 1 of 2" in event.message


def container(operator: Operator, statefulset: str) -> dict[str, Any]:
    template = operator.statefulsets()[statefulset]["spec"]["template"]
    found: dict[str, Any] = template["spec"]["containers"][0]
    return found


async def test_another_rendering_of_the_same_spec_restarts_nothing(
    ready: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What an upgrade of the operator does: the same spec, another template.
    monkeypatch.setattr("kvtier.render.statefulset.GRACE_SECONDS", 77)
    pods = ready.uids()
    ready.restart()
    ready.queue.add(KEY)
    await ready.settle()
    assert ready.uids() == pods
    assert ready.condition("Ready")["status"] == "True"
    # The template waits for the next restart that somebody asks for.
    spec_of = ready.statefulsets()["demo-r0"]["spec"]["template"]["spec"]
    assert spec_of["terminationGracePeriodSeconds"] == 77
    writes = len(ready.cluster.writes)
    await ready.resync()
    assert len(ready.cluster.writes) == writes


async def test_an_edited_template_is_put_back_and_restarts_nothing(
    ready: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    for grace in (5, 77):
        # The second time after an upgrade: the pods then run another template than the wanted one.
        monkeypatch.setattr("kvtier.render.statefulset.GRACE_SECONDS", grace)
        await ready.resync()
        pods = ready.uids()
        image = container(ready, "demo-r0")["image"]
        edited = [{**container(ready, "demo-r0"), "image": "evil:1"}]
        template = {"spec": {"containers": edited}}
        ready.cluster.edit(STATEFULSET, NAMESPACE, "demo-r0", {"spec": {"template": template}})
        await ready.settle()
        assert container(ready, "demo-r0")["image"] == image
        assert ready.uids() == pods


async def test_a_restart_hash_that_somebody_took_away_restarts_nothing(ready: Operator) -> None:
    pods = ready.uids()
    gone = {"metadata": {"annotations": {"kvtier.dev/restart-hash": None}}}
    ready.cluster.edit(STATEFULSET, NAMESPACE, "demo-r0", {"spec": {"template": gone}})
    await ready.settle()
    assert ready.uids() == pods


async def test_a_tier_is_not_ready_while_its_pods_are_not_what_the_spec_asks_for(
    ready: Operator,
) -> None:
    seen: list[tuple[str, str]] = []
    ready.cluster.watch(
        lambda _, obj: (
            seen.extend(
                (each["status"], each["reason"])
                for each in obj["status"]["conditions"]
                if each["type"] == "StoreReady" and each["observedGeneration"] == 2
            )
            if obj["kind"] == "KVCacheTier" and obj.get("status")
            else None
        )
    )
    ready.apply(spec(memoryPerRank="512Mi"))
    await ready.settle()
    assert seen[0] == ("False", "Rolling")
    assert ready.condition("Ready")["status"] == "True"


async def test_a_rank_that_is_about_to_restart_is_not_told_a_maxmemory_above_its_limit(
    ready: Operator,
) -> None:
    servers = [ready.server("demo-r0-0"), ready.server("demo-r1-0")]
    ready.apply(spec(memoryPerRank="512Mi"))
    await ready.settle()
    assert not [call for server in servers for call in server.calls if call.name == "config_set"]


async def test_a_restart_waits_until_the_edited_template_is_put_right(ready: Operator) -> None:
    edited = [{**container(ready, "demo-r0"), "image": "evil:1"}]
    annotation = {"kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z"}
    template = {"metadata": {"annotations": annotation}, "spec": {"containers": edited}}
    ready.cluster.edit(STATEFULSET, NAMESPACE, "demo-r0", {"spec": {"template": template}})
    # The controller of StatefulSets has seen the edit before kvtier has.
    ready.cluster.run_statefulsets()
    await ready.settle()
    verbs = [
        (request.verb, request.kind.kind)
        for request in ready.cluster.requests
        if request.name == "demo-r0" or request.kind in (POD, STATEFULSET)
    ]
    put_right = verbs.index(("apply", "StatefulSet"))
    deleted = verbs.index(("delete", "Pod"))
    assert ("list", "StatefulSet") in verbs[put_right:deleted]
    assert ready.pods()["demo-r0-0"]["spec"]["containers"][0]["image"] != "evil:1"


async def test_no_rank_restarts_before_its_statefulset_has_taken_the_new_template_up(
    ready: Operator,
) -> None:
    pods = ready.uids()
    ready.apply(spec(memoryPerRank="512Mi"))
    for _ in range(3):
        await ready.settle(kubelets=False)
        ready.queue.add(KEY, dirty=frozenset({"StatefulSet"}))
    assert not [request for request in ready.cluster.requests if request.verb == "delete"]
    await ready.settle()
    assert not set(ready.uids().values()) & set(pods.values())


async def test_what_waits_while_paused_are_no_settings_of_ranks_that_must_restart(
    ready: Operator,
) -> None:
    ready.apply({**spec(memoryPerRank="512Mi"), "paused": True})
    await ready.settle()
    waiting = ready.condition("StoreReady")["message"]
    assert "restart 2 ranks" in waiting
    assert "settings of rank" not in waiting
