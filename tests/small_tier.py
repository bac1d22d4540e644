"""The small tier of the tests on fakes, and what they read of it."""

from typing import Any

from kvtier.cluster.fake import FakeCluster
from kvtier.cluster.protocol import CONFIGMAP
from kvtier.render.names import CONFIG_KEY, config_name


def spec(**store: Any) -> dict[str, Any]:
    """The spec of a tier of two small ranks."""
    return {
        "model": {
            "name": "tiny",
            "revision": "r1",
            "kvCacheDtype": "bfloat16",
            "layout": {"gqa": {"layers": 2, "kvHeads": 2, "headDim": 64}},
        },
        "pool": {"ranks": 2, "prefillRate": [{"tokensPerSecond": 5000}]},
        "store": {"memoryPerRank": "256Mi", "cpu": "100m", **store},
    }


def read_conf(cluster: FakeCluster, *, namespace: str, tier: str) -> dict[str, str]:
    """The settings in the tier's valkey.conf."""
    found = cluster.peek(CONFIGMAP, namespace, config_name(tier))
    assert found is not None
    words = (line.split(maxsplit=1) for line in found["data"][CONFIG_KEY].splitlines())
    return {pair[0]: pair[1].strip('"') for pair in words if len(pair) == 2 and pair[0] != "#"}
