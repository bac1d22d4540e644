"""The reconciler on fakes: one cluster and its Valkeys in memory."""

import pytest
from tier_harness import KEY, RESYNC, Operator, spec

from kvtier.cluster.protocol import (
    CONFIGMAP,
    SECRET,
    SERVICE,
    STATEFULSET,
    TIER,
    Object,
    TooManyRequests,
    Unavailable,
)
from kvtier.reconcile.clock import FakeClock
from kvtier.reconcile.execute import NotLeading
from kvtier.store.fake import Fault
from kvtier.store.protocol import StoreUnreachable

NAMESPACE = KEY[0]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def operator(clock: FakeClock) -> Operator:
    return Operator(clock)


@pytest.fixture
async def ready(operator: Operator) -> Operator:
    """An operator with one tier that is Ready."""
    operator.apply()
    await operator.settle()
    assert operator.condition("Ready")["status"] == "True"
    return operator


async def test_an_applied_tier_becomes_ready_with_a_valkey_per_rank(ready: Operator) -> None:
    assert set(ready.statefulsets()) == {"demo-r0", "demo-r1"}
    assert ready.status()["ranks"] == "2/2"
    assert [rank["ready"] for rank in ready.status()["rankStates"]] == [True, True]
    secret = ready.cluster.peek(SECRET, NAMESPACE, ready.status()["engineSecret"])
    assert secret is not None
    assert ready.condition("PlacementAccepted")["status"] == "Unknown"
    assert ready.status()["verdict"] == "Unknown"


async def test_a_bring_up_writes_each_object_once_and_nothing_superfluous(ready: Operator) -> None:
    written = [(r.verb, r.kind.kind, r.name) for r in ready.cluster.writes]
    creates = [entry for entry in written if entry[0] == "create"]
    assert len(creates) == len(set(creates)) == 3 + 1 + 2 + 2
    assert {verb for verb, _, _ in written} == {"create", "apply_status"}


async def test_events_tell_a_creation_a_change_and_a_repair_apart(ready: Operator) -> None:
    ready.apply(spec(eviction="LFU"))
    await ready.settle()
    ready.cluster.remove(SERVICE, NAMESPACE, "demo-r0")
    await ready.settle()
    ready.cluster.edit(STATEFULSET, NAMESPACE, "demo-r1", {"spec": {"replicas": 0}})
    await ready.settle()
    told = [f"{event.reason}: {event.message}" for event in ready.recorder.events]
    assert told == [
        "Created: Created: Secret demo-operator, Secret demo-acl, Secret "
        f"{ready.status()['engineSecret']} and 5 more.",
        "Applied: Applied: data.valkey.conf of ConfigMap demo-valkey.",
        "Repaired: Created again: Service demo-r0.",
        "Repaired: Brought back: spec.replicas of StatefulSet demo-r1.",
    ]


async def test_a_resync_of_a_ready_tier_writes_nothing(ready: Operator) -> None:
    before = len(ready.cluster.writes)
    await ready.resync()
    assert len(ready.cluster.writes) == before


async def test_a_restarted_operator_writes_nothing(ready: Operator) -> None:
    before = len(ready.cluster.writes)
    ready.restart()
    ready.queue.add(KEY)
    await ready.settle()
    assert len(ready.cluster.writes) == before


async def test_events_of_own_writes_cost_no_reads(ready: Operator) -> None:
    ready.cluster.requests.clear()
    obj = ready.cluster.peek(SERVICE, NAMESPACE, "demo-r0")
    assert obj is not None
    ready.watcher.on_child({"type": "MODIFIED", "object": obj})
    await ready.settle()
    assert ready.cluster.requests == []


@pytest.mark.parametrize(
    ("kind", "name"),
    [(STATEFULSET, "demo-r1"), (SERVICE, "demo-r0"), (CONFIGMAP, "demo-valkey")],
    ids=lambda value: getattr(value, "kind", value),
)
async def test_a_deleted_child_is_made_again_at_once(
    ready: Operator, kind: object, name: str
) -> None:
    ready.cluster.remove(kind, NAMESPACE, name)  # type: ignore[arg-type]
    await ready.settle()
    assert ready.cluster.peek(kind, NAMESPACE, name) is not None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "name", "patch", "path"),
    [
        (STATEFULSET, "demo-r1", {"spec": {"replicas": 0}}, ("spec", "replicas")),
        (SERVICE, "demo-r0", {"spec": {"selector": {"a": "b"}}}, ("spec", "selector")),
        (CONFIGMAP, "demo-valkey", {"data": {"valkey.conf": "x"}}, ("data", "valkey.conf")),
    ],
    ids=["StatefulSet", "Service", "ConfigMap"],
)
async def test_an_edited_child_is_brought_back_at_once(
    ready: Operator, kind: object, name: str, patch: dict[str, object], path: tuple[str, str]
) -> None:
    before = ready.cluster.peek(kind, NAMESPACE, name)  # type: ignore[arg-type]
    ready.cluster.edit(kind, NAMESPACE, name, patch)  # type: ignore[arg-type]
    await ready.settle()
    after = ready.cluster.peek(kind, NAMESPACE, name)  # type: ignore[arg-type]
    assert before is not None
    assert after is not None
    wanted, found = before[path[0]][path[1]], after[path[0]][path[1]]
    if isinstance(wanted, dict):
        assert wanted.items() <= found.items()
    else:
        assert wanted == found


