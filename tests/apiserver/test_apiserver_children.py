"""What kvtier renders, as a real API server keeps it."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from apiserver_process import ApiServer

from kvtier.api.load import parse_tier
from kvtier.api.types import KVCacheTier
from kvtier.generation.record import new_record
from kvtier.plan.drift import first_difference
from kvtier.render.render import RenderSettings, render

LAYOUT = {"gqa": {"layers": 80, "kvHeads": 8, "headDim": 128}}
STORES: dict[str, Mapping[str, Any]] = {
    "plain": {"memoryPerRank": "64Gi"},
    "odd-units": {"memoryPerRank": "64G", "cpu": "0.5"},
    "everything": {
        "image": "registry.example/valkey:8.1.4",
        "version": "8.1",
        "memoryPerRank": "65536Mi",
        "cpu": "4",
        "ioThreads": 3,
        "tolerations": [
            {"operator": "Exists", "key": "", "value": ""},
            {"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0},
            {"key": "b", "value": "", "effect": "NoSchedule"},
        ],
        "nodeSelector": {"pool": "", "zone": "b"},
        "priorityClassName": "high",
        "imagePullSecrets": [{"name": "pull"}, {"name": "another"}],
        "labels": {"team": "", "owner": "a"},
        "annotations": {"example.com/note": ""},
    },
}


def tier_in(namespace: str, store: Mapping[str, Any]) -> KVCacheTier:
    return parse_tier(
        {
            "apiVersion": "kvtier.dev/v1alpha1",
            "kind": "KVCacheTier",
            "metadata": {"name": "llama", "namespace": namespace, "uid": "u"},
            "spec": {
                "model": {
                    "name": "m",
                    "revision": "r",
                    "kvCacheDtype": "bfloat16",
                    "layout": LAYOUT,
                },
                "pool": {
                    "ranks": 2,
                    "striping": "Shard",
                    "prefillRate": [{"tokensPerSecond": 5000}],
                },
                "store": dict(store),
            },
        }
    )


def objects_of(tier: KVCacheTier) -> list[dict[str, Any]]:
    record = new_record(tier.spec, operator_token="kvtt-0f0f0f0f", engine_token="kvtt-1e1e1e1e")
    return render(tier, record, settings=RenderSettings())


@pytest.mark.parametrize("case", STORES)
def test_the_live_object_has_all_that_was_asked_for(case: str, apiserver: ApiServer) -> None:
    """Else kvtier would find drift, and write, at every reconcile."""
    namespace = f"children-{case}"
    assert apiserver.kubectl("create", "namespace", namespace).code == 0
    for intent in objects_of(tier_in(namespace, STORES[case])):
        answer = apiserver.apply(intent, "--server-side")
        assert (answer.code, answer.message) == (0, "")
        kind, name = intent["kind"], intent["metadata"]["name"]
        live = json.loads(apiserver.kubectl("get", kind, "-n", namespace, name, "-ojson").out)
        assert first_difference(intent, live) is None


def test_a_namespace_of_level_restricted_takes_the_ranks_pod(apiserver: ApiServer) -> None:
    namespace = "restricted"
    assert apiserver.kubectl("create", "namespace", namespace).code == 0
    level = "pod-security.kubernetes.io/enforce=restricted"
    assert apiserver.kubectl("label", "namespace", namespace, level).code == 0
    template = objects_of(tier_in(namespace, STORES["plain"]))[-1]["spec"]["template"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**template["metadata"], "name": "rank", "namespace": namespace},
        "spec": template["spec"],
    }
    answer = apiserver.apply(pod, "--server-side")
    assert (answer.code, answer.message) == (0, "")
    # The judge is awake: the same pod as root is refused.
    pod["metadata"]["name"] = "root"
    pod["spec"]["securityContext"] |= {"runAsUser": 0, "runAsNonRoot": False}
    answer = apiserver.apply(pod, "--server-side")
    assert answer.code != 0
    assert "violates PodSecurity" in answer.message
