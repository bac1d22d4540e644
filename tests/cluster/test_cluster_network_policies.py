"""Namespaces that deny every connection but those that the sample and the chart allow.

What must be refused was seen to connect before.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from livecluster.callers import PORT, Caller, connect
from livecluster.cluster import LiveCluster
from livecluster.fixtures import NewTier
from livecluster.installation import NAMESPACE, Installation
from livecluster.tier import Tier
from livecluster.waiting import eventually
from programs import CHECKOUT

SAMPLE = CHECKOUT / "deploy" / "samples" / "network-policies.yaml"
VALKEY = 6379
METRICS = 8080
POLICY_SECONDS = 30.0
DENY_ALL: dict[str, Any] = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "default-deny", "namespace": NAMESPACE},
    "spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]},
}


@pytest.fixture
def tier(new_tier: NewTier) -> Tier:
    tier = new_tier("chat")
    tier.apply()
    return tier


@pytest.fixture
def stranger(tier: Tier) -> Caller:
    """A pod of the tier's namespace that is no engine."""
    stranger = Caller(tier.cluster, tier.namespace, "stranger")
    stranger.start()
    return stranger


@pytest.fixture
def engine(tier: Tier) -> Caller:
    """A pod of the tier's pool, whose port is that of vLLM's metrics."""
    engine = Caller(tier.cluster, tier.namespace, "engine")
    engine.start(labels={"kvtier.dev/tier": tier.name})
    return engine


def address(tier: Tier, rank: int) -> str:
    return str(tier.pods()[rank]["status"]["podIP"])


def test_in_a_namespace_that_denies_all_else_only_engines_reach_ranks(
    tier: Tier, stranger: Caller, engine: Caller, live: LiveCluster, kvtier: Installation
) -> None:
    tier.wait_ready()
    tier.engine()
    service = f"{tier.name}-r0.{tier.namespace}.svc"
    api_server = str(live.facts["controlPlane"]["address"])
    forbidden = [
        (stranger, address(tier, 0), VALKEY),
        (stranger, address(tier, 1), VALKEY),
        (stranger, engine.address, PORT),
        (engine, stranger.address, PORT),
        (engine, api_server, 6443),
    ]
    for caller, host, port in forbidden:
        assert caller.said(host, port) == "connected"
    tier.kubectl("apply", "-f", str(SAMPLE))
    for caller, host, port in forbidden:
        eventually(
            lambda caller=caller, host=host, port=port: not caller.reaches(host, port),
            seconds=POLICY_SECONDS,
            what=f"{caller.name} does not reach {host}:{port} any more",
        )
    # By name: DNS is part of what engines need. And all of it is denied while this is allowed.
    assert engine.said(service, VALKEY) == "connected"
    assert engine.said(address(tier, 1), VALKEY) == "connected"
    assert not stranger.reaches(address(tier, 0), VALKEY)
    # What the controller reads engines' metrics by.
    assert from_controller(kvtier, engine.address, PORT) == "connected"
    # The probes go on, and the controller reaches ranks: it reads back what it has set.
    tier.patch({"store": {"eviction": "LFU"}})
    tier.wait_ready()


def test_in_a_namespace_that_denies_all_else_the_controller_works_and_gives_metrics_and_no_more(
    tier: Tier, stranger: Caller, engine: Caller, kvtier: Installation, denied_controller: None
) -> None:
    eventually(
        lambda: from_controller(kvtier, stranger.address, PORT) != "connected",
        seconds=POLICY_SECONDS,
        what="the controller reaches no pod but ranks and engines",
    )
    tier.wait_ready()
    tier.patch({"store": {"eviction": "LFU"}})
    tier.wait_ready()
    controller = kvtier.pod()["status"]["podIP"]
    assert stranger.said(controller, METRICS) == "connected"
    assert from_controller(kvtier, address(tier, 0), VALKEY) == "connected"
    assert from_controller(kvtier, engine.address, PORT) == "connected"
    assert from_controller(kvtier, stranger.address, PORT) != "connected"
    # A namespace of nobody's pods: metrics are for Prometheus alone.
    nobody = "networkPolicy.metricsFrom[0].podSelector.matchLabels.app=nobody"
    kvtier.install("--set=networkPolicy.enabled=true", f"--set={nobody}")
    eventually(
        lambda: not stranger.reaches(kvtier.pod()["status"]["podIP"], METRICS),
        seconds=POLICY_SECONDS,
        what="metrics are refused to whom the chart's value does not name",
    )


@pytest.fixture
def denied_controller(kvtier: Installation, stranger: Caller) -> Iterator[None]:
    """The controller's namespace denies everything but what the chart's policy allows."""
    assert from_controller(kvtier, stranger.address, PORT) == "connected"
    kvtier.cluster.apply(DENY_ALL)
    kvtier.install("--set=networkPolicy.enabled=true")
    yield
    kvtier.cluster.kubectl("delete", "networkpolicy", "default-deny", "-n", NAMESPACE)
    kvtier.install()


def from_controller(kvtier: Installation, host: str, port: int) -> str:
    pod = kvtier.pod()["metadata"]["name"]
    return connect(kvtier.cluster, namespace=NAMESPACE, pod=pod, host=host, port=port)
