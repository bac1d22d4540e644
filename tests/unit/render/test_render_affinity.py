"""Where the scheduler is told to put ranks."""

from typing import Any

import pytest

from kvtier.placement.domain import Domain
from kvtier.render.affinity import GPU_TAINTS
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
