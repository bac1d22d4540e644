"""The tier's own BackendTrafficPolicy on a real API server, by Envoy Gateway's own CRDs."""

import json
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from apiserver_process import ApiServer
from controller_process import SPEC
from webhook_chart import rendered

from kvtier.admission.storm import State
from kvtier.api.load import parse_tier
from kvtier.api.types import KVCacheTier
from kvtier.cluster.client import AioCluster
from kvtier.cluster.connect import connect
from kvtier.cluster.protocol import HTTP_ROUTE, TRAFFIC_POLICY, Invalid, Object
from kvtier.metrics import Metrics
from kvtier.plan.admission import View
from kvtier.reconcile.clock import FakeClock
from kvtier.reconcile.gateway import GatewayPolicies, Look
from kvtier.reconcile.memory import TierMemory
from kvtier.render.gateway import admission_policy, rounded

NAME = "demo-admission"
GROUP = "gateway.networking.k8s.io"
# The first of these fetches modules, and starts the API server.
pytestmark = pytest.mark.timeout(400)


@dataclass(slots=True)
class Stage:
    """One tier in a namespace of its own, as the API server has it, and what writes its policy."""

    server: ApiServer
    cluster: AioCluster
    policies: GatewayPolicies
    clock: FakeClock
    tier: KVCacheTier
    memory: TierMemory

    @property
    def namespace(self) -> str:
        return self.tier.metadata.namespace

    async def look(self, *, tokens: float | None, seconds: float = 20) -> Look:
        """A look a while after the last one, with a limit of so many tokens/s or with none."""
        await self.clock.advance(seconds)
        state = State.OPEN if tokens is None else State.STORM
        self.memory.view = View(state=state, limit=tokens)
        admission = {"state": state.value, "meanPromptTokens": 1000}
        return await self.policies.look((self.namespace, "demo"), self.memory, self.tier, admission)

    async def policy(self) -> Object | None:
        return await self.cluster.get(TRAFFIC_POLICY, self.namespace, NAME)

    @property
    def problem(self) -> str | None:
        told = self.memory.gateway.told
        assert told is not None
        return told.problem[0] if told.problem else None

    def other(self, **policy_spec: Any) -> None:
        """Somebody else's policy."""
        document = {
            "apiVersion": TRAFFIC_POLICY.api_version,
            "kind": TRAFFIC_POLICY.kind,
            "metadata": {"name": "retries", "namespace": self.namespace},
            "spec": policy_spec,
        }
        made = self.server.apply(document, "--validate=strict")
        assert (made.code, made.err) == (0, "")


def route(namespace: str) -> dict[str, Any]:
    return {
        "apiVersion": HTTP_ROUTE.api_version,
        "kind": HTTP_ROUTE.kind,
        "metadata": {"name": "chat", "namespace": namespace, "labels": {"app": "llm"}},
        "spec": {
            "parentRefs": [{"name": "edge"}],
            "rules": [{"backendRefs": [{"name": "engines", "port": 8000}]}],
        },
    }


@pytest.fixture
async def stage(gateway_apiserver: ApiServer) -> AsyncIterator[Stage]:
    namespace = f"policy-{uuid.uuid4().hex[:12]}"
    assert gateway_apiserver.kubectl("create", "namespace", namespace).code == 0
    gateway = {"routes": ["chat"], "replicas": 2}
    body = {
        "apiVersion": "kvtier.dev/v1alpha1",
        "kind": "KVCacheTier",
        "metadata": {"name": "demo", "namespace": namespace},
        "spec": SPEC | {"admission": {"mode": "Enforce", "envoyGateway": gateway}},
    }
    for document in (body, route(namespace)):
        made = gateway_apiserver.apply(document, "--validate=strict")
        assert (made.code, made.err) == (0, "")
    found = gateway_apiserver.kubectl("get", "kvt", "demo", "-n", namespace, "-ojson")
    clock = FakeClock()
    async with connect(kubeconfig=str(gateway_apiserver.kubeconfig)) as cluster:
        yield Stage(
            server=gateway_apiserver,
            cluster=cluster,
            policies=GatewayPolicies(cluster, leads=lambda: True, clock=clock, metrics=Metrics()),
            clock=clock,
            tier=parse_tier(json.loads(found.out)),
            memory=TierMemory(),
        )


async def test_the_policy_is_made_changed_and_removed(stage: Stage) -> None:
    await stage.look(tokens=None)
    assert await stage.policy() is None
    await stage.look(tokens=8000)
    made = await stage.policy()
    assert made is not None
    (owner,) = made["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"]) == (stage.tier.metadata.uid, True)
    # What the server fills in is no difference: the next look writes nothing.
    await stage.look(tokens=8000)
    assert await stage.policy() == made
    assert stage.problem is None
    await stage.look(tokens=16_000)
    more = await stage.policy()
    assert more is not None
    assert more["spec"]["rateLimit"] == {
        "local": {"rules": [{"limit": {"requests": 8, "unit": "Second"}}]}
    }
    await stage.look(tokens=None)
    assert await stage.policy() is None


async def test_it_is_taken_as_written_without_a_warning(stage: Stage) -> None:
    for rate in (4.0, 0.2):
        intent = admission_policy(stage.tier, rounded(rate))
        made = stage.server.apply(intent, "--server-side", "--validate=strict", "--force-conflicts")
        assert (made.code, made.err) == (0, "")
        kept = await stage.policy()
        assert kept is not None
        assert kept["spec"] == intent["spec"]


