"""A tier file that pays when long, and changes of it."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

TIER: Mapping[str, Any] = {
    "apiVersion": "kvtier.dev/v1alpha1",
    "kind": "KVCacheTier",
    "metadata": {"name": "llama-prefill", "namespace": "models"},
    "spec": {
        "model": {
            "name": "meta-llama/Llama-3.1-70B-Instruct",
            "revision": "1605565b47bb9346c5515c34102e054115b4f98b",
            "kvCacheDtype": "bfloat16",
            "layout": {"gqa": {"layers": 80, "kvHeads": 8, "headDim": 128}},
        },
        "pool": {
            "ranks": 8,
            "striping": "Shard",
            "prefillRate": [{"tokensPerSecond": 5000}],
            "hitLatency": "300ms",
            "hitEngineTime": "30ms",
        },
        "placement": {"links": [{"domain": "zone", "bitsPerSecond": "25G", "roundTrip": "50us"}]},
        "store": {"memoryPerRank": "64Gi"},
    },
}


@pytest.fixture
def tier_file(tmp_path: Path) -> Callable[..., Path]:
    def write(changes: Mapping[str, Any] | None = None) -> Path:
        """The file with values at dotted paths of the spec; None takes a field out."""
        document = deepcopy(dict(TIER))
        for path, value in (changes or {}).items():
            *parents, last = path.split(".")
            node = document["spec"]
            for parent in parents:
                node = node[parent]
            if value is None:
                del node[last]
            else:
                node[last] = value
        file = tmp_path / "tier.yaml"
        file.write_text(yaml.safe_dump(document))
        return file

    return write
