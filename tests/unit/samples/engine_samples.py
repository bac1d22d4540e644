"""The sample engines, as pods and what their containers are told."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

SAMPLES = Path(__file__).resolve().parents[3] / "deploy/samples"
ENGINES = SAMPLES / "engines"
TIERS = {
    "vllm-shard.yaml": SAMPLES / "llama-3.1-70b.yaml",
    "vllm-hash.yaml": ENGINES / "tier-hash.yaml",
    "leaderworkerset.yaml": ENGINES / "tier-hash.yaml",
    "sglang.yaml": ENGINES / "tier-sglang.yaml",
}
"""Which tier each sample is an engine of."""
LABEL = "kvtier.dev/tier"


@dataclass(frozen=True, slots=True)
class Container:
    """``said`` is its command with what its environment names put in."""

    name: str
    said: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pod:
    labels: Mapping[str, str]
    spec: Mapping[str, Any]

    @property
    def servers(self) -> list[Container]:
        return [_container(each) for each in self.spec["initContainers"]]

    @property
    def engine(self) -> Container:
        (only,) = self.spec["containers"]
        return _container(only)

    @property
    def secret_names(self) -> list[str]:
        return [each["secret"]["secretName"] for each in self.spec["volumes"] if "secret" in each]


def documents(text: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(text) if each]


def pods(text: str) -> list[Pod]:
    """Of every workload in a manifest: a LeaderWorkerSet has two."""
    return [Pod(each["metadata"]["labels"], each["spec"]) for each in _templates(documents(text))]


def templates(text: str) -> list[dict[str, Any]]:
    return list(_templates(documents(text)))


def _templates(found: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for each in found:
        spec = each.get("spec", {})
        if each["kind"] == "LeaderWorkerSet":
            group = spec["leaderWorkerTemplate"]
            yield from (group["leaderTemplate"], group["workerTemplate"])
        elif "template" in spec:
            yield spec["template"]


def _container(body: Mapping[str, Any]) -> Container:
    said = " ".join([*body["command"], *body.get("args", [])])
    for entry in body.get("env", []):
        said = re.sub(rf"\$(?:{entry['name']}\b|{{{entry['name']}}})", entry["value"], said)
    return Container(body["name"], said, body)
