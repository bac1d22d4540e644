"""The reconciler on fakes: what keeps Envoy Gateway from getting a tier's limit, and is told."""

from typing import Any

import pytest
from gateway_harness import NAME, by_gateway, changed, policy, ref, route, said
from tier_harness import KEY

from kvtier.cluster.protocol import (
    HTTP_ROUTE,
    TRAFFIC_POLICY,
    Forbidden,
    Unavailable,
)
from kvtier.reconcile.clock import FakeClock

OTHER = policy("retries", targetRefs=[ref("HTTPRoute", "chat")])


CONFLICTS = {
    "by name": OTHER,
    "by the old field": policy("retries", targetRef=ref("HTTPRoute", "chat")),
    "a rule": policy("retries", targetRefs=[ref("HTTPRoute", "chat", sectionName="long")]),
    "by labels": policy(
        "retries", targetSelectors=[{"kind": "HTTPRoute", "matchLabels": {"app": "llm"}}]
    ),
    "by labels, from another namespace": policy(
        "retries",
        namespace="gateways",
        targetSelectors=[
            {"kind": "HTTPRoute", "matchLabels": {"app": "llm"}, "namespaces": {"from": "All"}}
        ],
    ),
    "a local limit of the Gateway": policy(
        "retries",
        namespace="gateways",
        targetRefs=[ref("Gateway", "edge")],
        rateLimit={"local": {"rules": [{"limit": {"requests": 9, "unit": "Second"}}]}},
    ),
}


@pytest.mark.parametrize("case", CONFLICTS)
async def test_beside_another_policy_nothing_is_written(clock: FakeClock, case: str) -> None:
    found = await by_gateway(clock)
    found.operator.cluster.edit(
        HTTP_ROUTE, KEY[0], "chat", {"metadata": {"labels": {"app": "llm"}}}
    )
    other = found.operator.cluster.seed(CONFLICTS[case])
    found.storm(8000.0)
    await found.steps(4)
    assert found.writes() == []
    assert found.enforced() == ("False", "PolicyConflict")
    message = found.operator.condition("AdmissionEnforced")["message"]
    assert f"BackendTrafficPolicy {other['metadata']['namespace']}/retries" in message
    assert message.endswith("The limit is held by 1 limiter all the same.")
    (event,) = found.events("PolicyConflict")
    assert "retries" in event
    found.operator.cluster.remove(TRAFFIC_POLICY, other["metadata"]["namespace"], "retries")
    await found.steps(3)
    assert found.writes() == ["create"]
    assert found.enforced() == ("True", "Enforced")


NEIGHBOURS = {
    "another route": policy("retries", targetRefs=[ref("HTTPRoute", "embeddings")]),
    "a route of the same name in another namespace": policy(
        "retries", namespace="gateways", targetRefs=[ref("HTTPRoute", "chat")]
    ),
    "a GRPCRoute": policy("retries", targetRefs=[ref("GRPCRoute", "chat")]),
    "other labels": policy(
        "retries", targetSelectors=[{"kind": "HTTPRoute", "matchLabels": {"app": "web"}}]
    ),
    "labels of its own namespace": policy(
        "retries",
        namespace="gateways",
        targetSelectors=[{"kind": "HTTPRoute", "matchLabels": {"app": "llm"}}],
    ),
    "the Gateway, without a local limit": policy(
        "retries",
        namespace="gateways",
        targetRefs=[ref("Gateway", "edge")],
        retry={"numRetries": 2},
        rateLimit={"global": {"rules": [{"limit": {"requests": 9, "unit": "Second"}}]}},
    ),
    "another Gateway": policy(
        "retries",
        namespace="gateways",
        targetRefs=[ref("Gateway", "core")],
        rateLimit={"local": {"rules": [{"limit": {"requests": 9, "unit": "Second"}}]}},
    ),
}


@pytest.mark.parametrize("case", NEIGHBOURS)
async def test_a_policy_that_is_about_something_else_is_no_conflict(
    clock: FakeClock, case: str
) -> None:
    found = await by_gateway(clock)
    found.operator.cluster.edit(
        HTTP_ROUTE, KEY[0], "chat", {"metadata": {"labels": {"app": "llm"}}}
    )
    found.operator.cluster.seed(NEIGHBOURS[case])
    found.storm(8000.0)
    await found.steps(2)
    assert found.writes() == ["create"]


async def test_a_conflict_is_told_before_any_storm(clock: FakeClock) -> None:
    found = await by_gateway(clock, None, OTHER)
    assert found.enforced() == ("False", "PolicyConflict")
    assert found.writes() == []


async def test_who_comes_in_a_storm_has_the_tiers_taken_back(clock: FakeClock) -> None:
    found = await by_gateway(clock)
    found.storm(8000.0)
    await found.steps(2)
    found.operator.cluster.seed(OTHER)
    await found.steps(3)
    assert found.policy is None
    assert found.enforced() == ("False", "PolicyConflict")
    assert len(found.events("PolicyRemoved")) == 1


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (said("Accepted", "False", "Conflicted"), "PolicyConflict"),
        (said("Overridden", "True", "Overridden"), "PolicyConflict"),
        (said("Accepted", "False", "Invalid", "two\nlines"), "PolicyNotAccepted"),
    ],
    ids=["Conflicted", "Overridden", "Invalid"],
)
async def test_what_envoy_gateway_refuses_is_taken_back_for_ten_minutes(
    clock: FakeClock, status: dict[str, Any], reason: str
) -> None:
    found = await by_gateway(clock)
    found.storm(8000.0)
    await found.steps()
    found.operator.cluster.edit(TRAFFIC_POLICY, KEY[0], NAME, status)
    await found.steps(3)
    assert found.policy is None
    assert found.enforced() == ("False", reason)
    assert "\n" not in found.operator.condition("AdmissionEnforced")["message"]
    await clock.advance(570)
    await found.steps(2)
    assert found.writes() == ["create", "delete"]
    await clock.advance(20)
    await found.steps(2)
    assert found.writes() == ["create", "delete", "create"]


