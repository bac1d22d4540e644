"""A tier made to fit a machine: less memory, fewer engines, no certificates. Pure."""

from dataclasses import dataclass
from typing import Any, Final

from kvtier.api.load import InvalidTier, parse_tier
from kvtier.api.types import API_VERSION, KIND, KVCacheTier
from kvtier.breakeven.words import size
from kvtier.render.memory import memory
from kvtier.render.quantities import memory_quantity

SHARE: Final = 0.6
"""Of what the machine has left; the rest is for the probe, the reference client and surprises."""
_MIB: Final = 1 << 20


class TooSmall(Exception):
    """The machine cannot hold the tier's ranks. One line with the fix."""


@dataclass(frozen=True, slots=True)
class Scaled:
    """``tier`` as it runs here, and what is not as in the file, a sentence each."""

    tier: KVCacheTier
    changes: tuple[str, ...]


def scaled(tier: KVCacheTier, *, available: int) -> Scaled:
    """The tier with all its ranks on a machine that has ``available`` bytes of memory left.

    What is stored and how, users, and the size of a chunk stay. Raises TooSmall.
    """
    ranks, declared = tier.spec.pool.ranks, tier.spec.store.memory_bytes
    changes: list[str] = []
    spec: dict[str, Any] = tier.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    if spec["store"].pop("tls", None):
        changes.append("without TLS: the certificate is in the cluster's Secret")
    share = int(SHARE * available) // ranks // _MIB * _MIB
    if share < declared:
        spec["store"]["memoryPerRank"] = memory_quantity(max(share, _MIB))
        changes.append(f"{size(share)} of memory a rank, not {size(declared)}")
        if not _fits(tier, spec):
            spec["pool"]["maxEngines"] = 1
            changes.append(f"sized for one engine, not {tier.spec.pool.max_engines}")
        if not _fits(tier, spec):
            raise TooSmall(_lacking(tier, spec, share=share))
    return Scaled(tier=_tier(tier, spec), changes=tuple(changes))


def _lacking(tier: KVCacheTier, spec: dict[str, Any], *, share: int) -> str:
    ranks = tier.spec.pool.ranks
    least = share
    while not _fits(tier, spec):
        least = least * 5 // 4 + _MIB
        spec["store"]["memoryPerRank"] = memory_quantity(least // _MIB * _MIB)
    return (
        f"{ranks} ranks get {size(share)} of memory each here, and one chunk is "
        f"{size(memory(_tier(tier, spec).spec).chunk_bytes)}: free about "
        f"{size(ranks * least / SHARE)}, or lower pool.chunkTokens in the file"
    )


def _fits(tier: KVCacheTier, spec: dict[str, Any]) -> bool:
    try:
        _tier(tier, spec)
    except InvalidTier:
        return False
    return True


def _tier(tier: KVCacheTier, spec: dict[str, Any]) -> KVCacheTier:
    metadata = {"name": tier.metadata.name, "namespace": tier.metadata.namespace}
    return parse_tier({"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec})
