"""Engines of a tier as far as a probe needs them, and what the tier's status says of one."""

from datetime import UTC, datetime
from typing import Any

from livecluster.callers import Caller
from livecluster.tier import Tier
from livecluster.waiting import eventually

REQUESTED = "kvtier.dev/probe-requested"
PROBE_SECONDS = 180.0
"""Until a probe has ended, its pod included, on a busy machine."""


def engine_on(tier: Tier, node: str, name: str = "engine") -> Caller:
    """A Ready pod of the tier's pool."""
    engine = Caller(tier.cluster, tier.namespace, name)
    engine.start(labels={"kvtier.dev/tier": tier.name}, node=node)
    return engine


def ask(tier: Tier) -> str:
    """Ask for a probe; returns when that was, as the API server has it."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    tier.kubectl("annotate", "kvt", tier.name, f"{REQUESTED}={now}", "--overwrite")
    return now


def probed(tier: Tier, *, after: str = "", node: str = "") -> dict[str, Any]:
    """What the status says of a probe that ended after that, from this node if one is named."""

    def found() -> dict[str, Any] | None:
        status = tier.body().get("status", {}).get("measured", {})
        is_new = status.get("evidence") == "Probed" and status["at"] > after
        return status if is_new and node in ("", status["node"]) else None

    return eventually(
        found,
        seconds=PROBE_SECONDS,
        what="a probe's figures",
        detail=lambda: tier.kubectl("get", "events,jobs,pods", "-o", "wide"),
    )
