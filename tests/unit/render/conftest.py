"""Tiers to render, and real servers to try the result on."""

import sys
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from kvtier.api.types import KVCacheTier
from kvtier.generation.record import Record, new_record

# The helper that starts real servers is the store tests'.
sys.path.insert(0, str(Path(__file__).parents[1] / "store"))

TIER: Mapping[str, Any] = {
    "metadata": {
        "name": "llama",
        "namespace": "models",
        "uid": "1f0c5b4e-0000-4000-8000-000000000001",
    },
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
MakeTier = Callable[..., KVCacheTier]


@pytest.fixture(scope="session")
def make_tier() -> MakeTier:
    def make(changes: Mapping[str, Any] | None = None) -> KVCacheTier:
        """The tier with values put at dotted paths of its spec (``pool.ranks``)."""
        document = deepcopy(dict(TIER))
        for path, value in (changes or {}).items():
            *parents, last = path.split(".")
            node = document["spec"]
            for parent in parents:
                node = node.setdefault(parent, {})
            node[last] = value
        return KVCacheTier.model_validate(document)

    return make


@pytest.fixture(scope="session")
def make_record() -> Callable[[KVCacheTier], Record]:
    return lambda tier: new_record(
        tier.spec,
        operator_token="kvtt-0f0f0f0f",
        engine_token="kvtt-1e1e1e1e",
        probe_token="kvtt-3c3c3c3c",
        limiter_token="kvtt-4d4d4d4d",
    )
