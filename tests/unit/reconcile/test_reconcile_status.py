"""The reconciler on fakes: refusals, errors, deletions, and what the status says of them."""

import pytest
from tier_harness import KEY, RESYNC, Operator, spec

from kvtier.cluster.fake import Request
from kvtier.cluster.protocol import (
    EVENT,
    POD,
    SECRET,
    SERVICE,
    STATEFULSET,
    TIER,
    Conflict,
    Forbidden,
    TooManyRequests,
    Unavailable,
)
from kvtier.reconcile.clock import FakeClock
from kvtier.reconcile.execute import NotLeading
from kvtier.store.fake import Fault
from kvtier.store.protocol import StoreUnreachable

NAMESPACE = KEY[0]


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


async def test_without_the_lease_nothing_is_written(operator: Operator) -> None:
    operator.leads = False
    operator.apply()
    with pytest.raises(NotLeading):
        await operator.settle()
    assert operator.cluster.writes == []


async def lose_the_lease_after(operator: Operator, verb: str) -> None:
    """Reconcile; the Lease runs out as soon as the first such call is carried out."""

    def lose(request: Request, when: str) -> None:
        if (request.verb, when) == (verb, "after"):
            operator.leads = False

    operator.cluster.faults.append(lose)
    with pytest.raises(NotLeading):
        await operator.reconcile_all()
    assert not operator.leads, f"nothing asked for {verb}"


async def test_no_pod_is_deleted_once_the_lease_is_lost_between_creates_and_deletions(
    ready: Operator,
) -> None:
    ready.apply(spec(memoryPerRank="512Mi"))
    await ready.reconcile_all()
    # The StatefulSets have the new template, and the restart is due.
    ready.cluster.run_statefulsets()
    ready.cluster.remove(SERVICE, NAMESPACE, "demo-r0")
    pods = ready.uids()
    await lose_the_lease_after(ready, "create")
    assert {each.verb for each in ready.cluster.requests} & {"delete", "force_delete"} == set()
    assert ready.uids() == pods
    ready.leads = True
    ready.cluster.faults.clear()
    ready.queue.add(KEY)
    await ready.settle()
    assert not set(ready.uids().values()) & set(pods.values())


async def test_no_store_is_told_once_the_lease_is_lost_after_the_applies(ready: Operator) -> None:
    before = [dict(ready.server(pod).config) for pod in ready.pods()]
    ready.apply(spec(eviction="LFU"))
    await lose_the_lease_after(ready, "apply")
    assert [dict(ready.server(pod).config) for pod in ready.pods()] == before
    ready.leads = True
    ready.cluster.faults.clear()
    ready.queue.add(KEY)
    await ready.settle()
    assert [dict(ready.server(pod).config) for pod in ready.pods()] != before


async def test_a_busy_tier_is_still_read_in_full_when_the_resync_is_due(
    ready: Operator, clock: FakeClock
) -> None:
    ready.cluster.remove(SECRET, NAMESPACE, "demo-operator")
    await clock.advance(RESYNC + 1)
    ready.queue.add(KEY, dirty=frozenset({"StatefulSet"}))
    await ready.settle()
    assert ready.cluster.peek(SECRET, NAMESPACE, "demo-operator") is not None


async def test_a_tier_made_again_under_its_name_is_another_tier(ready: Operator) -> None:
    old = ready.cluster.peek(SECRET, NAMESPACE, "demo-operator")
    ready.cluster.remove(TIER, *KEY)
    ready.queue.dirty.clear()  # the deletion's own event is late
    changed = spec()
    changed["model"]["revision"] = "r2"
    ready.apply(changed)
    await ready.reconcile_all()
    assert "deleted tier" in ready.condition("StoreReady")["message"]
    ready.cluster.collect_garbage()
    ready.queue.add(KEY)
    await ready.settle()
    assert ready.condition("Ready")["status"] == "True"
    new = ready.cluster.peek(SECRET, NAMESPACE, "demo-operator")
    assert old is not None
    assert new is not None
    assert old["data"] != new["data"]


async def test_a_paused_tier_without_a_child_is_not_ready(ready: Operator) -> None:
    ready.apply({**spec(), "paused": True})
    await ready.settle()
    assert ready.condition("Ready")["status"] == "True"
    ready.cluster.remove(SERVICE, NAMESPACE, "demo-r1")
    await ready.settle()
    assert ready.condition("StoreReady")["status"] == "False"
    assert "create Service demo-r1" in ready.condition("StoreReady")["message"]


async def test_what_changes_while_the_spec_is_refused_is_seen_once_it_is_accepted(
    ready: Operator,
) -> None:
    ready.apply({**spec(memoryPerRank="1")})
    await ready.settle()
    ready.cluster.remove(SERVICE, NAMESPACE, "demo-r0")
    await ready.settle()
    ready.apply(spec())
    await ready.settle()
    assert ready.cluster.peek(SERVICE, NAMESPACE, "demo-r0") is not None


