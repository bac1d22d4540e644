"""Pure: the generation of a tier that a pod's own KV belongs to."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from kvtier.api.types import KVCacheTier
from kvtier.generation.entry import WITH_ACCESS, GenerationEntry, GenerationState
from kvtier.generation.identity import IDENTITY_VERSION, id_of, identity
from kvtier.generation.pods.engines import FIELDS, engines
from kvtier.generation.pods.read import ANNOTATIONS, PodIdentity, differences, unknowns
from kvtier.generation.pods.reading import ARGUMENTS
from kvtier.plan.pool import OFFERED_FIELDS, PoolPod, offered, tier_of
from kvtier.webhook.decision import judge

OURS: Final = frozenset({"chunkTokens", "connector"})
"""Fields of an identity that a pod gets with its injection."""
_NEEDED: Final = tuple(sorted(FIELDS - OURS))


class Cause(StrEnum):
    """Why a pod is left alone."""

    TIER = "Tier"
    CONNECTOR = "Connector"
    ENGINE = "Engine"
    TRANSFER_CONFIG = "TransferConfig"
    UNREADABLE = "Unreadable"
    NO_GENERATION = "NoGeneration"
    CONFLICT = "Conflict"


class LeftAlone(Exception):
    """A pod gets nothing; one line that says why and what to do."""

    def __init__(self, cause: Cause, why: str) -> None:
        super().__init__(why)
        self.cause = cause


@dataclass(frozen=True, slots=True)
class Match:
    """``tier`` is the tier as it would be if its spec named the generation."""

    generation: str
    tier: KVCacheTier


def match(pod: PodIdentity, *, tier: KVCacheTier, document: Mapping[str, Any]) -> Match:
    """The generation that the pod is to get.

    ``document`` is the tier as it was read. Nothing that is not certain counts: every field of the
    identity that a pod tells must be read, and everything in which the pod and the identity differ
    must be in the id of a generation that has access. Raises LeftAlone.
    """
    wanted = identity(tier.spec)
    _all_certain(wanted, pod)
    found = differences(wanted, pod)
    if not found:
        _has_access(id_of(wanted), tier, document)
        return Match(id_of(wanted), tier)
    told = "; ".join(map(str, found))
    if {each.field for each in found} <= OFFERED_FIELDS:
        one = PoolPod(name="", digest="", ready=False, identity=pod)
        for generation, fields in offered(wanted, [one]).items():
            if _states(tier).get(generation) in WITH_ACCESS:
                entry = GenerationEntry(
                    id=generation, state=GenerationState.LIVE, token="", identity=fields
                )
                own = tier_of(tier, entry, version=IDENTITY_VERSION)
                if own is not None:
                    return Match(generation, own)
    raise LeftAlone(
        Cause.NO_GENERATION,
        f"{told}, and the tier has no generation for that; change the pod or spec.model",
    )


def _all_certain(wanted: Mapping[str, Any], pod: PodIdentity) -> None:
    doubts = unknowns(wanted, pod)
    if ARGUMENTS in doubts:
        raise LeftAlone(Cause.UNREADABLE, f"{doubts[ARGUMENTS]}; write the arguments out")
    for name in _NEEDED:
        if name not in pod.fields or name in doubts:
            _unreadable(name, doubts.get(name))
    if "chunkTokens" in doubts:
        _unreadable("chunkTokens", doubts["chunkTokens"])
    if pod.settings.get("kvCacheDtype") == "auto":
        # A checkpoint with scales of its own makes FP8 of it.
        _unreadable("kvCacheDtype", "--kv-cache-dtype is auto")
    told = {_folded(name) for name in pod.settings}
    why = {_folded(name): text for name, text in doubts.items()}
    for key in sorted(wanted.get("identity", ())):
        if _folded(key) in why or (_folded(key) in _settings() and _folded(key) not in told):
            _unreadable(key, why.get(_folded(key)))


def _unreadable(name: str, why: str | None) -> None:
    found = [key for key, field in ANNOTATIONS.items() if field == name]
    annotation = f", or annotate the pod with {found[0]}" if found else ""
    raise LeftAlone(
        Cause.UNREADABLE,
        f"{name} of what it runs cannot be told: {why or 'the pod does not say it'}; say it in an"
        f" argument{annotation}",
    )


def _has_access(generation: str, tier: KVCacheTier, document: Mapping[str, Any]) -> None:
    """The spec's own generation: in use, or about to be made."""
    states = _states(tier)
    if states.get(generation) in WITH_ACCESS:
        return
    if generation in states:
        raise LeftAlone(
            Cause.NO_GENERATION,
            f"its generation {generation} is {states[generation]}: `kubectl kvtier status` says"
            " what it waits for",
        )
    seen = (tier.status or {}).get("observedGeneration", 0) >= (tier.metadata.generation or 0)
    # The tier was edited a moment ago: the controller makes a Secret of what it accepts, and the
    # kubelet waits for it, as with one that is mounted by hand.
    if seen or tier.spec.paused or judge(document, made=bool(states)).refusals:
        raise LeftAlone(
            Cause.NO_GENERATION,
            f"its generation {generation} is not published: `kubectl kvtier status` says why",
        )


def _states(tier: KVCacheTier) -> dict[str, str]:
    rows = (tier.status or {}).get("generations") or ()
    return {str(row.get("id")): str(row.get("state")) for row in rows if isinstance(row, Mapping)}


def _settings() -> frozenset[str]:
    """What a pod can say beside fields, folded."""
    names = {flag.meaning for engine in engines() for flag in engine.meanings}
    return frozenset(map(_folded, names - FIELDS))


def _folded(name: str) -> str:
    """As in ``generation.pods.compare``."""
    return name.replace("_", "").replace("-", "").lower()