@pytest.mark.parametrize("name", ["demo-acl", "demo-operator", "engine"])
async def test_a_deleted_secret_comes_back_with_its_token_at_the_resync(
    ready: Operator, name: str
) -> None:
    name = ready.status()["engineSecret"] if name == "engine" else name
    before = ready.cluster.peek(SECRET, NAMESPACE, name)
    ready.cluster.remove(SECRET, NAMESPACE, name)
    await ready.resync()
    after = ready.cluster.peek(SECRET, NAMESPACE, name)
    assert before is not None
    assert after is not None
    assert after["data"] == before["data"]


@pytest.mark.parametrize("lost", [["demo-acl"], ["demo-operator"], ["demo-acl", "engine"]])
async def test_a_lost_secret_is_adopted_from_what_is_left_by_another_process(
    ready: Operator, lost: list[str]
) -> None:
    names = [ready.status()["engineSecret"] if name == "engine" else name for name in lost]
    before = {name: ready.cluster.peek(SECRET, NAMESPACE, name) for name in names}
    for name in names:
        ready.cluster.remove(SECRET, NAMESPACE, name)
    ready.restart()
    ready.queue.add(KEY)
    await ready.settle()
    for name, secret in before.items():
        after = ready.cluster.peek(SECRET, NAMESPACE, name)
        assert secret is not None
        assert after is not None
        assert after["data"] == secret["data"]
    assert not ready.recorder.reasons() or "RestartingAllRanks" not in ready.recorder.reasons()


async def test_a_record_that_nobody_can_name_is_reported_and_no_token_is_made(
    ready: Operator,
) -> None:
    for name in ("demo-acl", "demo-operator"):
        ready.cluster.remove(SECRET, NAMESPACE, name)
    ready.restart()
    ready.queue.add(KEY)
    await ready.settle()
    assert ready.condition("SpecValid")["reason"] == "RecordUnreadable"
    assert ready.cluster.peek(SECRET, NAMESPACE, "demo-acl") is None


async def test_a_foreign_object_of_a_rank_s_name_is_left_alone_and_reported(
    operator: Operator,
) -> None:
    foreign = operator.cluster.seed(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"namespace": NAMESPACE, "name": "demo-r0"},
            "spec": {"ports": [{"port": 80}]},
        }
    )
    operator.apply()
    await operator.settle()
    assert operator.condition("StoreReady")["reason"] == "NameConflict"
    assert "Service demo-r0" in operator.condition("Ready")["message"]
    assert operator.cluster.peek(SERVICE, NAMESPACE, "demo-r0") == foreign
    writes = len(operator.cluster.writes)
    await operator.resync()
    assert len(operator.cluster.writes) == writes
    operator.cluster.remove(SERVICE, NAMESPACE, "demo-r0")
    await operator.resync()
    assert operator.condition("Ready")["status"] == "True"


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
    assert "the pods' containers[valkey].resources" in event.message
    assert ready.condition("Ready")["status"] == "True"


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


