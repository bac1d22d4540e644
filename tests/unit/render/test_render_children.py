"""All children together.

`UPDATE_GOLDEN=1 pytest tests/unit/render/test_render_children.py` writes the files anew: read the
diff, and remember that a changed pod template must not restart a tier unasked.
"""

import os
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvtier.generation.acl import acl_file
from kvtier.generation.record import from_json
from kvtier.render.render import RenderSettings, render

GOLDEN = Path(__file__).with_name("golden")
EVERYTHING = {
    "pool.ranks": 2,
    "pool.striping": "Hash",
    "model.salt": "1",
    "store": {
        "image": "registry.example/valkey:8.1.4",
        "version": "8.1",
        "memoryPerRank": "96Gi",
        "cpu": "4",
        "ioThreads": 3,
        "eviction": "LFU",
        "tolerations": [{"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}],
        "nodeSelector": {"pool": "gpu"},
        "priorityClassName": "high",
        "imagePullSecrets": [{"name": "pull"}],
        "labels": {"team": "a"},
        "annotations": {"example.com/owner": "b"},
        "tls": {"secretName": "ranks-tls"},
    },
}
IN_PROCESS = {
    "pool.ranks": 2,
    "pool.engine": {"connector": "LMCacheInProcess", "vllmVersion": "0.12.0"},
    "pool.hitLatency": "300ms",
    "pool.hitEngineTime": "30ms",
    "placement.links": [{"domain": "zone", "bitsPerSecond": "100G", "roundTrip": "50us"}],
    "store.tls": {"secretName": "ranks-tls"},
}
CASES: dict[str, Mapping[str, Any]] = {
    "shard": {"pool.ranks": 2},
    "everything": EVERYTHING,
    "in-process-tls": IN_PROCESS,
    "stock-tls": {
        "pool.ranks": 1,
        "pool.engine": {"adapter": "Stock"},
        "store.tls": {"secretName": "ranks-tls"},
    },
}
CA = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"


def rendered(tier: Any, make_record: Any) -> list[dict[str, Any]]:
    ca = CA if tier.spec.store.tls else None
    return render(tier, make_record(tier), settings=RenderSettings(), ca=ca)


def readable(obj: Mapping[str, Any]) -> Mapping[str, Any]:
    """Secrets' data as text, so that a diff of a golden file can be read."""
    if obj["kind"] != "Secret":
        return obj
    return {**obj, "data": {key: _shown(key, text) for key, text in obj["data"].items()}}


def _shown(key: str, encoded: str) -> str:
    # What the plugin does is tested elsewhere, and its bytes change with each line of it.
    return "(a zip file)" if key.endswith(".zip") else b64decode(encoded).decode()


class _Text(yaml.SafeDumper):
    """Texts of several lines as blocks, and no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Text.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    ),
)


@pytest.mark.parametrize("case", CASES)
def test_the_children_are_what_was_reviewed(case: str, make_tier: Any, make_record: Any) -> None:
    objects = [readable(obj) for obj in rendered(make_tier(CASES[case]), make_record)]
    text = yaml.dump_all(objects, Dumper=_Text, sort_keys=False, width=100)
    golden = GOLDEN / f"{case}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


def test_what_a_pod_mounts_comes_before_the_pod(make_tier: Any, make_record: Any) -> None:
    objects = rendered(make_tier({"pool.ranks": 2}), make_record)
    generation = make_record(make_tier({"pool.ranks": 2})).current.id
    assert [(obj["kind"], obj["metadata"]["name"]) for obj in objects] == [
        ("Secret", "llama-operator"),
        ("Secret", "llama-acl"),
        ("ConfigMap", "llama-valkey"),
        ("Secret", f"llama-engine-{generation}"),
        ("Secret", "llama-probe"),
        ("Secret", "llama-limiter"),
        ("Service", "llama-r0"),
        ("Service", "llama-r1"),
        ("StatefulSet", "llama-r0"),
        ("StatefulSet", "llama-r1"),
    ]


def test_every_child_goes_with_its_tier(make_tier: Any, make_record: Any) -> None:
    for obj in rendered(make_tier(), make_record):
        (owner,) = obj["metadata"]["ownerReferences"]
        assert owner["uid"] == "1f0c5b4e-0000-4000-8000-000000000001"
        assert owner["controller"] is owner["blockOwnerDeletion"] is True
        assert obj["metadata"]["namespace"] == "models"
        assert obj["metadata"]["labels"]["kvtier.dev/tier-name"] == "llama"
        assert "kvtier.dev/tier" not in obj["metadata"]["labels"]


def test_the_same_tier_renders_the_same_bytes(make_tier: Any, make_record: Any) -> None:
    assert rendered(make_tier(), make_record) == rendered(make_tier(), make_record)


def test_nothing_is_rendered_that_the_api_server_leaves_out(
    make_tier: Any, make_record: Any
) -> None:
    """An empty value would never be found in the live object, and be applied for ever."""

    def empties(value: Any, path: str) -> list[str]:
        if isinstance(value, dict):
            return [p for key, below in value.items() for p in empties(below, f"{path}.{key}")]
        if isinstance(value, list):
            return [p for i, below in enumerate(value) for p in empties(below, f"{path}.{i}")]
        return [path] if value in ("", None, [], {}) else []

    for case in CASES.values():
        for obj in rendered(make_tier(case), make_record):
            assert empties(obj, "") == []


def test_the_acl_secret_holds_the_record_and_every_ranks_file(
    make_tier: Any, make_record: Any
) -> None:
    tier = make_tier()
    record = make_record(tier)
    data = {
        key: b64decode(text).decode()
        for key, text in rendered(tier, make_record)[1]["data"].items()
    }
    assert from_json(data.pop("record.json")) == record
    assert data == {f"users-r{rank}.acl": acl_file(record, rank=rank) for rank in range(8)}


def test_a_service_selects_the_one_pod_of_its_rank(make_tier: Any, make_record: Any) -> None:
    objects = rendered(make_tier(), make_record)
    services = {obj["metadata"]["name"]: obj for obj in objects if obj["kind"] == "Service"}
    for obj in objects:
        if obj["kind"] != "StatefulSet":
            continue
        name = obj["metadata"]["name"]
        pod = obj["spec"]["template"]["metadata"]["labels"] | {
            "statefulset.kubernetes.io/pod-name": f"{name}-0"
        }
        matching = [
            service
            for service, other in services.items()
            if other["spec"]["selector"].items() <= pod.items()
        ]
        assert matching == [name]
        assert obj["spec"]["selector"]["matchLabels"].items() <= pod.items()


def test_the_installations_image_is_used_where_the_tier_names_none(make_tier: Any) -> None:
    chosen = RenderSettings(valkey_images={"8.1": "a:8", "9.1": "a:9"})
    assert chosen.image(make_tier()) == "a:9"
    assert chosen.image(make_tier({"store.version": "8.1"})) == "a:8"
    assert chosen.image(make_tier({"store.image": "b:1"})) == "b:1"
    assert RenderSettings().image(make_tier()) == "docker.io/valkey/valkey:9.1"


def test_only_secrets_hold_a_token(make_tier: Any, make_record: Any) -> None:
    for obj in rendered(make_tier(), make_record):
        assert obj["kind"] == "Secret" or "kvtt-" not in str(obj)
