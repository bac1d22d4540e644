"""What takes longer, or takes the operator or its CRD away: namespaces, many tiers, no operator."""

import json
import time
from collections.abc import Iterator

import pytest

from livecluster.audit import Request, described
from livecluster.cluster import LiveCluster
from livecluster.figures import write_row
from livecluster.fixtures import NewTier, tiers
from livecluster.installation import NAMESPACE, Installation
from livecluster.tier import CHILD_KINDS, Tier, manifest
from livecluster.waiting import eventually, never

CHUNKS = 8
GONE_SECONDS = 60.0
CRD = "kvcachetiers.kvtier.dev"
MANY = 20
MANY_SECONDS = 300.0
MOST_REQUESTS_EACH = 45
"""Of a tier of two ranks, by itself about 30: 8 creates, their events and the reads around them."""


@pytest.fixture
def without_operator(kvtier: Installation) -> Iterator[None]:
    """Scaled to nothing; at the end the release is as it was, with its CRD."""

    def scale(replicas: int) -> None:
        kvtier.cluster.kubectl(
            *("scale", "deployment/kvtier", "-n", NAMESPACE, f"--replicas={replicas}")
        )

    yield scale(0)
    kvtier.install()
    scale(1)
    kvtier.pod()


def served(new_tier: NewTier) -> Tier:
    tier = new_tier("chat")
    tier.apply()
    tier.wait_ready()
    return tier


def test_a_namespace_with_tiers_is_deleted_without_the_operator(
    new_tier: NewTier, kvtier: Installation, request: pytest.FixtureRequest
) -> None:
    tier = served(new_tier)
    request.getfixturevalue("without_operator")
    eventually(lambda: not kvtier.pods(), seconds=60, what="the controller is gone")
    started = time.monotonic()
    tier.kubectl("delete", "namespace", tier.namespace, f"--timeout={GONE_SECONDS:g}s")
    write_row(
        "faults.md",
        place="environments",
        row=(
            "namespace deleted, operator gone",
            f"all gone after {time.monotonic() - started:.0f} s, nothing hung",
        ),
    )


def test_the_crd_is_deleted_without_the_operator_and_every_tier_and_rank_with_it(
    new_tier: NewTier, kvtier: Installation, request: pytest.FixtureRequest
) -> None:
    tier = served(new_tier)
    request.getfixturevalue("without_operator")
    eventually(lambda: not kvtier.pods(), seconds=60, what="the controller is gone")
    started = time.monotonic()
    kvtier.cluster.kubectl("delete", "crd", CRD, f"--timeout={GONE_SECONDS:g}s")

    def left() -> list[str]:
        return [
            f"{plural}/{obj['metadata']['name']}"
            for plural in (*CHILD_KINDS, "pods")
            for obj in kvtier.cluster.api.list(plural, tier.namespace)
            if obj["metadata"]["name"] != "kube-root-ca.crt"
        ]

    eventually(lambda: not left(), seconds=GONE_SECONDS, what="nothing is left", detail=left)
    write_row(
        "faults.md",
        place="environments",
        row=(
            "CRD deleted, operator gone",
            f"tiers, ranks and Secrets gone after {time.monotonic() - started:.0f} s",
        ),
    )


def test_after_the_crd_was_deleted_an_install_serves_new_tiers(new_tier: NewTier) -> None:
    served(new_tier)


def test_an_installation_for_one_namespace_serves_it_and_never_touches_another(
    new_tier: NewTier, live: LiveCluster, kvtier: Installation
) -> None:
    own = new_tier("chat")
    with tiers(live, label="not-served") as new:
        other = new("chat")
        kvtier.uninstall()
        begin = live.audit.mark()
        kvtier.install(f"--set=watchNamespaces={{{own.namespace}}}")
        try:
            for tier in (own, other):
                tier.apply()
            own.wait_ready()
            own.patch({"store": {"eviction": "LFU"}})
            own.wait_ready()
            own.kubectl("delete", "service", "chat-r0")
            eventually(lambda: own.child("services", "chat-r0"), seconds=10, what="it is back")
            own.kubectl("delete", "pod", "chat-r1-0", "--wait=false")
            eventually(lambda: own.condition("Ready")["status"] == "False", seconds=15, what="lost")
            own.wait_ready()
            assert "status" not in other.body()
            assert other.children() == {}
            made = kvtier.requests(begin)
            assert any(each.namespace == own.namespace and each.is_write for each in made)
            wrong = [each for each in made if each.denied or each.namespace == other.namespace]
            assert wrong == [], described(wrong, keep=lambda _: True)
            cluster_wide = {
                each.resource
                for each in made
                # Of what is namespaced; discovery and the CRD have no namespace anyway.
                if each.namespace == "" and each.resource in ("secrets", "pods", "kvcachetiers")
            }
            assert cluster_wide == set()
        finally:
            kvtier.uninstall()
            kvtier.install()


def test_twenty_tiers_at_once_are_all_ready_and_cost_no_more_requests_each_than_one(
    new_tier: NewTier, kvtier: Installation
) -> None:
    many = [new_tier(f"tier-{number}") for number in range(MANY)]
    begin, started = kvtier.cluster.audit.mark(), time.monotonic()
    spec = {"store": {"cpu": "20m"}}
    kvtier.cluster.apply(
        [manifest(name=tier.name, namespace=tier.namespace, spec=spec) for tier in many]
    )
    for tier in many:
        tier.wait_ready(seconds=MANY_SECONDS)
    seconds = time.monotonic() - started
    made = [each for each in kvtier.requests(begin) if counts(each, many[0].namespace)]
    conflicts = [each for each in made if each.code in (409, 429) or each.code >= 500]
    write_row(
        "faults.md",
        place="environments",
        row=(
            f"{MANY} tiers of 2 ranks applied at once",
            f"all Ready after {seconds:.0f} s; {len(made)} API requests, "
            f"{len(made) / MANY:.0f} a tier, {len(conflicts)} refused or failed",
        ),
    )
    assert len(made) <= MANY * MOST_REQUESTS_EACH, described(made, keep=lambda _: True)
    assert len({tier.engine().token for tier in many}) == MANY
    settled = {tier.name: tier.containers() for tier in many}
    never(
        lambda: {tier.name: tier.containers() for tier in many} != settled,
        seconds=10,
        what="ranks restarted",
    )
    assert json.loads(many[0].kubectl("get", "kvt", "-o", "json"))["items"]


def counts(request: Request, namespace: str) -> bool:
    """A request made for these tiers: theirs, or a node's."""
    return (
        request.namespace in (namespace, "")
        and request.verb != "watch"
        and request.resource != "leases"
    )
