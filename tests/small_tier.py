"""The small tier of the tests on fakes, and what they read of it."""

from datetime import datetime
from typing import Any

from kvtier.cluster.fake import FakeCluster
from kvtier.cluster.protocol import CONFIGMAP
from kvtier.probe.result import ProbeResult, RankMeasure, to_json
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


def probe_message(node: str, *, rate: float, at: datetime, busy: float = 0.2) -> str:
    """What a probe of its ranks leaves, each of them read at ``rate`` bytes/s."""
    ranks = tuple(
        RankMeasure(
            rank=rank,
            bytes_per_second=rate,
            round_trip=100e-6,
            round_trip_p99=200e-6,
            bytes_timed=int(rate),
            cpu_seconds=0.01,
            busy=busy,
        )
        for rank in range(spec()["pool"]["ranks"])
    )
    return to_json(
        ProbeResult(
            at=at.strftime("%Y-%m-%dT%H:%M:%SZ"),
            node=node,
            seconds=1.0,
            throttled=0.0,
            bytes_moved=2 * int(rate),
            ranks=ranks,
        )
    )


def read_conf(cluster: FakeCluster, *, namespace: str, tier: str) -> dict[str, str]:
    """The settings in the tier's valkey.conf."""
    found = cluster.peek(CONFIGMAP, namespace, config_name(tier))
    assert found is not None
    words = (line.split(maxsplit=1) for line in found["data"][CONFIG_KEY].splitlines())
    return {pair[0]: pair[1].strip('"') for pair in words if len(pair) == 2 and pair[0] != "#"}
