"""The project's own samples are engines of the tiers that they are written for."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from kvtier.api.load import load_file
from kvtier.generation.identity import generation_id, identity
from kvtier.generation.pods.read import differences, read_pod

SAMPLES = Path(__file__).parents[4] / "deploy" / "samples"
PAIRS = {
    "vllm-hash.yaml": "engines/tier-hash.yaml",
    "leaderworkerset.yaml": "engines/tier-hash.yaml",
    "sglang.yaml": "engines/tier-sglang.yaml",
    "vllm-shard.yaml": "llama-3.1-70b.yaml",
}


def templates(node: Any) -> list[dict[str, Any]]:
    """Pod templates anywhere in a manifest."""
    if not isinstance(node, dict):
        return []
    own = [node] if "containers" in node.get("spec", {}) else []
    return own + [found for each in node.values() for found in templates(each)]


@pytest.mark.parametrize("name", PAIRS)
def test_a_sample_runs_what_its_tier_says(name: str) -> None:
    tier = load_file(str(SAMPLES / PAIRS[name]))
    manifests = yaml.safe_load_all((SAMPLES / "engines" / name).read_text())
    pods = [pod for manifest in manifests for pod in templates(manifest)]
    assert pods
    for pod in pods:
        found = read_pod(pod, tier=tier.metadata.name, config_maps={})
        assert found.generations == {generation_id(tier.spec)}
        assert found.fields["modelName"] == tier.spec.model.name
        assert found.fields["parallelism.tensor"]
        assert "arguments" not in found.unreadable
        assert differences(identity(tier.spec), found) == ()
