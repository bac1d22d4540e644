"""The chart's life on a real cluster, by both Helms, with a tier that serves throughout."""

from collections.abc import Iterator

import pytest

from livecluster.audit import Request, described
from livecluster.fixtures import NewTier
from livecluster.installation import NAMESPACE, Installation
from livecluster.tier import Tier
from livecluster.waiting import eventually

CHUNKS = 8
CRD = "kvcachetiers.kvtier.dev"
VERSIONS = {"helm": "v4.", "helm3": "v3."}


@pytest.fixture(scope="module")
def served(module_tiers: NewTier) -> Tier:
    tier = module_tiers("chat")
    tier.apply()
    tier.wait_ready()
    tier.engine().store(chunks=CHUNKS)
    return tier


@pytest.fixture
def tier(served: Tier, kvtier: Installation) -> Iterator[Tier]:
    """The tier; at the end kvtier is installed as it was, and the tier has not felt anything."""
    containers, tokens = served.containers(), served.tokens()
    yield served
    if kvtier.helm not in ("", "helm"):
        kvtier.uninstall()
    kvtier.install()
    served.wait_ready()
    assert served.containers() == containers
    assert served.tokens() == tokens
    assert served.engine().hits(chunks=CHUNKS) == {0: CHUNKS, 1: CHUNKS}


def touched(kvtier: Installation, tier: Tier, requests: list[Request]) -> str:
    """The controller's writes to the tier's objects, as text."""
    return described(
        requests,
        keep=lambda each: (
            each.is_write and each.namespace == tier.namespace and each.resource != "events"
        ),
    )


@pytest.mark.parametrize("helm", ["helm", "helm3"])
def test_tiers_feel_no_upgrade_uninstall_or_reinstall(
    helm: str, tier: Tier, kvtier: Installation
) -> None:
    cluster = kvtier.cluster
    assert cluster.run(helm, "version", "--short").startswith(VERSIONS[helm])
    if kvtier.helm != helm:
        kvtier.uninstall()
        kvtier.install(helm=helm)
    begin = cluster.audit.mark()
    first = kvtier.pod()["metadata"]["name"]

    kvtier.install("--set=controller.logLevel=debug", helm=helm)
    eventually(lambda: kvtier.pod()["metadata"]["name"] != first, seconds=60, what="a new pod")
    args = kvtier.pod()["spec"]["containers"][0]["args"]
    assert "--log-level=debug" in args
    tier.wait_ready()

    kvtier.uninstall()
    assert cluster.api.get("customresourcedefinitions", "", CRD) is not None
    engine = tier.engine()
    assert engine.hits(chunks=CHUNKS) == {0: CHUNKS, 1: CHUNKS}
    engine.store(chunks=CHUNKS)
    assert cluster.api.list("serviceaccounts", NAMESPACE, selector="helm.sh/chart") == []

    kvtier.install(helm=helm)
    # It has taken over once it answers for an edit.
    tier.patch({"workload": {"promptTokens": [{"quantile": "0.5", "tokens": 8000}]}})
    tier.wait_ready()
    tier.patch({"workload": None})
    tier.wait_ready()
    writes = touched(kvtier, tier, kvtier.requests(begin)).splitlines()
    beside = [line for line in writes if "kvcachetiers/status" not in line]
    assert beside == [], "\n".join(beside)
