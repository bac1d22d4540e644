"""The reconciler on fakes: what it creates, repairs and leaves alone."""

import pytest
from tier_harness import KEY, Operator, spec

from kvtier.cluster.protocol import (
    CONFIGMAP,
    POD,
    SECRET,
    SERVICE,
    STATEFULSET,
    Object,
)
from kvtier.reconcile.memory import SECRETS_SECONDS

NAMESPACE = KEY[0]


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
    assert len(creates) == len(set(creates)) == 5 + 1 + 2 + 2
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
        f"{ready.status()['engineSecret']} and 7 more.",
        "Applied: Applied: data.valkey.conf of ConfigMap demo-valkey.",
        "Repaired: Created again: Service demo-r0.",
        "Repaired: Brought back: spec.replicas of StatefulSet demo-r1.",
    ]


async def test_a_resync_of_a_ready_tier_writes_nothing(ready: Operator) -> None:
    before = len(ready.cluster.writes)
    await ready.resync()
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


async def test_a_secret_that_a_rank_waits_for_is_made_again_before_the_resync(
    ready: Operator,
) -> None:
    def reads() -> int:
        return sum(r.verb == "get" and r.kind == SECRET for r in ready.cluster.requests)

    async def after(seconds: float) -> None:
        await ready.clock.advance(seconds)
        ready.queue.add(KEY)
        await ready.settle(kubelets=False)

    before = ready.cluster.peek(SECRET, NAMESPACE, "demo-acl")
    ready.cluster.remove(SECRET, NAMESPACE, "demo-acl")
    ready.cluster.remove(POD, NAMESPACE, "demo-r1-0")
    ready.queue.add(KEY, dirty=frozenset({"StatefulSet"}))
    await ready.settle(kubelets=False)
    known = reads()
    await after(SECRETS_SECONDS - 1)
    assert reads() == known
    assert ready.cluster.peek(SECRET, NAMESPACE, "demo-acl") is None
    await after(1)
    found = ready.cluster.peek(SECRET, NAMESPACE, "demo-acl")
    assert found is not None
    assert before is not None
    assert found["data"] == before["data"]
    known = reads()
    await after(SECRETS_SECONDS - 1)
    assert reads() == known, "again at once"


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


async def test_a_field_that_does_not_stay_is_applied_once_and_reported(
    ready: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What a mutating webhook does that has another opinion.
    applied = 0

    async def apply(obj: Object, *, uid: str, resource_version: str | None) -> Object:
        nonlocal applied
        del uid, resource_version
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


async def test_a_second_owner_is_no_drift(ready: Operator) -> None:
    found = ready.cluster.peek(SERVICE, NAMESPACE, "demo-r1")
    assert found is not None
    other = {"apiVersion": "v1", "kind": "ConfigMap", "name": "demo", "uid": "other"}
    owners = [*found["metadata"]["ownerReferences"], other]
    writes = len(ready.cluster.writes)
    ready.cluster.edit(SERVICE, NAMESPACE, "demo-r1", {"metadata": {"ownerReferences": owners}})
    await ready.settle()
    assert len(ready.cluster.writes) == writes


async def test_a_selector_with_one_key_more_is_put_back(ready: Operator) -> None:
    before = ready.cluster.peek(SERVICE, NAMESPACE, "demo-r0")
    ready.cluster.edit(SERVICE, NAMESPACE, "demo-r0", {"spec": {"selector": {"app": "x"}}})
    applies = len([r for r in ready.cluster.requests if r.verb == "apply"])
    await ready.settle()
    assert before is not None
    assert len([r for r in ready.cluster.requests if r.verb == "apply"]) == applies + 1


async def test_a_child_that_lost_the_label_it_is_listed_by_gets_it_back(ready: Operator) -> None:
    labels = {"kvtier.dev/tier-name": "zzz"}
    ready.cluster.edit(SERVICE, NAMESPACE, "demo-r1", {"metadata": {"labels": labels}})
    ready.queue.add(KEY, dirty=frozenset({"Service"}))
    await ready.settle()
    found = ready.cluster.peek(SERVICE, NAMESPACE, "demo-r1")
    assert found is not None
    assert found["metadata"]["labels"]["kvtier.dev/tier-name"] == "demo"


async def test_pods_of_a_stranger_s_statefulset_are_left_alone(ready: Operator) -> None:
    ready.cluster.edit(STATEFULSET, NAMESPACE, "demo-r0", {"metadata": {"ownerReferences": []}})
    annotation = {"kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z"}
    template = {"metadata": {"annotations": annotation}}
    ready.cluster.edit(STATEFULSET, NAMESPACE, "demo-r0", {"spec": {"template": template}})
    pods = ready.uids()
    await ready.settle()
    assert ready.uids() == pods
    assert ready.condition("StoreReady")["reason"] == "NameConflict"
    assert ready.status()["ranks"] == "1/2"
