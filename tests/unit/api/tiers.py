"""Manifests for tests of the API: the smallest tier, and changes of it."""

import copy
from typing import Any

SMALLEST: dict[str, Any] = {
    "apiVersion": "kvtier.dev/v1alpha1",
    "kind": "KVCacheTier",
    "metadata": {"name": "tier"},
    "spec": {
        "model": {
            "name": "meta-llama/Llama-3.1-70B-Instruct",
            "revision": "1605565b47bb9346c5515c34102e054115b4f98b",
            "kvCacheDtype": "bfloat16",
            "layout": {"gqa": {"layers": 80, "kvHeads": 8, "headDim": 128}},
        },
        "pool": {"ranks": 8, "prefillRate": [{"tokensPerSecond": 5000}]},
        "store": {"memoryPerRank": "64Gi"},
    },
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """The smallest tier with the field at ``path`` (``spec.pool.ranks``) set, or None: removed."""
    document = copy.deepcopy(SMALLEST)
    *above, last = path.split(".")
    here = document
    for name in above:
        here = here.setdefault(name, {})
    if value is None:
        here.pop(last)
    else:
        here[last] = value
    return document
