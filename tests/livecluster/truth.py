"""What kvtier says of a link, beside what the reference client takes over it.

The model is scaled down until its break-even bandwidth is one that this cluster's links can be
narrowed around; all that is judged is a ratio to it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvtier.api.load import parse_tier
from kvtier.breakeven.footprint import wire_bytes_per_token
from livecluster import loadtest
from livecluster.tier import Patch, Tier

ENGINE_NODE = "node-3"
TOKENS = 16384
PROMPT = TOKENS + 256
"""One chunk of every prompt is no hit."""
PAYLOAD = 1448 / 1514
"""Share of a full Ethernet frame that is payload: the rest of a link's rate is headers."""
ON_OTHER_NODES: Patch = {"store": {"nodeSelector": {"kvtier.dev/leaf": "leaf-a"}}}
"""One rank on each of the two nodes without the engine."""
SLOW: Patch = {
    "placement": {"links": [{"domain": "zone", "bitsPerSecond": "4M", "roundTrip": "1ms"}]}
}
"""As declared, slower than any link here: it sets the timeouts of requests, and no verdict."""


@dataclass(frozen=True, slots=True)
class Judged:
    """``says`` is the verdict, ``predicted`` the seconds that kvtier gives a hit on TOKENS from its
    probe; ``fetch`` and ``recompute`` are the client's own, of the same hit."""

    says: str
    message: str
    measured: Mapping[str, Any]
    predicted: float
    fetch: float
    recompute: float

    @property
    def wins(self) -> bool:
        """Whether hits were faster when they were timed."""
        return self.fetch < self.recompute


def break_even(tier: Tier) -> float:
    """Bytes/s, from the spec."""
    spec = parse_tier(tier.body()).spec
    return float(wire_bytes_per_token(spec) * spec.pool.prefill_rate[0].tokens_per_second)


def judge(tier: Tier, measured: Mapping[str, Any], *, run: str = "truth") -> Judged:
    """The verdict by that probe, and the client's times over the same link."""
    body = tier.body()
    rows = {row["tokens"]: row for row in body["status"]["breakEven"]["perLength"]}
    report = _timed(tier, run)
    return Judged(
        says=body["status"]["verdict"],
        message=tier.condition("EarningItsKeep")["message"],
        measured=measured,
        predicted=rows[TOKENS]["fetchSeconds"],
        fetch=report["fetchSeconds"]["p50"],
        recompute=report["recomputeSeconds"]["p50"],
    )


def _timed(tier: Tier, run: str) -> dict[str, Any]:
    """One engine, alone on its node, whose requests hardly ever meet."""
    load = ("--engines", "1", "--rate", "0.25", "--prefixes", "1", "--prompt-tokens", str(PROMPT))
    timing = loadtest.start(
        tier,
        *(*load, "--prefix-tokens", str(TOKENS)),
        seconds=30,
        name=run,
        node=ENGINE_NODE,
    )
    report = timing.report()
    assert timing.exit_code() == 0, report["wrong"]
    assert report["tokens"]["hit"] >= 3 * TOKENS, "too few hits to time"
    return report
