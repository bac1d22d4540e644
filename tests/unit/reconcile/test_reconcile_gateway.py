"""The reconciler on fakes: when Envoy Gateway gets a tier's limit, and when it is taken back."""

import copy
from typing import Any

import pytest
from gateway_harness import (
    BY_GATEWAY,
    NAME,
    by_gateway,
    changed,
    policy,
    ref,
    route,
)
from prometheus_client import generate_latest
from tier_harness import KEY

from kvtier.cluster.protocol import (
    POD,
    TIER,
    TRAFFIC_POLICY,
)
from kvtier.reconcile.clock import FakeClock


async def test_a_storm_writes_one_policy_and_its_end_removes_it(clock: FakeClock) -> None:
    found = await by_gateway(clock)
    assert found.policy is None
    assert found.enforced() == ("True", "Enforced")
    found.storm(8000.0)
    await found.steps()
    assert found.policy is not None
    assert found.rule() == {"requests": 4, "unit": "Second"}, "8000 / 1000 tokens / 2 Envoys"
    assert found.policy["spec"]["targetRefs"] == [ref("HTTPRoute", "chat")]
    (owner,) = found.policy["metadata"]["ownerReferences"]
    tier = found.operator.cluster.peek(TIER, *KEY)
    assert tier is not None
    assert (owner["uid"], owner["controller"]) == (tier["metadata"]["uid"], True)
    labels = '{namespace="serving",tier="demo"}'
    metric = f"kvtier_admission_policy_requests_per_second{labels}"
    assert f"{metric} 4.0" in generate_latest(found.operator.metrics.registry).decode()
    found.storm(8000.0, state="Recovering")
    await found.steps(3)
    found.open()
    await found.steps(3)
    assert found.policy is None
    assert found.writes() == ["create", "delete"]
    (written,) = found.events("PolicyWritten")
    (removed,) = found.events("PolicyRemoved")
    assert written == (
        "BackendTrafficPolicy demo-admission lets each of 2 Envoys pass 4 requests a second on"
        " chat."
    )
    assert removed == "BackendTrafficPolicy demo-admission is removed: all is let in."
    assert metric not in generate_latest(found.operator.metrics.registry).decode()


async def test_a_limit_that_hardly_moves_is_not_written_and_one_that_does_is(
    clock: FakeClock,
) -> None:
    found = await by_gateway(clock)
    found.storm(8000.0)
    await found.steps()
    for tokens in (8300.0, 7700.0, 8700.0, 7300.0, 8000.0):
        found.storm(tokens)
        await found.steps()
    assert found.writes() == ["create"]
    found.storm(9000.0)
    await found.steps()
    assert found.writes() == ["create", "apply"]
    assert found.rule()["requests"] == 4, "4.5 is rounded down, and remembered as 4.5"
    found.storm(9800.0)
    await found.steps(4)
    assert found.writes() == ["create", "apply"], "8.9 % more"
    found.storm(20_000.0)
    await found.steps()
    assert found.rule()["requests"] == 10


async def test_no_two_writes_come_within_five_seconds(clock: FakeClock) -> None:
    found = await by_gateway(clock)
    found.storm(8000.0)
    await found.steps()
    memory = found.operator.reconciler.memory.of(KEY)
    for tokens in (16_000.0, 4000.0, 20_000.0):
        found.storm(tokens)
        await clock.advance(1)
        await found.watcher.look()
        found.operator.queue.add(KEY)
        await found.operator.settle()
    assert memory.view is not None
    assert memory.view.limit == 20_000.0
    assert found.writes() == ["create"]
    await found.steps()
    assert found.writes() == ["create", "apply"]
    assert found.rule()["requests"] == 10


async def test_below_a_request_a_second_the_bucket_is_of_a_minute_and_written_seldom(
    clock: FakeClock,
) -> None:
    found = await by_gateway(clock)
    found.storm(1000.0)
    await found.steps()
    assert found.rule() == {"requests": 30, "unit": "Minute"}
    found.storm(500.0)
    await found.steps(11)
    assert found.writes() == ["create"], "each write lets half a minute's requests in at once"
    await found.steps()
    assert found.rule() == {"requests": 15, "unit": "Minute"}


