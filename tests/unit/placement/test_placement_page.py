"""docs/placement.md: what it says to copy is a tier that works."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvtier.api.load import parse_tier
from kvtier.placement.topology import HOSTNAME_KEY

PAGE = Path(__file__).parents[3] / "docs" / "placement.md"
BLOCKS = re.findall(r"```yaml\n# (\S+)\n(.*?)```", PAGE.read_text(), re.DOTALL)
MODEL = {"layers": 80, "kvHeads": 8, "headDim": 128}


def tier(placement: Any) -> dict[str, Any]:
    return {
        "apiVersion": "kvtier.dev/v1alpha1",
        "kind": "KVCacheTier",
        "metadata": {"name": "llama"},
        "spec": {
            "model": {
                "name": "m",
                "revision": "r",
                "kvCacheDtype": "bfloat16",
                "layout": {"gqa": MODEL},
            },
            "pool": {"ranks": 8, "prefillRate": [{"tokensPerSecond": 5000}]},
            "store": {"memoryPerRank": "64Gi"},
            **placement,
        },
    }


def test_every_source_of_labels_that_the_page_names_has_a_list() -> None:
    assert [name for name, _ in BLOCKS] == ["Topograph", "AWS", "GKE"]


@pytest.mark.parametrize(("name", "text"), BLOCKS, ids=[name for name, _ in BLOCKS])
def test_a_list_to_copy_is_accepted_and_goes_from_one_node_to_the_zone(
    name: str, text: str
) -> None:
    found = parse_tier(tier(yaml.safe_load(text))).spec.placement
    keys = [domain.key for domain in found.domains]
    assert keys[0] == HOSTNAME_KEY
    assert keys[-1] == "topology.kubernetes.io/zone"
    assert found.within in [domain.name for domain in found.domains[1:-1]]
    assert len(set(keys)) == len(keys), name
