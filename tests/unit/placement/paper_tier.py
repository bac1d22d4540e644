"""The tier of arXiv 2610.21500, changed: 48.4 KB a token, 52,200 tokens/s, 0.33 s, 10.76 GB/s."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from kvtier.api.load import parse_tier
from kvtier.api.types import KVCacheTierSpec
from kvtier.placement.findings import Finding, Severity
from kvtier.placement.judgement import Judgement, judge

PAPER: Mapping[str, Any] = {
    "metadata": {"name": "glm"},
    "spec": {
        "model": {
            "name": "zai-org/GLM-5.3-FP8",
            "revision": "r1",
            "kvCacheDtype": "fp8_e4m3",
            "layout": {"bytesPerToken": 48_400},
        },
        "pool": {
            "ranks": 8,
            "striping": "Shard",
            "prefillRate": [{"tokensPerSecond": 52_200}],
            "hitLatency": "250ms",
            "hitEngineTime": "80ms",
        },
        "store": {"memoryPerRank": "64Gi"},
        "placement": {
            "links": [{"domain": "zone", "bitsPerSecond": "86080M", "roundTrip": "50us"}]
        },
    },
}
QUICK = {"pool.hitLatency": "10ms", "pool.hitEngineTime": "5ms"}
"""A T0 that even hits of 4k tokens make up for."""


def tokens(*lengths: int) -> list[dict[str, Any]]:
    """Equally likely lengths, as quantiles."""
    share = 1 / len(lengths)
    return [
        {"quantile": f"{(index + 1) * share:.4f}"[:6].replace("1.0000", "1"), "tokens": length}
        for index, length in enumerate(lengths)
    ]


def link(bits_per_second: str, round_trip: str = "50us") -> dict[str, Any]:
    declared = {"domain": "zone", "bitsPerSecond": bits_per_second, "roundTrip": round_trip}
    return {"placement.links": [declared]}


def spec(*changes: Mapping[str, Any]) -> KVCacheTierSpec:
    """Through the parser, so that no test judges a tier which could not exist."""
    document = deepcopy(dict(PAPER))
    for change in changes:
        for path, value in change.items():
            *parents, last = path.split(".")
            node = document["spec"]
            for parent in parents:
                node = node.setdefault(parent, {})
            if value is None:
                node.pop(last, None)
            else:
                node[last] = value
    return parse_tier(document).spec


def judged(*changes: Mapping[str, Any], **known: Any) -> Judgement:
    return judge(spec(*changes), **known)


def finding(reason: str, *changes: Mapping[str, Any], **known: Any) -> Finding | None:
    """The one finding with this reason, None without it."""
    found = [one for one in judged(*changes, **known).findings if one.reason == reason]
    assert len(found) <= 1
    return found[0] if found else None


def expect(found: Finding | None, severity: Severity, *figures: str, blocks: bool = False) -> None:
    assert found is not None
    assert found.severity is severity
    assert found.blocks is blocks
    for figure in figures:
        assert figure in found.message
