"""Pure: what the pods of the pool run that speaks against the tier, or cannot be told."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from kvtier.api import reasons
from kvtier.api.rollout import OnPoolDrift
from kvtier.api.types import Connector, KVCacheTier
from kvtier.breakeven.words import counted
from kvtier.generation.pods.read import PodIdentity, differences, has_drifted, unknowns
from kvtier.generation.record import Record
from kvtier.placement.findings import Finding, named
from kvtier.plan.pool import PoolPod
from kvtier.render.names import engine_secret_name

_ADAPTERS: Final = "loraModules"
_DRIFT: Final[Mapping[OnPoolDrift, str]] = {
    OnPoolDrift.ALERT: "nothing is done about it (rollout.onPoolDrift)",
    OnPoolDrift.NEW_GENERATION: "a generation is made of what can be made of it",
    OnPoolDrift.FENCE: "the spec's generation loses its access once they have been Ready for"
    " rollout.drainTimeout",
}


def pool_findings(
    tier: KVCacheTier, record: Record, *, wanted: Mapping[str, Any], pods: Iterable[PoolPod]
) -> tuple[Finding, ...]:
    """``wanted`` is the identity that the spec names."""
    alive = sorted(pods, key=lambda pod: pod.name)
    found = (
        _with_another_secret(tier, record, alive),
        _drifted(tier, wanted, alive),
        _unreadable(tier, record, alive),
        _adapters(tier, alive),
    )
    return tuple(filter(None, found))


def drifted(wanted: Mapping[str, Any], pods: Iterable[PoolPod]) -> list[PoolPod]:
    """Those that mount no Secret of the tier and run another identity than the spec's."""
    return [pod for pod in pods if has_drifted(wanted, pod.identity)]


def unreadable(record: Record, pods: Iterable[PoolPod]) -> dict[str, Mapping[str, str]]:
    """By pod that uses a generation: what of its identity the pod does not tell, and why."""
    found: dict[str, Mapping[str, str]] = {}
    for pod in pods:
        for generation in sorted(pod.identity.generations):
            entry = record.find(generation)
            if entry is not None and entry.identity is not None:
                why = _that_counts(entry.identity, pod.identity)
                if why:
                    found[pod.name] = why
    return found


def _that_counts(identity: Mapping[str, Any], pod: PodIdentity) -> dict[str, str]:
    """Without what no identity decides: settings differ from pod to pod, or they do not."""
    names = {*identity, *(f"parallelism.{part}" for part in identity.get("parallelism", {}))}
    named_by_spec = identity.get("identity") or {}
    return {
        name: why
        for name, why in unknowns(identity, pod).items()
        if name in names or name in named_by_spec or name == "arguments"
    }


def _drifted(tier: KVCacheTier, wanted: Mapping[str, Any], pods: list[PoolPod]) -> Finding | None:
    away = drifted(wanted, pods)
    if not away:
        return None
    first = differences(wanted, away[0].identity)[0]
    return Finding(
        reasons.POOL_DRIFTED,
        f"{counted(len(away), 'pod')} of {len(pods)} in the pool run another identity than the "
        f"spec's and mount no Secret of the tier: of pod {away[0].name}, {first}; "
        f"{_DRIFT[tier.spec.rollout.on_pool_drift]}.",
    )


def _with_another_secret(tier: KVCacheTier, record: Record, pods: list[PoolPod]) -> Finding | None:
    """Where such a pod's KV goes nobody looks at what it runs: the other tier does not know it."""
    name = tier.metadata.name
    found: dict[str, str] = {}
    for pod in pods:
        unknown = (each for each in sorted(pod.identity.generations) if record.find(each) is None)
        wrong = [*pod.others, *(engine_secret_name(name, each) for each in unknown)]
        if wrong:
            found[pod.name] = wrong[0]
    if not found:
        return None
    pod_name, secret = next(iter(found.items()))
    return Finding(
        reasons.ANOTHER_SECRET,
        f"{counted(len(found), 'pod')} of {len(pods)} in the pool mount an engine Secret that is "
        f"not this tier's, such as {pod_name} with {secret}: give them the one in "
        "status.engineSecret, or the label of the tier whose Secret it is. No tier compares what "
        "they run with what they store.",
    )


def _unreadable(tier: KVCacheTier, record: Record, pods: list[PoolPod]) -> Finding | None:
    found = unreadable(record, pods)
    if not found:
        return None
    pod, why = next(iter(found.items()))
    told = named([f"{name} ({reason})" for name, reason in sorted(why.items())], most=2)
    return Finding(
        reasons.IDENTITY_UNREADABLE,
        f"Of {counted(len(found), 'pod')} that use a generation it cannot be told whether they run "
        f"its identity, such as {pod}: {told}. Say it in arguments, or by an annotation on the pod "
        "(docs/rollouts.md); until then kvtier does not see if it changes.",
    )


def _adapters(tier: KVCacheTier, pods: list[PoolPod]) -> Finding | None:
    """No key of LMCache's has the adapter (read in 0.5.6: servers and in process)."""
    loading = [pod.name for pod in pods if _loads_adapters(pod.identity)]
    if not loading or tier.spec.pool.engine.connector is Connector.GENERIC:
        return None
    return Finding(
        reasons.ADAPTERS_SHARE_KEYS,
        f"{named(loading)} may serve LoRA adapters: LMCache's keys do not name the adapter, so "
        "requests of one may be given KV of another. Serve adapters from engines without the tier.",
    )


def _loads_adapters(identity: PodIdentity) -> bool:
    if not identity.generations:
        return False
    return _ADAPTERS in identity.settings or _ADAPTERS in identity.unreadable
