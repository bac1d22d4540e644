"""A storm's limit through Envoy Gateway: controller, API server, its controller and Envoy are real.

The limiter that tells of the storm is a stand-in: what it says is all that the operator acts on.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from envoy_gateway import NAMESPACE, OBJECTS, Client, Server, envoy_gateway, teach

from kvtier.api.crd import crd_yaml

# After envoy_gateway, which knows where they are.
from apiserver_process import ApiServer, running  # isort: skip
from controller_process import SPEC, Controller, controller, get, wait_for  # isort: skip

LIMIT = 5
"""Requests/s."""
OFFERED = 30.0
POLICY = "demo-admission"
TIER = {
    "apiVersion": "kvtier.dev/v1alpha1",
    "kind": "KVCacheTier",
    "metadata": {"name": "demo", "namespace": NAMESPACE},
    "spec": {
        **SPEC,
        "workload": {"promptTokens": [{"quantile": "0.5", "tokens": 1000}]},
        "admission": {"mode": "Enforce", "envoyGateway": {"routes": ["chat"], "replicas": 1}},
    },
}
OTHER: dict[str, Any] = {
    "apiVersion": "gateway.envoyproxy.io/v1alpha1",
    "kind": "BackendTrafficPolicy",
    "metadata": {"name": "other", "namespace": NAMESPACE},
    "spec": {"timeout": {"http": {"requestTimeout": "7s"}}},
}
pytestmark = pytest.mark.timeout(3600)


@dataclass(slots=True)
class Scene:
    server: ApiServer
    limiter: Server
    client: Client
    log: Path

    def says(self, state: str, tokens: float | None = None) -> None:
        """What the limiter tells from now on."""
        told = {
            "namespace": NAMESPACE,
            "name": "demo",
            "state": state,
            "cause": "HitsCollapsed",
            "limitTokensPerSecond": tokens,
            "offeredTokensPerSecond": 30_000.0,
        }
        self.limiter.answer = json.dumps({"replica": "stand-in", "tiers": [told]})

    def get(self, kind: str, name: str) -> Any:
        return get(self.server, kind, name, "-n", NAMESPACE)

    def enforced(self) -> str:
        conditions = self.get("kvt", "demo").get("status", {}).get("conditions", ())
        return next((c["reason"] for c in conditions if c["type"] == "AdmissionEnforced"), "")

    def told(self, name: str) -> dict[str, str]:
        """Conditions of a policy, by Envoy Gateway: type -> status."""
        status = self.get("backendtrafficpolicy", name).get("status", {})
        return {
            each["type"]: each["status"]
            for ancestor in status.get("ancestors", ())
            for each in ancestor["conditions"]
        }

    def apply(self, document: Any) -> None:
        made = self.server.apply(document)
        assert made.code == 0, made.message

    def held(self) -> None:
        """About the limit is let in, and all else is 429."""
        found = self.client.run(rate=OFFERED, seconds=6)
        assert found.keys() == {200, 429}, found
        assert LIMIT * 5 <= found[200] <= LIMIT * 7 + 1, found


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with ExitStack() as stack:
        server = stack.enter_context(running())
        made = server.kubectl("create", "-f", "-", stdin=crd_yaml())
        assert made.code == 0, made.message
        teach(server)
        assert server.kubectl("create", "namespace", NAMESPACE).code == 0
        engines, limiter = stack.enter_context(Server()), stack.enter_context(Server())
        with Server() as free:
            listen = free.port
        objects = OBJECTS.replace("LISTEN", str(listen)).replace("ENGINES", str(engines.port))
        applied = server.apply(objects, "--validate=strict")
        assert applied.code == 0, applied.message
        log = stack.enter_context(envoy_gateway(server, tmp_path_factory.mktemp("envoy-gateway")))
        found = Scene(server, limiter, Client(listen), log)
        found.says("Open")
        wait_for(lambda: found.client.ask() == 200, seconds=120)
        yield found


@pytest.fixture
def operator(scene: Scene, tmp_path: Path) -> Iterator[Controller]:
    """The controller with one tier, while all is let in."""
    arguments = ("--envoy-gateway", f"--limiter-service=127.0.0.1:{scene.limiter.port}")
    scene.says("Open")
    with controller(scene.server, tmp_path, *arguments) as process:
        scene.apply(TIER)
        wait_for(lambda: scene.enforced() == "Enforced")
        yield process
    scene.server.kubectl("delete", "kvt,backendtrafficpolicy", "--all", "-n", NAMESPACE)


def test_a_storm_is_held_at_the_limit_and_its_end_lets_all_in(
    scene: Scene, operator: Controller
) -> None:
    assert scene.client.run(rate=OFFERED, seconds=2) == {200: 60}
    scene.says("Storm", LIMIT * 1000.0)
    first = scene.client.until(429, rate=OFFERED, seconds=30)
    scene.held()
    assert wait_for(lambda: scene.told(POLICY).get("Accepted")) == "True"
    scene.says("Recovering", 2 * LIMIT * 1000.0)
    wait_for(lambda: scene.get("backendtrafficpolicy", POLICY)["metadata"]["generation"] == 2)
    scene.says("Open")
    last = scene.client.until(200, rate=OFFERED, seconds=30, in_a_row=40)
    print(f"first 429 after {first:.1f} s, last after {last:.1f} s")
    assert scene.client.run(rate=OFFERED, seconds=2) == {200: 60}
    assert scene.get("backendtrafficpolicy", POLICY) == {"items": []}


def test_a_policy_of_the_gateway_stays_in_force_beside_it(
    scene: Scene, operator: Controller
) -> None:
    target = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "edge"}
    scene.apply(OTHER | {"spec": OTHER["spec"] | {"targetRefs": [target]}})
    scene.says("Storm", LIMIT * 1000.0)
    scene.client.until(429, rate=OFFERED, seconds=30)
    scene.held()
    assert wait_for(lambda: scene.told(POLICY).get("Merged")) == "True"
    assert scene.enforced() == "Enforced"


def test_another_policy_of_the_route_is_given_way_to(scene: Scene, operator: Controller) -> None:
    scene.says("Storm", LIMIT * 1000.0)
    scene.client.until(429, rate=OFFERED, seconds=30)
    target = {"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": "chat"}
    scene.apply(OTHER | {"spec": OTHER["spec"] | {"targetRefs": [target]}})
    given = scene.client.until(200, rate=OFFERED, seconds=40, in_a_row=60)
    print(f"given way to after {given:.1f} s")
    assert wait_for(lambda: scene.enforced() == "PolicyConflict")
    assert wait_for(lambda: scene.told("other").get("Accepted") == "True")
    scene.server.kubectl("delete", "backendtrafficpolicy", "other", "-n", NAMESPACE)
    scene.client.until(429, rate=OFFERED, seconds=40)
    scene.held()


def test_with_the_operator_dead_it_stays_until_there_is_one_again(
    scene: Scene, operator: Controller, tmp_path: Path
) -> None:
    scene.says("Storm", LIMIT * 1000.0)
    scene.client.until(429, rate=OFFERED, seconds=30)
    operator.process.kill()
    operator.process.wait()
    scene.says("Open")
    scene.held()
    arguments = ("--envoy-gateway", f"--limiter-service=127.0.0.1:{scene.limiter.port}")
    with controller(scene.server, tmp_path, *arguments):
        opened = scene.client.until(200, rate=OFFERED, seconds=90, in_a_row=60)
        print(f"open again {opened:.1f} s after the new one was started")