async def test_a_policy_that_no_gateway_takes_up_is_told_of_and_stays(clock: FakeClock) -> None:
    found = await by_gateway(clock)
    found.storm(8000.0)
    await found.steps(8)
    assert found.enforced() == ("True", "Enforced")
    await found.steps(6)
    assert found.enforced() == ("False", "PolicyNotAccepted")
    assert found.policy is not None
    found.operator.cluster.edit(TRAFFIC_POLICY, KEY[0], NAME, said("Accepted", "True", "Accepted"))
    await found.steps(3)
    assert found.enforced() == ("True", "Enforced")


async def test_a_foreign_object_of_its_name_is_never_touched(clock: FakeClock) -> None:
    foreign = policy(NAME, targetRefs=[ref("HTTPRoute", "embeddings")])
    found = await by_gateway(clock, None, foreign)
    found.storm(8000.0)
    await found.steps(3)
    found.open()
    await found.steps(3)
    assert found.enforced() == ("False", "NameConflict")
    assert found.writes() == []
    assert found.policy is not None
    assert found.policy["spec"] == foreign["spec"]


async def test_a_route_that_is_not_there_is_named(clock: FakeClock) -> None:
    gateway = {"routes": ["chat", "batch"], "replicas": 2}
    found = await by_gateway(clock, changed(envoyGateway=gateway))
    assert found.enforced() == ("False", "RouteNotFound")
    assert "serving/batch" in found.operator.condition("AdmissionEnforced")["message"]
    found.storm(8000.0)
    await found.steps(2)
    assert found.writes() == []
    found.operator.cluster.seed(route("batch"))
    await found.steps(3)
    assert found.writes() == ["create"]


async def test_where_the_kinds_are_missing_a_condition_says_so_and_nothing_loops(
    clock: FakeClock,
) -> None:
    found = await by_gateway(clock)
    found.operator.cluster.served -= {TRAFFIC_POLICY, HTTP_ROUTE}
    found.storm(8000.0)
    asked = found.asked()
    await found.steps(10)
    assert found.enforced() == ("False", "AdapterUnavailable")
    assert found.asked() == asked + 1
    assert len(found.events("AdapterUnavailable")) == 1
    assert found.operator.condition("Ready")["status"] == "True"
    found.operator.cluster.served |= {TRAFFIC_POLICY, HTTP_ROUTE}
    await clock.advance(200)
    await found.steps()
    assert found.policy is not None


@pytest.mark.parametrize("verb", ["list", "create"])
async def test_without_the_right_a_condition_says_so_and_nothing_loops(
    clock: FakeClock, verb: str
) -> None:
    found = await by_gateway(clock)
    error = Forbidden(status=403, reason="Forbidden", message=f"cannot {verb}\nresource")
    found.operator.cluster.fail(error, verb=verb, kind=TRAFFIC_POLICY, times=1000)
    asked = found.operator.cluster.requests
    before = sum(each.verb == verb and each.kind is TRAFFIC_POLICY for each in asked)
    found.storm(8000.0)
    await found.steps(10)
    assert found.enforced() == ("False", "AdapterUnavailable")
    message = found.operator.condition("AdmissionEnforced")["message"]
    assert f"The controller may not: cannot {verb} resource." in message
    after = sum(each.verb == verb and each.kind is TRAFFIC_POLICY for each in asked)
    assert after == before + 1


async def test_a_controller_that_may_not_asks_for_nothing(clock: FakeClock) -> None:
    found = await by_gateway(clock, enabled=False)
    found.storm(8000.0)
    await found.steps(5)
    assert found.asked() == 0
    assert found.enforced() == ("False", "AdapterUnavailable")
    assert "--envoy-gateway" in found.operator.condition("AdmissionEnforced")["message"]


async def test_an_api_server_that_fails_costs_nothing_but_time(clock: FakeClock) -> None:
    found = await by_gateway(clock)
    away = Unavailable(status=503, reason="ServiceUnavailable", message="away")
    found.operator.cluster.fail(away, kind=TRAFFIC_POLICY, times=3)
    found.storm(8000.0)
    await found.steps()
    assert found.policy is None
    assert found.admission()["state"] == "Storm", "the rest of the reconcile is done"
    await found.steps(3)
    assert found.policy is not None
    found.operator.cluster.fail(away, verb="delete", kind=TRAFFIC_POLICY, when="after")
    found.open()
    await found.steps(3)
    assert found.policy is None
    assert found.enforced() == ("True", "Enforced")


async def test_a_policy_whose_answer_was_lost_is_found_and_not_made_again(
    clock: FakeClock,
) -> None:
    found = await by_gateway(clock)
    lost = Unavailable(status=0, reason="Timeout", message="no answer")
    found.operator.cluster.fail(lost, verb="create", kind=TRAFFIC_POLICY, when="after")
    found.storm(8000.0)
    await found.steps(2)
    assert found.writes() == ["create"]
    found.open()
    await found.steps(2)
    assert found.policy is None
