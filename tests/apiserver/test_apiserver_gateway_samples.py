"""The sample for Envoy Gateway as a real API server takes it, by that project's own CRDs."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from apiserver_process import ApiServer
from webhook_chart import rendered

from programs import CHECKOUT

SAMPLE = CHECKOUT / "deploy" / "samples" / "gateways" / "envoy-gateway-security-policy.yaml"
DOCUMENTS: list[dict[str, Any]] = list(yaml.safe_load_all(SAMPLE.read_text()))
POLICY, SIZE, GRANT = DOCUMENTS
# What the sample tells its reader to have: a Gateway and an HTTPRoute by these names.
TARGETS = """
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: gateway, namespace: prod}
spec:
  gatewayClassName: envoy
  listeners: [{name: http, port: 80, protocol: HTTP}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: inference, namespace: prod}
spec:
  parentRefs: [{name: gateway}]
  rules: [{backendRefs: [{name: engines, port: 8000}]}]
"""
# The first of these fetches modules, and starts the API server.
pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def gateway(gateway_apiserver: ApiServer) -> ApiServer:
    """The API server with the sample's namespaces."""
    for namespace in sorted({each["metadata"]["namespace"] for each in DOCUMENTS}):
        made = gateway_apiserver.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
        )
        assert made.code == 0, made.message
    return gateway_apiserver


def covers(kept: Any, given: Any) -> bool:
    """Whether all of ``given`` is in ``kept``; the server adds defaults."""
    if isinstance(given, dict):
        return isinstance(kept, dict) and all(
            key in kept and covers(kept[key], value) for key, value in given.items()
        )
    if isinstance(given, list):
        return len(kept) == len(given) and all(map(covers, kept, given))
    return bool(kept == given)


def test_each_object_of_the_sample_is_made_and_kept_as_written(gateway: ApiServer) -> None:
    made = gateway.kubectl("apply", "--validate=strict", "-f", str(SAMPLE))
    # No warning either: those are of versions that go away and of fields that nobody knows.
    assert (made.code, made.err) == (0, "")
    assert made.out.splitlines() == [
        "securitypolicy.gateway.envoyproxy.io/kvtier-admission created",
        "clienttrafficpolicy.gateway.envoyproxy.io/kvtier-request-size created",
        "referencegrant.gateway.networking.k8s.io/kvtier-limiter created",
    ]
    kept = json.loads(gateway.kubectl("get", "-f", str(SAMPLE), "-o", "json").out)["items"]
    assert covers([each["spec"] for each in kept], [each["spec"] for each in DOCUMENTS])
    assert not covers(kept[0]["spec"], {"extAuth": {"failOpen": False}})


def test_the_policies_point_at_a_route_and_a_gateway(gateway: ApiServer) -> None:
    made = gateway.apply(TARGETS, "--validate=strict")
    assert (made.code, made.err) == (0, "")
    for policy in (POLICY, SIZE):
        for target in policy["spec"]["targetRefs"]:
            kind = f"{target['kind']}.{target['group']}/{target['name']}"
            found = gateway.kubectl("get", "-n", policy["metadata"]["namespace"], kind)
            assert found.code == 0, found.message


def test_the_grant_lets_the_policy_ask_the_limiter_of_the_chart(tmp_path: Path) -> None:
    (backend,) = POLICY["spec"]["extAuth"]["http"]["backendRefs"]
    assert GRANT["metadata"]["namespace"] == backend["namespace"]
    assert GRANT["spec"]["from"] == [
        {
            "group": POLICY["apiVersion"].partition("/")[0],
            "kind": POLICY["kind"],
            "namespace": POLICY["metadata"]["namespace"],
        }
    ]
    assert GRANT["spec"]["to"] == [{"group": "", "kind": "Service", "name": backend["name"]}]
    objects = rendered("limiter.enabled=true", namespace=backend["namespace"], home=tmp_path)
    (service,) = (
        each
        for each in objects
        if each["kind"] == "Service" and each["metadata"]["name"] == backend["name"]
    )
    assert [each["port"] for each in service["spec"]["ports"]] == [backend["port"]]


def setting(*path: str | int, to: Any) -> Callable[[dict[str, Any]], None]:
    """Writes ``to`` at ``path`` of a spec."""

    def write(spec: Any) -> None:
        for step in path[:-1]:
            spec = spec[step]
        spec[path[-1]] = to

    return write


HEALTH = ("extAuth", "http", "backendSettings", "healthCheck")
LIMITER = {"name": "kvtier-limiter", "namespace": "kvtier-system"}
BROKEN: list[tuple[dict[str, Any], Callable[[dict[str, Any]], None], str]] = [
    (POLICY, setting("extAuth", "failOpen", to="true"), 'failOpen: Invalid value: "string"'),
    (POLICY, setting("extAuth", "timeout", to="0.2s"), 'timeout: Invalid value: "0.2s"'),
    (POLICY, setting("extAuth", "failopen", to=True), 'unknown field "spec.extAuth.failopen"'),
    (POLICY, setting(*HEALTH, "panicThreshold", to=101), "panicThreshold: Invalid value: 101"),
    (POLICY, setting(*HEALTH, "panic", to=0), f'unknown field "spec.{".".join(HEALTH)}.panic"'),
    (POLICY, setting("extAuth", "http", "backendRefs", to=[LIMITER]), "Must have port for Service"),
    (POLICY, setting("extAuth", "http", "pathOverride", to="/"), "only one of path or pathOver"),
    (
        POLICY,
        setting("extAuth", "grpc", to={"backendRefs": [LIMITER | {"port": 8080}]}),
        "only one",
    ),
    (POLICY, setting("targetRefs", 0, "kind", to="Gateway"), "mergeType can only be used with"),
    (POLICY, setting("mergeType", to="Replace"), "Replace is not a valid MergeType"),
    (SIZE, setting("targetRefs", 0, "kind", to="HTTPRoute"), "kind of Gateway or ListenerSet"),
    (SIZE, setting("headers", "earlyRequestHeaders", "set", 0, "value", to=""), "value in body"),
    (GRANT, setting("from", 0, to={"group": "a", "kind": "B"}), "namespace: Required value"),
]


@pytest.mark.parametrize(("document", "change", "why"), BROKEN, ids=[each[2] for each in BROKEN])
def test_a_broken_sample_is_refused(
    gateway: ApiServer, document: dict[str, Any], change: Callable[[dict[str, Any]], None], why: str
) -> None:
    broken = copy.deepcopy(document)
    broken["metadata"]["name"] = "broken"
    change(broken["spec"])
    refused = gateway.apply(broken, "--validate=strict")
    assert refused.code != 0
    assert why in refused.message