def setting(*path: str | int, to: Any) -> Callable[[Any], None]:
    """Writes ``to`` at ``path`` of a spec."""

    def write(spec: Any) -> None:
        for step in path[:-1]:
            spec = spec[step]
        spec[path[-1]] = to

    return write


LIMIT = ("rateLimit", "local", "rules", 0, "limit")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (setting(*LIMIT, "unit", to="Blink"), "unit: Unsupported value"),
        (setting(*LIMIT, "requests", to=-1), "requests: Invalid value: -1"),
        (setting("targetRefs", 0, "group", to="apps"), "targetRefs"),
        (setting("targetRefs", 0, "kind", to="Gateway"), "mergeType can only be used with"),
    ],
    ids=["unit", "requests", "group", "merge"],
)
async def test_the_judge_is_awake(stage: Stage, change: Callable[[Any], None], why: str) -> None:
    intent = admission_policy(stage.tier, rounded(4.0))
    change(intent["spec"])
    with pytest.raises(Invalid, match=why):
        await stage.cluster.create(intent)


@pytest.mark.parametrize(
    "policy_spec",
    [
        {"targetRefs": [{"group": GROUP, "kind": "HTTPRoute", "name": "chat"}]},
        {"targetSelectors": [{"kind": "HTTPRoute", "matchLabels": {"app": "llm"}}]},
        {
            "targetRefs": [{"group": GROUP, "kind": "Gateway", "name": "edge"}],
            "rateLimit": {"local": {"rules": [{"limit": {"requests": 9, "unit": "Second"}}]}},
        },
    ],
    ids=["route", "labels", "local limit of the Gateway"],
)
async def test_beside_another_policy_nothing_is_written(
    stage: Stage, policy_spec: dict[str, Any]
) -> None:
    stage.other(**policy_spec)
    await stage.look(tokens=8000)
    assert await stage.policy() is None
    assert stage.problem == "PolicyConflict"
    assert stage.server.kubectl("delete", "btp", "retries", "-n", stage.namespace).code == 0
    await stage.look(tokens=8000)
    assert await stage.policy() is not None
    assert stage.problem is None


async def test_a_foreign_object_of_its_name_is_left_alone(stage: Stage) -> None:
    foreign = admission_policy(stage.tier, rounded(4.0))
    foreign["metadata"] = {"name": NAME, "namespace": stage.namespace}
    assert stage.server.apply(foreign).code == 0
    before = await stage.policy()
    await stage.look(tokens=8000)
    assert stage.problem == "NameConflict"
    await stage.look(tokens=None)
    assert await stage.policy() == before


async def test_what_envoy_gateway_says_is_read_where_it_writes_it(stage: Stage) -> None:
    await stage.look(tokens=8000)
    made = await stage.policy()
    assert made is not None
    status = {
        "ancestors": [
            {
                "ancestorRef": {"group": GROUP, "kind": "Gateway", "name": "edge"},
                "controllerName": "gateway.envoyproxy.io/gatewayclass-controller",
                "conditions": [
                    {
                        "type": "Accepted",
                        "status": "False",
                        "reason": "Conflicted",
                        "message": "Unable to target HTTPRoute chat",
                        "observedGeneration": made["metadata"]["generation"],
                        "lastTransitionTime": "2026-01-01T00:00:00Z",
                    }
                ],
            }
        ]
    }
    patch = json.dumps({"status": status})
    written = stage.server.kubectl(
        *("patch", "btp", NAME, "-n", stage.namespace, "--subresource=status"),
        *("--type=merge", "-p", patch),
    )
    assert written.code == 0, written.message
    await stage.look(tokens=8000)
    assert await stage.policy() is None
    assert stage.problem == "PolicyConflict"


async def test_the_chart_gives_exactly_the_rights_that_it_takes(
    stage: Stage, tmp_path: Path
) -> None:
    """The account that the chart binds can do it all; without the value, nothing and no crash."""
    account = "kvtier"
    made = stage.server.kubectl("create", "serviceaccount", account, "-n", stage.namespace)
    assert made.code == 0, made.message
    for enabled, problem in (("false", "AdapterUnavailable"), ("true", None)):
        objects = rendered(
            f"envoyGateway.enabled={enabled}", namespace=stage.namespace, home=tmp_path
        )
        (role,) = (
            each
            for each in objects
            if (each["kind"], each["metadata"]["name"]) == ("ClusterRole", "kvtier-tiers")
        )
        role["metadata"]["name"] = f"{stage.namespace}-{enabled}"
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": f"b-{enabled}", "namespace": stage.namespace},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": role["metadata"]["name"],
            },
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": stage.namespace}],
        }
        for document in (role, binding):
            applied = stage.server.apply(document)
            assert applied.code == 0, applied.message
        async with connect(kubeconfig=_kubeconfig(stage, account, tmp_path)) as cluster:
            stage.policies = GatewayPolicies(
                cluster, leads=lambda: True, clock=stage.clock, metrics=Metrics()
            )
            stage.memory = TierMemory()
            await stage.look(tokens=8000)
            assert stage.problem == problem
            assert (await stage.policy() is not None) is (problem is None)
            await stage.look(tokens=16_000)
            await stage.look(tokens=None)
            assert stage.problem == problem
            assert await stage.policy() is None


def _kubeconfig(stage: Stage, account: str, tmp_path: Path) -> str:
    """A kubeconfig file of a ServiceAccount."""
    token = stage.server.kubectl("create", "token", account, "-n", stage.namespace)
    assert token.code == 0, token.message
    config = yaml.safe_load(stage.server.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token.out.strip()}
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return str(path)
