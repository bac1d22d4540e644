"""The ranks as their pods show them, and which of them must restart."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvtier.api import reasons
from kvtier.api.types import KVCacheTier
from kvtier.plan.observed import (
    ChildKey,
    Delete,
    EventSpec,
    EventType,
    Object,
    Observed,
    RankState,
    is_owned_by,
)
from kvtier.render.names import RESTART_HASH, rank_name

REVISION_LABEL = "controller-revision-hash"


def rank_states(
    tier: KVCacheTier, *, children: Mapping[ChildKey, Object], pods: Sequence[Object]
) -> tuple[RankState, ...]:
    """One entry per rank, 0..W-1, whether or not it has a pod."""
    return tuple(
        _state(
            rank, _pod_of(children.get(("StatefulSet", rank_name(tier.metadata.name, rank))), pods)
        )
        for rank in range(tier.spec.pool.ranks)
    )


def _pod_of(owner: Object | None, all_pods: Sequence[Object]) -> Object | None:
    if owner is None:
        return None
    pods = [pod for pod in all_pods if is_owned_by(pod, owner["metadata"]["uid"])]
    # A StatefulSet of one replica has one pod; while its node is unreachable an old one may linger.
    pods.sort(key=lambda pod: "deletionTimestamp" in pod["metadata"])
    return pods[0] if pods else None


def _state(rank: int, pod: Object | None) -> RankState:
    if pod is None:
        return RankState(rank=rank)
    status = pod.get("status", {})
    leaving = "deletionTimestamp" in pod["metadata"]
    containers: Sequence[Mapping[str, Any]] = status.get("containerStatuses", ())
    container = containers[0] if containers else {}
    state = container.get("state", {})
    running = state.get("running", {})
    return RankState(
        rank=rank,
        pod=pod["metadata"]["name"],
        pod_uid=pod["metadata"]["uid"],
        address=status.get("podIP") if running else None,
        container=container.get("containerID") if running else None,
        node=pod.get("spec", {}).get("nodeName"),
        ready=not leaving and _is_ready(status),
        started_at=running.get("startedAt"),
        waiting=_why_waiting(status, state),
        restart_hash=pod["metadata"].get("annotations", {}).get(RESTART_HASH),
    )


def _is_ready(status: Mapping[str, Any]) -> bool:
    return any(
        condition["type"] == "Ready" and condition["status"] == "True"
        for condition in status.get("conditions", ())
    )


def _why_waiting(status: Mapping[str, Any], state: Mapping[str, Any]) -> str | None:
    """Why a pod does not run, in the kubelet's or the scheduler's words."""
    for phase in ("waiting", "terminated"):
        detail = state.get(phase)
        if detail:
            text = ": ".join(filter(None, (detail.get("reason"), detail.get("message"))))
            return text or phase
    for condition in status.get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return f"{condition.get('reason')}: {condition.get('message')}"
    return None


def restarts(
    observed: Observed, *, intents: Mapping[ChildKey, Object], reason: str | None
) -> tuple[tuple[Delete, ...], tuple[EventSpec, ...]]:
    """The pods whose template is no longer their StatefulSet's, and what to tell about them.

    All ranks go in one storm: losing one rank loses the tier, so a roll of W ranks one by one
    would be W storms. As long as one StatefulSet is not settled on the wanted template, none
    restarts.
    """
    outdated: list[tuple[int, Object]] = []
    for rank in range(observed.tier.spec.pool.ranks):
        key = ("StatefulSet", rank_name(observed.tier.metadata.name, rank))
        live = observed.children.get(key)
        if live is None or not _is_settled(live, intents[key]):
            return (), ()
        pod = _pod_of(live, observed.pods)
        if pod is None or "deletionTimestamp" in pod["metadata"]:
            continue
        wanted = live["status"].get("updateRevision")
        if wanted and pod["metadata"].get("labels", {}).get(REVISION_LABEL) != wanted:
            outdated.append((rank, pod))
    if not outdated:
        return (), ()
    deletions = tuple(
        Delete(kind="Pod", name=pod["metadata"]["name"], uid=pod["metadata"]["uid"])
        for _, pod in outdated
    )
    return deletions, (_restart_event(observed, [rank for rank, _ in outdated], reason),)


def _is_settled(live: Object, intent: Object) -> bool:
    status = live.get("status", {})
    return bool(
        status.get("observedGeneration", 0) >= live["metadata"].get("generation", 1)
        and restart_hash(live) == restart_hash(intent)
    )


def restart_hash(statefulset: Object) -> str | None:
    annotations = statefulset["spec"]["template"]["metadata"].get("annotations", {})
    value = annotations.get(RESTART_HASH)
    return None if value is None else str(value)


def _restart_event(observed: Observed, ranks: list[int], reason: str | None) -> EventSpec:
    total = observed.tier.spec.pool.ranks
    cost = "prompts that hit until now are recomputed in full until the cache has refilled"
    if len(ranks) == total:
        because = f" because {reason} changed" if reason else ""
        return EventSpec(
            type=EventType.WARNING,
            reason=reasons.RESTARTING_ALL_RANKS,
            message=f"Restarting all {total} ranks at once{because}: {cost}.",
        )
    names = ", ".join(str(rank) for rank in ranks)
    return EventSpec(
        type=EventType.WARNING,
        reason=reasons.RESTARTING_RANKS,
        message=(
            f"Restarting rank {names} of {total}, as its StatefulSet asks (kubectl rollout "
            f"restart): losing one rank loses the tier, so {cost}."
        ),
    )