async def test_a_rank_that_does_not_answer_is_not_asked_at_every_event(
    operator: Operator, clock: FakeClock
) -> None:
    operator.apply()
    await operator.settle()
    operator.restart()
    server = operator.server("demo-r0-0")
    server.faults.append(Fault(call="connect", error=StoreUnreachable("timed out"), times=99))
    asked = len(server.calls)
    for _ in range(5):
        operator.queue.add(KEY, dirty=frozenset({"Service"}))
        await operator.settle()
    assert len(server.calls) == asked + 1
    assert operator.condition("StoreReady")["reason"] == "SettingsNotApplied"
    server.faults.clear()
    await clock.advance(6)
    operator.queue.add(KEY)
    await operator.settle()
    assert operator.condition("Ready")["status"] == "True"


async def test_a_foreign_condition_costs_no_writes(ready: Operator) -> None:
    foreign = {"type": "Reviewed", "status": "True", "reason": "Yes", "message": ""}
    ready.apply(spec(eviction="LFU"))
    await ready.settle()
    ready.cluster.edit(
        TIER, *KEY, {"status": {"conditions": [*ready.status()["conditions"], foreign]}}
    )
    writes = len(ready.cluster.writes)
    for _ in range(3):
        await ready.resync()
    assert len(ready.cluster.writes) == writes


async def test_why_a_pod_waits_is_told_even_if_only_the_pod_shows_it(
    operator: Operator, clock: FakeClock
) -> None:
    operator.apply()
    await operator.reconcile_all()
    operator.cluster.run_statefulsets(ready=lambda _: False)
    await operator.settle(kubelets=False)
    pod = operator.pods()["demo-r0-0"]
    waiting = {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}
    status = {"containerStatuses": [{**pod["status"]["containerStatuses"][0], "state": waiting}]}
    operator.cluster.edit(POD, NAMESPACE, "demo-r0-0", {"status": status})
    await clock.advance(6)
    operator.queue.add(KEY)
    await operator.settle(kubelets=False)
    assert "rank 0: ErrImagePull: no such image" in operator.condition("StoreReady")["message"]


async def test_a_rank_that_gets_no_pod_is_told_of_in_the_words_of_the_refusal(
    operator: Operator, clock: FakeClock
) -> None:
    operator.apply()
    await operator.settle(kubelets=False)
    owner = operator.statefulsets()["demo-r0"]["metadata"]
    operator.cluster.seed(
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"namespace": NAMESPACE, "name": "demo-r0.1"},
            "involvedObject": {"kind": "StatefulSet", "name": "demo-r0", "uid": owner["uid"]},
            "reason": "FailedCreate",
            "message": "exceeded quota: small",
        }
    )
    operator.queue.add(KEY)
    await operator.settle(kubelets=False)
    assert "no pod yet" in operator.condition("StoreReady")["message"], "asked before it is late"
    await clock.advance(10)
    operator.queue.add(KEY)
    await operator.settle(kubelets=False)
    said = operator.condition("StoreReady")["message"]
    assert "rank 0: exceeded quota: small" in said
    assert "rank 1: no pod yet" in said
    await operator.settle()
    assert operator.condition("Ready")["status"] == "True"


async def test_without_the_right_to_list_events_a_tier_is_reconciled_all_the_same(
    operator: Operator, clock: FakeClock
) -> None:
    operator.apply()
    await operator.settle(kubelets=False)
    forbidden = Forbidden(status=403, reason="Forbidden", message="events is forbidden")
    operator.cluster.fail(forbidden, verb="list", kind=EVENT, times=1)
    await clock.advance(10)
    operator.queue.add(KEY)
    await operator.settle(kubelets=False)
    assert "no pod yet" in operator.condition("StoreReady")["message"]


async def test_a_status_that_was_written_although_its_answer_was_lost_is_put_right(
    ready: Operator,
) -> None:
    ready.cluster.remove(POD, NAMESPACE, "demo-r0-0")
    lost = Unavailable(status=0, reason="Timeout", message="no answer")
    ready.cluster.fail(lost, verb="apply_status", when="after")
    ready.queue.add(KEY, dirty=frozenset({"StatefulSet"}))
    with pytest.raises(Unavailable):
        await ready.settle()
    assert ready.condition("StoreReady")["reason"] == "RanksNotReady"
    ready.cluster.run_statefulsets()
    ready._start_servers()
    # As before the loss: what was read then says nothing of what is there now.
    ready.queue.add(KEY, dirty=frozenset({"StatefulSet"}))
    await ready.settle()
    assert ready.condition("StoreReady")["reason"] == "AllRanksReady"


async def test_a_status_that_met_a_conflict_is_written_again(ready: Operator) -> None:
    ready.cluster.remove(POD, NAMESPACE, "demo-r0-0")
    conflict = Conflict(status=409, reason="Conflict", message="too many wrote at once")
    ready.cluster.fail(conflict, verb="apply_status")
    ready.queue.add(KEY, dirty=frozenset({"StatefulSet"}))
    await ready.settle(kubelets=False)
    assert ready.condition("StoreReady")["reason"] == "RanksNotReady"
