"""A tier's spec with changes at dotted paths."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import pytest
from tier_specs import MakeSpec

from kvtier.api.load import parse_tier
from kvtier.api.types import KVCacheTierSpec

TIER: Mapping[str, Any] = {
    "metadata": {"name": "llama"},
    "spec": {
        "model": {
            "name": "meta-llama/Llama-3.1-70B-Instruct",
            "revision": "1605565b47bb9346c5515c34102e054115b4f98b",
            "kvCacheDtype": "bfloat16",
            "layout": {"gqa": {"layers": 80, "kvHeads": 8, "headDim": 128}},
        },
        "pool": {"ranks": 8, "striping": "Shard", "prefillRate": [{"tokensPerSecond": 5000}]},
        "store": {"memoryPerRank": "64Gi"},
    },
}


@pytest.fixture(scope="session")
def make_spec() -> MakeSpec:
    def make(changes: Mapping[str, Any] | None = None) -> KVCacheTierSpec:
        """Through the parser, so that no test judges a tier which could not exist."""
        document = deepcopy(dict(TIER))
        for path, value in (changes or {}).items():
            *parents, last = path.split(".")
            node = document["spec"]
            for parent in parents:
                node = node.setdefault(parent, {})
            node[last] = value
        return parse_tier(document).spec

    return make
