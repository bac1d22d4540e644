"""Where the scheduler is told to put ranks."""

import math
from typing import Any

import pytest

from kvtier.placement.domain import Domain
from kvtier.render.affinity import GPU_TAINTS, SKEW_OF_A_PREFERENCE
from kvtier.render.names import RESTART_HASH
from kvtier.render.statefulset import statefulset

LEAF = Domain("leaf", "example.com/leaf", "leaf-a")
TERM = {
    "matchExpressions": [{"key": "example.com/leaf", "operator": "In", "values": ["leaf-a"]}],
}


def template(tier: Any, domain: Domain | None = LEAF) -> dict[str, Any]:
    found = statefulset(tier, 0, image="valkey", domain=domain)["spec"]["template"]
    assert isinstance(found, dict)
    return found


def affinity(tier: Any, domain: Domain | None = LEAF) -> Any:
    return template(tier, domain)["spec"].get("affinity", {}).get("nodeAffinity")


def test_by_default_ranks_prefer_the_domain_and_run_elsewhere_without_room(make_tier: Any) -> None:
    assert affinity(make_tier()) == {
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": TERM}]
    }


def test_a_required_domain_is_one_that_ranks_wait_for(make_tier: Any) -> None:
    assert affinity(make_tier({"placement.enforcement": "Required"})) == {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [TERM]}
    }


def test_before_an_engine_has_chosen_ranks_run_anywhere(make_tier: Any) -> None:
    assert affinity(make_tier({"placement.enforcement": "Required"}), domain=None) is None


def test_a_node_selector_that_names_the_domain_is_not_contradicted(make_tier: Any) -> None:
    elsewhere = {"store.nodeSelector": {"example.com/leaf": "leaf-b"}}
    assert affinity(make_tier(elsewhere)) is None
    assert affinity(make_tier({"store.nodeSelector": {"disk": "ssd"}})) is not None


@pytest.mark.parametrize("enforcement", ["Required", "Preferred"])
def test_a_spread_is_never_a_reason_to_wait(make_tier: Any, enforcement: str) -> None:
    spec = template(make_tier({"placement.enforcement": enforcement}))["spec"]
    (constraint,) = spec["topologySpreadConstraints"]
    assert constraint["topologyKey"] == "kubernetes.io/hostname"
    assert constraint["whenUnsatisfiable"] == "ScheduleAnyway"
    assert constraint["labelSelector"]["matchLabels"] == {"kvtier.dev/tier-name": "llama"}


@pytest.mark.parametrize(
    ("changes", "domain", "skew"),
    [
        ({}, None, 1),
        ({"placement.enforcement": "Required"}, LEAF, 1),
        ({"store.nodeSelector": {"example.com/leaf": "leaf-b"}}, LEAF, 1),
        ({}, LEAF, 32),
    ],
)
def test_a_spread_is_strong_unless_it_competes_with_a_preferred_domain(
    make_tier: Any, changes: dict[str, Any], domain: Domain | None, skew: int
) -> None:
    (constraint,) = template(make_tier(changes), domain)["spec"]["topologySpreadConstraints"]
    assert constraint["maxSkew"] == skew


@pytest.mark.parametrize("nodes", [3, 50, 1000])
@pytest.mark.parametrize("ranks", [2, 8, 16])
def test_an_empty_node_outside_is_never_worth_the_domain(nodes: int, ranks: int) -> None:
    # As the scheduler scores: least and greatest of all nodes, all ranks but one on one node.
    skew = SKEW_OF_A_PREFERENCE * ranks
    least, most = skew - 1, (ranks - 1) * math.log(nodes + 2) + skew - 1
    assert 100 * (most - least) / most < 67


def test_a_spread_that_is_not_wanted_is_not_asked_for(make_tier: Any) -> None:
    assert (
        "topologySpreadConstraints" not in template(make_tier({"placement.spread": "None"}))["spec"]
    )


def test_a_domain_restarts_nothing(make_tier: Any) -> None:
    hashes = {
        template(make_tier(changes), domain)["metadata"]["annotations"][RESTART_HASH]
        for changes in ({}, {"placement.enforcement": "Required"}, {"placement.spread": "None"})
        for domain in (None, LEAF)
    }
    assert len(hashes) == 1


def test_nodes_with_any_accelerator_are_tolerated_and_no_other_taint_is(make_tier: Any) -> None:
    tolerations = template(make_tier())["spec"]["tolerations"]
    free = {each["key"] for each in tolerations if "tolerationSeconds" not in each}
    assert free == set(GPU_TAINTS) >= {"nvidia.com/gpu", "amd.com/gpu"}
    assert all(each["operator"] == "Exists" and each["key"] for each in tolerations)
