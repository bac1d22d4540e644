"""Namespaces and nodes with rules of their own: quotas, limit ranges, taints, other tiers."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from livecluster.api import condition
from livecluster.cluster import LiveCluster
from livecluster.fixtures import NewTier, tiers
from livecluster.installation import NAMESPACE, Installation
from livecluster.tier import Tier
from livecluster.waiting import eventually

CHUNKS = 8
TOLD_SECONDS = 60.0
"""A rank without a pod is looked into after 5 s."""
AGAIN_SECONDS = 90.0
"""The StatefulSet controller's pause is about as long by then as the refusals have lasted."""
LONGEST_NAME = "a-tier-whose-name-has-forty-characters-x"
GPU = "nvidia.com/gpu"
FOREIGN = "example.com/maintenance"

Taint = Callable[[str], None]


@pytest.fixture
def taint(live: LiveCluster) -> Iterator[Taint]:
    """Taints all nodes for new pods; the taints are taken off again."""
    keys: list[str] = []

    def put(key: str) -> None:
        keys.append(key)
        live.kubectl("taint", "nodes", "--all", f"{key}=present:NoSchedule")

    yield put
    for key in keys:
        live.kubectl("taint", "nodes", "--all", f"{key}-")


def rule(tier: Tier, kind: str, spec: dict[str, Any]) -> None:
    """Lay down a ResourceQuota or LimitRange in the tier's namespace."""
    metadata = {"name": "small", "namespace": tier.namespace}
    tier.cluster.apply({"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": spec})


def wait_told(tier: Tier, *words: str) -> None:
    """The condition StoreReady has all of the words."""
    eventually(
        lambda: all(word in tier.condition("StoreReady").get("message", "") for word in words),
        seconds=TOLD_SECONDS,
        what=f"StoreReady says {words}",
        detail=lambda: condition(tier.body(), "StoreReady"),
    )


def container_limits(**most: str) -> dict[str, Any]:
    defaults = {"cpu": "20m", "memory": "8Mi"}
    limits = {
        "type": "Container",
        "default": defaults,
        "defaultRequest": defaults,
        "min": {"memory": "4Mi"},
        "max": most,
    }
    return {"limits": [limits]}


@pytest.mark.timeout(TOLD_SECONDS + AGAIN_SECONDS + 60, func_only=True)
def test_what_a_quota_or_a_limit_range_refuses_is_told_and_goes_on_by_itself_once_it_fits(
    new_tier: NewTier, live: LiveCluster
) -> None:
    under_quota = new_tier("chat")
    with tiers(live, label="limit-range") as new:
        limited = new("chat")
        rule(under_quota, "ResourceQuota", {"hard": {"limits.memory": "64Mi", "pods": "9"}})
        rule(limited, "LimitRange", container_limits(memory="32Mi"))
        under_quota.apply()
        limited.apply()
        # One rank of 64Mi fits, the other does not.
        wait_told(
            under_quota,
            "1 of 2 ranks",
            "exceeded quota: small",
            "requested: limits.memory=64Mi",
            "limited: limits.memory=64Mi",
        )
        wait_told(limited, "rank 0, 1:", "maximum memory usage per Container is 32Mi", "64Mi")
        rule(under_quota, "ResourceQuota", {"hard": {"limits.memory": "128Mi", "pods": "9"}})
        rule(limited, "LimitRange", container_limits(memory="1Gi"))
        for tier in (under_quota, limited):
            tier.wait_ready(seconds=AGAIN_SECONDS)
        for pod in limited.pods().values():
            resources = pod["spec"]["containers"][0]["resources"]
            expected = {"cpu": "100m", "memory": "64Mi"}
            assert resources == {"requests": expected, "limits": expected}
            assert pod["status"]["qosClass"] == "Guaranteed"


def test_ranks_tolerate_the_taint_of_gpus_and_others_when_the_spec_says_so(
    new_tier: NewTier, taint: Taint
) -> None:
    taint(GPU)
    tier = new_tier("chat")
    tier.apply()
    tier.wait_ready()
    taint(FOREIGN)
    tier = new_tier("later")
    tier.apply()
    wait_told(tier, "0 of 2 ranks", "untolerated taint")
    tier.patch({"store": {"tolerations": [{"key": FOREIGN, "operator": "Exists"}]}})
    tier.wait_ready()
    assert tier.engine().hits(chunks=1) == {0: 0, 1: 0}


def test_a_deleted_tier_takes_nothing_of_another_in_its_namespace_with_it(
    new_tier: NewTier,
) -> None:
    """The other one has the longest name that a tier may have."""
    short, long = new_tier("a-tier"), new_tier(LONGEST_NAME)
    assert len(LONGEST_NAME) == 40
    for tier in (short, long):
        tier.apply()
    for tier in (short, long):
        tier.wait_ready()
        tier.engine().store(chunks=CHUNKS)
    assert short.engine().token != long.engine().token
    containers, tokens, children = long.containers(), long.tokens(), long.children().keys()
    assert children.isdisjoint(short.children())
    assert f"{LONGEST_NAME}-r1" in {name for _, name in children}
    short.kubectl("delete", "kvt", short.name, "--cascade=foreground", "--timeout=30s")
    long.patch({"store": {"eviction": "LFU"}})
    long.wait_ready()
    assert (long.containers(), long.tokens(), long.children().keys()) == (
        containers,
        tokens,
        children,
    )
    assert long.engine().hits(chunks=CHUNKS) == {0: CHUNKS, 1: CHUNKS}


def test_the_controllers_own_namespace_refuses_pods_that_are_not_restricted(
    kvtier: Installation,
) -> None:
    """Every test of this session has run with it like this."""
    namespace = kvtier.cluster.api.get("namespaces", "", NAMESPACE)
    assert namespace is not None
    labels = namespace["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    pod = json.loads(
        kvtier.cluster.kubectl(
            *("run", "loose", "--image=x", "-n", NAMESPACE, "--dry-run=client", "-o", "json")
        )
    )
    with pytest.raises(AssertionError, match="violates PodSecurity"):
        kvtier.cluster.kubectl("apply", "-f", "-", "--dry-run=server", stdin=json.dumps(pod))
    assert kvtier.pod()["status"]["phase"] == "Running"
