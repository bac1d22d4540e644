"""A tier that any machine can hold, with chunks large enough to be timed."""

from typing import Any

SMALL: dict[str, Any] = {
    "apiVersion": "kvtier.dev/v1alpha1",
    "kind": "KVCacheTier",
    "metadata": {"name": "small", "namespace": "models"},
    "spec": {
        "model": {
            "name": "a/small-model",
            "revision": "r1",
            "kvCacheDtype": "bfloat16",
            "layout": {"gqa": {"layers": 4, "kvHeads": 2, "headDim": 64}},
        },
        "pool": {
            "ranks": 2,
            "striping": "Shard",
            "prefillRate": [{"tokensPerSecond": 20000}],
            "hitLatency": "1ms",
            "hitEngineTime": "1ms",
            "maxEngines": 2,
        },
        "placement": {"links": [{"domain": "zone", "bitsPerSecond": "25G", "roundTrip": "50us"}]},
        "store": {"memoryPerRank": "96Mi"},
    },
}
