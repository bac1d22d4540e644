"""Routes, policies and storms around a tier on fakes, for tests of Envoy Gateway's policy."""

import copy
from collections.abc import Mapping
from typing import Any

from admission_harness import ENFORCE, Admitted, FakeLimiters, serving
from tier_harness import KEY, Operator

from kvtier.cluster.protocol import HTTP_ROUTE, TRAFFIC_POLICY, Object
from kvtier.reconcile.clock import FakeClock

NAME = "demo-admission"
ADDRESS = "10.0.0.1"
BY_GATEWAY = {
    **ENFORCE,
    "admission": {"mode": "Enforce", "envoyGateway": {"routes": ["chat"], "replicas": 2}},
    "workload": {"promptTokens": [{"quantile": "0.5", "tokens": 1000}]},
}
GROUP = "gateway.networking.k8s.io"
POLICIES = (TRAFFIC_POLICY, HTTP_ROUTE)


def route(name: str = "chat", **labels: str) -> Object:
    """An HTTPRoute of the tier's namespace, attached to a Gateway of another."""
    return {
        "apiVersion": HTTP_ROUTE.api_version,
        "kind": HTTP_ROUTE.kind,
        "metadata": {"namespace": KEY[0], "name": name, "labels": labels},
        "spec": {"parentRefs": [{"name": "edge", "namespace": "gateways"}]},
    }


def policy(name: str, *, namespace: str = KEY[0], **policy_spec: Any) -> Object:
    """Somebody else's BackendTrafficPolicy."""
    return {
        "apiVersion": TRAFFIC_POLICY.api_version,
        "kind": TRAFFIC_POLICY.kind,
        "metadata": {"namespace": namespace, "name": name},
        "spec": policy_spec,
    }


def ref(kind: str, name: str, **more: str) -> dict[str, str]:
    return {"group": GROUP, "kind": kind, "name": name, **more}


def said(kind: str, status: str, reason: str, message: str = "why.") -> dict[str, Any]:
    """A status as Envoy Gateway writes it."""
    condition = {"type": kind, "status": status, "reason": reason, "message": message}
    gateway = {"ancestorRef": ref("Gateway", "edge"), "controllerName": "envoy"}
    return {"status": {"ancestors": [{**gateway, "conditions": [condition]}]}}


def changed(**admission: Any) -> dict[str, Any]:
    tier_spec = copy.deepcopy(BY_GATEWAY)
    tier_spec["admission"] |= admission
    return tier_spec


class ByGateway(Admitted):
    """An operator that may write policies, its watcher of admission, and one limiter."""

    @property
    def policy(self) -> Object | None:
        return self.operator.cluster.peek(TRAFFIC_POLICY, KEY[0], NAME)

    def rule(self) -> Mapping[str, Any]:
        assert self.policy is not None
        (rule,) = self.policy["spec"]["rateLimit"]["local"]["rules"]
        found: Mapping[str, Any] = rule["limit"]
        return found

    def storm(self, tokens: float, *, state: str = "Storm") -> None:
        """What the limiter tells from now on."""
        assert self.limiters is not None
        told = {"state": state, "limitTokensPerSecond": tokens, "offeredTokensPerSecond": 50_000.0}
        self.limiters.says[ADDRESS] = {**told, "cause": "HitsCollapsed"}

    def open(self) -> None:
        assert self.limiters is not None
        self.limiters.says[ADDRESS] = {"offeredTokensPerSecond": 50_000.0}

    async def steps(self, count: int = 1) -> None:
        """Looks, each with the reconcile that asked to be the next after it."""
        for _ in range(count):
            await self.looks()
            self.operator.queue.add(KEY)
            await self.operator.settle()

    def writes(self) -> list[str]:
        return [each.verb for each in self.operator.cluster.writes if each.kind is TRAFFIC_POLICY]

    def asked(self) -> int:
        """Requests about policies and routes so far."""
        return sum(each.kind in POLICIES for each in self.operator.cluster.requests)

    def enforced(self) -> tuple[str, str]:
        found = self.operator.condition("AdmissionEnforced")
        return found["status"], found["reason"]


async def by_gateway(
    clock: FakeClock,
    tier_spec: dict[str, Any] | None = None,
    *others: Object,
    enabled: bool = True,
    limiter: bool = True,
) -> ByGateway:
    """A Ready tier with its route, while all is let in."""
    operator = Operator(clock, envoy_gateway=enabled)
    for each in (route(), *others):
        operator.cluster.seed(each)
    await serving(operator, tier_spec or BY_GATEWAY)
    found = ByGateway(operator, FakeLimiters(operator, ADDRESS) if limiter else None)
    await found.steps()
    return found