async def test_a_limit_that_is_told_while_all_is_let_in_is_none(clock: FakeClock) -> None:
    found = await by_gateway(clock)
    found.storm(8000.0, state="Open")
    await found.steps(3)
    assert found.writes() == []


async def test_in_observe_nothing_is_asked_or_written(clock: FakeClock) -> None:
    found = await by_gateway(clock, changed(mode="Observe"))
    asked = found.asked()
    found.storm(8000.0)
    await found.steps(5)
    assert found.writes() == []
    assert found.asked() == asked
    assert found.enforced() == ("False", "ObserveOnly")


@pytest.mark.parametrize(
    "admission",
    [
        {"mode": "Observe", "envoyGateway": BY_GATEWAY["admission"]["envoyGateway"]},
        {"mode": "Enforce"},
    ],
    ids=["Observe", "no envoyGateway"],
)
async def test_who_takes_it_out_of_the_spec_in_a_storm_has_it_removed(
    clock: FakeClock, admission: dict[str, Any]
) -> None:
    found = await by_gateway(clock)
    found.storm(8000.0)
    await found.steps()
    body = found.operator.cluster.peek(TIER, *KEY)
    assert body is not None
    whole = {"envoyGateway": None, **admission}
    found.operator.cluster.edit(TIER, *KEY, {"spec": {"admission": whole}})
    found.operator.cluster.edit(TIER, *KEY, {"metadata": {"generation": 2}})
    await found.operator.settle()
    assert found.policy is None
    assert found.writes() == ["create", "delete"]


async def test_at_rest_it_asks_every_few_minutes_and_writes_nothing(clock: FakeClock) -> None:
    found = await by_gateway(clock)
    asked, writes = found.asked(), len(found.operator.cluster.writes)
    await found.steps(5)
    await clock.advance(200)
    await found.steps()
    assert found.asked() == asked
    await found.operator.resync()
    # Policies here, the route, policies where its Gateway is.
    assert found.asked() == asked + 3
    assert len(found.operator.cluster.writes) == writes


async def test_in_a_storm_it_asks_every_ten_seconds(clock: FakeClock) -> None:
    found = await by_gateway(clock)
    found.storm(8000.0)
    await found.steps()
    asked = found.asked()
    await found.steps(12)
    assert found.asked() - asked == 6 * 3


async def test_changed_routes_and_replicas_are_applied_in_the_storm(clock: FakeClock) -> None:
    found = await by_gateway(clock, None, route("batch"))
    found.storm(8000.0)
    await found.steps()
    gateway = {"routes": ["chat", "batch"], "replicas": 4}
    found.operator.cluster.edit(TIER, *KEY, {"spec": {"admission": {"envoyGateway": gateway}}})
    await found.steps(2)
    assert found.policy is not None
    names = [each["name"] for each in found.policy["spec"]["targetRefs"]]
    assert names == ["chat", "batch"]
    assert found.rule()["requests"] == 2
    assert found.writes() == ["create", "apply"]


async def test_what_somebody_else_changed_is_brought_back(clock: FakeClock) -> None:
    found = await by_gateway(clock)
    found.storm(8000.0)
    await found.steps()
    rules = [{"limit": {"requests": 0, "unit": "Second"}}]
    edit = {"spec": {"rateLimit": {"local": {"rules": rules}}}}
    found.operator.cluster.edit(TRAFFIC_POLICY, KEY[0], NAME, edit)
    await found.steps(3)
    assert found.rule()["requests"] == 4


async def test_a_policy_that_somebody_deletes_comes_back_while_the_storm_lasts(
    clock: FakeClock,
) -> None:
    found = await by_gateway(clock)
    found.storm(8000.0)
    await found.steps()
    found.operator.cluster.remove(TRAFFIC_POLICY, KEY[0], NAME)
    await found.steps(3)
    assert found.policy is not None