async def test_another_rendering_of_the_same_spec_restarts_nothing(
    ready: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What an upgrade of the operator does: the same spec, another template.
    monkeypatch.setattr("kvtier.render.statefulset.GRACE_SECONDS", 77)
    pods = {name: pod["metadata"]["uid"] for name, pod in ready.pods().items()}
    writes = len(ready.cluster.writes)
    ready.restart()
    ready.queue.add(KEY)
    await ready.settle()
    assert {name: pod["metadata"]["uid"] for name, pod in ready.pods().items()} == pods
    assert len(ready.cluster.writes) == writes


async def test_a_held_template_does_not_take_over_what_kubectl_annotated(
    ready: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    annotation = {"kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z"}
    template = {"metadata": {"annotations": annotation}}
    ready.cluster.edit(STATEFULSET, NAMESPACE, "demo-r1", {"spec": {"template": template}})
    await ready.settle()
    pods = {name: pod["metadata"]["uid"] for name, pod in ready.pods().items()}
    with monkeypatch.context() as another_release:
        another_release.setattr("kvtier.render.statefulset.GRACE_SECONDS", 77)
        ready.cluster.edit(STATEFULSET, NAMESPACE, "demo-r1", {"spec": {"replicas": 2}})
        await ready.settle()
    # Back to the release that rendered what runs: a full apply again.
    ready.cluster.edit(STATEFULSET, NAMESPACE, "demo-r1", {"spec": {"replicas": 2}})
    await ready.settle()
    after = ready.statefulsets()["demo-r1"]["spec"]["template"]["metadata"]["annotations"]
    assert annotation.items() <= after.items()
    assert {name: pod["metadata"]["uid"] for name, pod in ready.pods().items()} == pods


async def test_a_rank_that_is_about_to_restart_is_not_told_a_maxmemory_above_its_limit(
    ready: Operator,
) -> None:
    servers = [ready.server("demo-r0-0"), ready.server("demo-r1-0")]
    ready.apply(spec(memoryPerRank="512Mi"))
    await ready.settle()
    assert not [call for server in servers for call in server.calls if call.name == "config_set"]


async def test_an_identity_edit_is_refused_with_the_ranks_untouched(ready: Operator) -> None:
    changed = spec()
    changed["model"]["revision"] = "r2"
    writes = len([r for r in ready.cluster.writes if r.verb != "apply_status"])
    ready.apply(changed)
    await ready.settle()
    assert ready.condition("SpecValid")["reason"] == "GenerationChangeNotSupported"
    assert ready.condition("Ready")["status"] == "False"
    assert ready.condition("StoreReady")["status"] == "True"
    assert len([r for r in ready.cluster.writes if r.verb != "apply_status"]) == writes
    ready.apply(spec())
    await ready.settle()
    assert ready.condition("Ready")["status"] == "True"


async def test_an_invalid_spec_is_refused_by_condition(operator: Operator) -> None:
    operator.apply(spec(memoryPerRank="1"))
    await operator.settle()
    assert operator.condition("SpecValid")["reason"] == "InvalidSpec"
    assert "memoryPerRank" in operator.condition("SpecValid")["message"]
    assert operator.statefulsets() == {}


async def test_a_deleted_tier_is_left_to_the_garbage_collector(ready: Operator) -> None:
    ready.cluster.edit(TIER, *KEY, {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
    ready.queue.add(KEY)
    ready.cluster.remove(STATEFULSET, NAMESPACE, "demo-r0")
    await ready.settle(kubelets=False)
    assert "demo-r0" not in ready.statefulsets()
    ready.cluster.remove(TIER, *KEY)
    ready.cluster.collect_garbage()
    assert ready.statefulsets() == {}
    assert ready.cluster.all(SECRET) == []


async def test_a_refused_write_is_reported_and_tried_again(operator: Operator) -> None:
    busy = TooManyRequests(status=429, reason="TooManyRequests", message="slow down")
    operator.cluster.fail(busy, verb="create", kind=STATEFULSET, name="demo-r1", times=1)
    operator.apply()
    with pytest.raises(TooManyRequests):
        await operator.settle()
    assert operator.condition("StoreReady")["reason"] == "ApplyFailed"
    operator.queue.add(KEY)
    await operator.settle()
    assert operator.condition("Ready")["status"] == "True"


async def test_an_unanswered_create_of_the_record_makes_no_second_token(
    operator: Operator,
) -> None:
    lost = Unavailable(status=0, reason="Timeout", message="no answer")
    operator.cluster.fail(lost, verb="create", kind=SECRET, name="demo-acl", when="after")
    operator.apply()
    with pytest.raises(Unavailable):
        await operator.settle()
    stored = operator.cluster.peek(SECRET, NAMESPACE, "demo-acl")
    operator.queue.add(KEY)
    await operator.settle()
    after = operator.cluster.peek(SECRET, NAMESPACE, "demo-acl")
    assert stored is not None
    assert after is not None
    assert stored["data"] == after["data"]
    assert operator.condition("Ready")["status"] == "True"


async def test_without_the_lease_nothing_is_written(operator: Operator) -> None:
    operator.leads = False
    operator.apply()
    with pytest.raises(NotLeading):
        await operator.settle()
    assert operator.cluster.writes == []


async def test_a_field_that_does_not_stay_is_applied_once_and_reported(
    ready: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What a mutating webhook does that has another opinion.
    applied = 0

    async def apply(obj: Object, *, uid: str) -> Object:
        nonlocal applied
        del uid
        applied += 1
        found = ready.cluster.peek(CONFIGMAP, NAMESPACE, obj["metadata"]["name"])
        assert found is not None
        return found

    monkeypatch.setattr(ready.cluster, "apply", apply)
    ready.cluster.edit(CONFIGMAP, NAMESPACE, "demo-valkey", {"data": {"valkey.conf": "mine"}})
    await ready.settle()
    for _ in range(3):
        ready.queue.add(KEY, dirty=frozenset({"ConfigMap"}))
        await ready.settle()
    assert applied == 1
    assert "data.valkey.conf" in ready.condition("StoreReady")["message"]


async def test_a_busy_tier_is_still_read_in_full_when_the_resync_is_due(
    ready: Operator, clock: FakeClock
) -> None:
    ready.cluster.remove(SECRET, NAMESPACE, "demo-operator")
    await clock.advance(RESYNC + 1)
    ready.queue.add(KEY, dirty=frozenset({"StatefulSet"}))
    await ready.settle()
    assert ready.cluster.peek(SECRET, NAMESPACE, "demo-operator") is not None
