"""A tier's spec, and the same with one field changed."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import pytest

from kvtier.api.types import KVCacheTierSpec

SPEC: Mapping[str, Any] = {
    "model": {
        "name": "meta-llama/Llama-3.1-70B-Instruct",
        "revision": "1605565b47bb9346c5515c34102e054115b4f98b",
        "kvCacheDtype": "bfloat16",
        "layout": {"gqa": {"layers": 80, "kvHeads": 8, "headDim": 128}},
    },
    "pool": {"ranks": 8, "prefillRate": [{"tokensPerSecond": 5000}]},
    "store": {"memoryPerRank": "64Gi"},
}
MakeSpec = Callable[..., KVCacheTierSpec]


@pytest.fixture(scope="session")
def make_spec() -> MakeSpec:
    def make(changes: Mapping[str, Any] | None = None) -> KVCacheTierSpec:
        """The spec with values put at dotted paths (``pool.ranks``); None takes a field out."""
        document = deepcopy(dict(SPEC))
        for path, value in (changes or {}).items():
            *parents, last = path.split(".")
            node = document
            for parent in parents:
                node = node.setdefault(parent, {})
            if value is None:
                del node[last]
            else:
                node[last] = value
        return KVCacheTierSpec.model_validate(document)

    return make
