"""The ranks as their pods show them, and which of them must restart."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kvtier.api import reasons
from kvtier.api.conditions import find
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
from kvtier.render.names import CONTAINER, RANK_LABEL, RESTART_HASH, TLS_VOLUME, rank_name

RESTARTED_AT = "kubectl.kubernetes.io/restartedAt"


def rank_states(
    tier: KVCacheTier,
    *,
    children: Mapping[ChildKey, Object],
    pods: Sequence[Object],
    refusals: Mapping[int, str] | None = None,
) -> tuple[RankState, ...]:
    """One entry per rank, 0..W-1, whether or not it has a pod.

    ``refusals`` say of ranks without one why they got none.
    """
    states = []
    for rank in range(tier.spec.pool.ranks):
        owner = children.get(("StatefulSet", rank_name(tier.metadata.name, rank)))
        if owner is not None and not is_owned_by(owner, tier.metadata.uid):
            # Somebody else's of the same name: its pods are no rank.
            owner = None
        pod = _pod_of(owner, pods)
        if pod is None:
            states.append(RankState(rank=rank, waiting=(refusals or {}).get(rank)))
        else:
            states.append(_state(rank, pod))
    return tuple(states)


def surviving_ranks(
    uid: str,
    *,
    known: Iterable[int],
    children: Mapping[ChildKey, Object],
    pods: Sequence[Object],
) -> tuple[RankState, ...]:
    """The ranks of the tier with this uid when its spec cannot tell them.

    They are those that its StatefulSets are of, and those that are ``known`` otherwise: a rank
    whose StatefulSet is gone is missing, not one less.
    """
    owners: dict[int, Object | None] = dict.fromkeys(known)
    for (kind, _), obj in children.items():
        label = obj["metadata"].get("labels", {}).get(RANK_LABEL, "")
        if kind == "StatefulSet" and label.isdecimal() and is_owned_by(obj, uid):
            owners[int(label)] = obj
    found = ((rank, _pod_of(owner, pods)) for rank, owner in sorted(owners.items()))
    return tuple(_state(rank, pod) if pod else RankState(rank=rank) for rank, pod in found)


def _pod_of(owner: Object | None, all_pods: Sequence[Object]) -> Object | None:
    if owner is None:
        return None
    pods = [pod for pod in all_pods if is_owned_by(pod, owner["metadata"]["uid"])]
    # A StatefulSet of one replica has one pod; while its node is unreachable an old one may linger.
    pods.sort(key=lambda pod: "deletionTimestamp" in pod["metadata"])
    return pods[0] if pods else None


def _state(rank: int, pod: Object) -> RankState:
    status = pod.get("status", {})
    metadata = pod["metadata"]
    leaves_at = metadata.get("deletionTimestamp")
    annotations = pod["metadata"].get("annotations", {})
    containers: Sequence[Mapping[str, Any]] = status.get("containerStatuses", ())
    # A sidecar that somebody injects has a status too, and may come first.
    container = next((each for each in containers if each["name"] == CONTAINER), {})
    state = container.get("state", {})
    running = state.get("running", {})
    return RankState(
        rank=rank,
        pod=pod["metadata"]["name"],
        pod_uid=pod["metadata"]["uid"],
        address=status.get("podIP") if running else None,
        container=container.get("containerID") if running else None,
        node=pod.get("spec", {}).get("nodeName"),
        ready=not leaves_at and _is_ready(status),
        started_at=running.get("startedAt"),
        waiting=_why_waiting(status, state),
        restart_hash=annotations.get(RESTART_HASH),
        restarted_at=annotations.get(RESTARTED_AT),
        created_at=metadata.get("creationTimestamp"),
        affinity=pod.get("spec", {}).get("affinity", {}),
        tls=any(each["name"] == TLS_VOLUME for each in pod.get("spec", {}).get("volumes", ())),
        unready_since=_unready_since(status),
        leaves_at=leaves_at,
        # Without finalizers such a pod is one whose deletion failed halfway: that can be repeated.
        held=metadata.get("deletionGracePeriodSeconds") == 0 and bool(metadata.get("finalizers")),
    )


def _is_ready(status: Mapping[str, Any]) -> bool:
    return find(status.get("conditions", ()), "Ready").get("status") == "True"


def _unready_since(status: Mapping[str, Any]) -> str | None:
    condition = find(status.get("conditions", ()), "Ready")
    since: str | None = condition.get("lastTransitionTime")
    return since if condition.get("status") == "False" else None


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


def outdated(
    tier: KVCacheTier, *, states: Sequence[RankState], intents: Mapping[ChildKey, Object]
) -> tuple[int, ...]:
    """The ranks whose pod was made from other inputs than the spec has now."""
    return tuple(
        state.rank
        for state in states
        if state.pod is not None and state.restart_hash != restart_hash(_own(intents, tier, state))
    )


def restarts(
    observed: Observed,
    *,
    states: Sequence[RankState],
    intents: Mapping[ChildKey, Object],
    stale: Sequence[int],
    reason: str | None,
) -> tuple[tuple[Delete, ...], tuple[EventSpec, ...]]:
    """The pods that must restart, and what to tell about it. ``stale`` is what ``outdated`` found.

    Three things ask for a restart: the spec, by another restart hash, and a person, by ``kubectl
    kvtier roll`` or ``kubectl rollout restart``. That a pod's template differs in
    anything else does not: another release may render another one, and it waits for the next
    restart.

    All ranks go in one storm: losing one rank loses the tier, so a roll of W ranks one by one
    would be W storms. As long as one StatefulSet is not settled on the wanted template, none
    restarts.
    """
    tier = observed.tier
    chosen: list[RankState] = []
    for state in states:
        live = observed.children.get(("StatefulSet", rank_name(tier.metadata.name, state.rank)))
        if live is None or not _is_settled(live, _own(intents, tier, state)):
            return (), ()
        asked = template_annotations(live).get(RESTARTED_AT)
        wanted = state.rank in stale or asked != state.restarted_at
        wanted = wanted or state.pod_uid in observed.to_restart
        if state.pod is not None and wanted and not state.leaving:
            chosen.append(state)
    if not chosen:
        return (), ()
    deletions = tuple(
        Delete(kind="Pod", name=str(state.pod), uid=str(state.pod_uid)) for state in chosen
    )
    because = f" because {reason} changed" if reason else ""
    if not because and all(state.pod_uid in observed.to_restart for state in chosen):
        because = ", as somebody asked for (kvtier roll)"
    return deletions, (_restart_event(observed, [state.rank for state in chosen], because),)


def _own(intents: Mapping[ChildKey, Object], tier: KVCacheTier, state: RankState) -> Object:
    return intents["StatefulSet", rank_name(tier.metadata.name, state.rank)]


def _is_settled(live: Object, intent: Object) -> bool:
    """Whether a pod that is made now is made from what the spec asks for."""
    status = live.get("status", {})
    return bool(
        status.get("observedGeneration", 0) >= live["metadata"].get("generation", 1)
        and restart_hash(live) == restart_hash(intent)
    )


def template_annotations(statefulset: Object) -> Mapping[str, str]:
    annotations: Mapping[str, str] = statefulset["spec"]["template"]["metadata"].get(
        "annotations", {}
    )
    return annotations


def restart_hash(statefulset: Object) -> str | None:
    """The hash of what a user can change of the pods, None if somebody took it away."""
    return template_annotations(statefulset).get(RESTART_HASH)


def _restart_event(observed: Observed, ranks: list[int], because: str) -> EventSpec:
    total = observed.tier.spec.pool.ranks
    cost = "prompts that hit until now are recomputed in full until the cache has refilled"
    if len(ranks) == total:
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
            f"Restarting rank {names} of {total}"
            f"{because or ', as its StatefulSet asks (kubectl rollout restart)'}: losing one rank"
            f" loses the tier, so {cost}."
        ),
    )