async def test_a_new_process_in_a_storm_keeps_the_policy(clock: FakeClock) -> None:
    found = await by_gateway(clock)
    found.storm(8000.0)
    await found.steps(2)
    before = found.policy
    await found.restart()
    await found.operator.settle()
    assert found.policy == before, "nobody has looked yet"
    found.storm(8200.0)
    await found.steps(4)
    assert found.policy == before
    assert found.writes() == ["create"]
    assert found.events("PolicyWritten") == []


async def test_a_new_process_after_the_storm_removes_the_policy(clock: FakeClock) -> None:
    found = await by_gateway(clock)
    found.storm(8000.0)
    await found.steps(2)
    found.open()
    await found.restart()
    await found.operator.settle()
    await found.steps(2)
    assert found.policy is None


async def test_a_new_process_removes_what_nobody_asks_for_any_more(clock: FakeClock) -> None:
    found = await by_gateway(clock)
    found.storm(8000.0)
    await found.steps(2)
    found.operator.cluster.edit(TIER, *KEY, {"spec": {"admission": {"envoyGateway": None}}})
    await found.restart()
    await found.operator.settle()
    assert found.policy is None


async def test_a_spec_that_is_refused_in_a_storm_lets_all_in(clock: FakeClock) -> None:
    found = await by_gateway(clock)
    found.storm(8000.0)
    await found.steps()
    found.operator.cluster.edit(TIER, *KEY, {"spec": {"pool": {"ranks": 0}}})
    await found.operator.settle()
    assert found.operator.condition("SpecValid")["status"] == "False"
    assert found.policy is None
    found.operator.cluster.edit(TIER, *KEY, {"spec": {"pool": {"ranks": 2}}})
    await found.steps(3)
    assert found.policy is not None


async def test_a_paused_tier_has_its_policy_too(clock: FakeClock) -> None:
    found = await by_gateway(clock, {**BY_GATEWAY, "paused": False})
    found.operator.cluster.edit(TIER, *KEY, {"spec": {"paused": True}})
    found.storm(8000.0)
    await found.steps(2)
    assert found.policy is not None


async def test_without_a_limiter_the_operators_own_limit_counts(clock: FakeClock) -> None:
    found = await by_gateway(clock, limiter=False)
    assert found.enforced() == ("True", "Enforced")
    assert "Envoy Gateway, in requests" in found.operator.condition("AdmissionEnforced")["message"]
    found.operator.cluster.edit(
        POD, KEY[0], "demo-r1-0", {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    )
    found.operator.queue.add(KEY, dirty=frozenset({"StatefulSet", "Pod"}))
    for _ in range(3):
        await clock.advance(5)
        await found.watcher.look()
        found.operator.queue.add(KEY, dirty=frozenset({"Pod"}))
        await found.operator.settle(kubelets=False)
    assert found.admission()["state"] == "Storm"
    assert found.policy is not None
    assert found.rule() == {"requests": 4, "unit": "Second"}, "8000 tokens/s while nothing hits"
    (began,) = found.events("StormBegan")
    assert "Envoy Gateway is told to let in 8,000 tokens/s" in began


async def test_of_two_tiers_on_one_route_the_older_policy_stays(clock: FakeClock) -> None:
    found = await by_gateway(clock)
    found.storm(8000.0)
    await found.steps()
    await clock.advance(5)
    twin = copy.deepcopy(policy("other-admission", targetRefs=[ref("HTTPRoute", "chat")]))
    twin["metadata"]["labels"] = {"kvtier.dev/tier-name": "other"}
    found.operator.cluster.seed(twin)
    await found.steps(4)
    assert found.policy is not None
    assert found.enforced() == ("True", "Enforced")


async def test_a_process_that_does_not_lead_writes_no_policy(clock: FakeClock) -> None:
    found = await by_gateway(clock)
    found.storm(8000.0)
    found.operator.leads = False
    found.operator.reconciler.memory.of(KEY).written = None
    with pytest.raises(Exception, match="lease"):
        await found.steps()
    assert found.writes() == []
