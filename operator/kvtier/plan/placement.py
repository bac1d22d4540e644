"""Pure: where a tier's ranks belong, which of them move there, and what is wrong with it."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kvtier.api import reasons
from kvtier.api.scalars import parse_quantity
from kvtier.api.types import Enforcement, KVCacheTier
from kvtier.engines.endpoint import endpoint_of
from kvtier.generation.record import Record
from kvtier.placement.domain import Domain, choose, pinned
from kvtier.placement.room import Room
from kvtier.placement.topology import Engine, Level, Node, Topology
from kvtier.placement.topology_checks import Placed
from kvtier.plan.drift import contains
from kvtier.plan.observed import (
    ChildKey,
    Delete,
    EventSpec,
    EventType,
    NodeFacts,
    Object,
    Observed,
    RankState,
)
from kvtier.render.affinity import affinity
from kvtier.render.names import rank_name

FINISHED = ("Succeeded", "Failed")


def engine_of(pod: Object) -> Engine | None:
    """The engine that a pod of the pool is; None without a node, or if it is on its way out."""
    node, status = pod.get("spec", {}).get("nodeName"), pod.get("status", {})
    if not node or status.get("phase") in FINISHED or "deletionTimestamp" in pod["metadata"]:
        return None
    conditions = status.get("conditions", ())
    ready: Object = next((each for each in conditions if each["type"] == "Ready"), {})
    is_ready = ready.get("status") == "True"
    since = ready.get("lastTransitionTime") or pod["metadata"].get("creationTimestamp", "")
    return Engine(
        name=pod["metadata"]["name"],
        node=node,
        ready_since=since if is_ready else None,
        memory=sum(map(_requested_memory, pod["spec"].get("containers", ()))),
        metrics=endpoint_of(pod) if is_ready else None,
    )


def _requested_memory(container: Object) -> int:
    """Bytes; 0 for what cannot be read: too little asked for proves nothing wrong."""
    text = container.get("resources", {}).get("requests", {}).get("memory", 0)
    return memory_bytes(text) or 0


def memory_bytes(text: object) -> int | None:
    """A quantity of memory in whole bytes, None for one that cannot be read."""
    try:
        return int(parse_quantity(str(text)))
    except ValueError:
        return None


def topology_of(
    tier: KVCacheTier,
    *,
    nodes: Mapping[str, NodeFacts],
    engines: Iterable[Engine],
    states: Iterable[RankState],
) -> Topology:
    """Engines and ranks on the nodes that exist."""
    return Topology(
        levels=_levels(tier),
        nodes={name: _node(facts) for name, facts in nodes.items() if facts.exists},
        engines=tuple(engines),
        ranks={state.rank: state.node for state in states if state.node},
    )


def _levels(tier: KVCacheTier) -> tuple[Level, ...]:
    return tuple(Level(each.name, each.key) for each in tier.spec.placement.domains)


def _node(facts: NodeFacts) -> Node:
    return Node(
        labels=facts.labels,
        allocatable_memory=facts.allocatable_memory,
        cordoned=facts.cordoned,
        reports=facts.reports,
    )


def domain_of(tier: KVCacheTier, record: Record) -> Domain | None:
    """Where ranks belong: what ``store.nodeSelector`` says, else what engines chose."""
    named = pinned(
        tier.spec.store.node_selector, levels=_levels(tier), within=tier.spec.placement.within
    )
    return named or record.domain


def choose_domain(
    tier: KVCacheTier, record: Record, *, topology: Topology, hold_nothing: bool
) -> Record:
    """The record with the domain that holds from now on. A paused tier's stays what it is."""
    if tier.spec.paused:
        return record
    found = choose(
        topology,
        within=tier.spec.placement.within,
        chosen=record.domain,
        hold_nothing=hold_nothing,
    )
    return record if found == record.domain else replace(record, domain=found)


@dataclass(frozen=True, slots=True)
class Movable:
    """Ranks that would be better elsewhere, if they hold nothing.

    ``all_ranks``: the engines have left, so the question is whether anything is held at all.
    """

    ranks: tuple[RankState, ...] = ()
    all_ranks: bool = False


def movable(
    tier: KVCacheTier, record: Record, *, topology: Topology, states: Sequence[RankState]
) -> Movable:
    """Whose keys must be counted before anything is decided; nobody's as a rule."""
    if tier.spec.paused:
        return Movable()
    free = choose_domain(tier, record, topology=topology, hold_nothing=True)
    if record.domain is not None and free.domain != record.domain:
        return Movable(tuple(states), all_ranks=True)
    return Movable(tuple(_misplaced(tier, free, topology=topology, states=states)))


def _misplaced(
    tier: KVCacheTier, record: Record, *, topology: Topology, states: Iterable[RankState]
) -> list[RankState]:
    """Ranks outside of the domain whose pods were made before it was known.

    A pod that was made since then was put where there was room: once more would be for nothing.
    """
    wanted = affinity(tier, record.domain)
    if wanted is None:
        return []
    place = Placed(topology, domain=record.domain)
    return [
        state
        for state in states
        if state.pod is not None
        and not state.leaving
        and not contains(state.affinity, wanted)
        and not (state.node and place.inside(state.node))
    ]


def holds_nothing(state: RankState, keys: Mapping[int, int]) -> bool:
    """Whether nothing is lost with the rank's pod: no server runs in it, or it has no key.

    ``keys`` are those of the ranks that answered. One that runs and did not may hold everything.
    """
    return state.address is None or keys.get(state.rank) == 0


def moving(observed: Observed, states: Sequence[RankState]) -> tuple[RankState, ...]:
    """The ranks that belong elsewhere and have nothing to lose by going there."""
    tier, record = observed.tier, observed.record
    place = topology_of(tier, nodes=observed.nodes, engines=observed.engines, states=states)
    found = _misplaced(tier, record, topology=place, states=states)
    return tuple(state for state in found if holds_nothing(state, observed.keys))


def moves(
    observed: Observed, *, states: Sequence[RankState], intents: Mapping[ChildKey, Object]
) -> tuple[tuple[Delete, ...], tuple[EventSpec, ...]]:
    """The pods to delete so that these ranks start in the domain, and what to tell about it."""
    tier, record = observed.tier, observed.record
    going = [state for state in states if _is_settled(tier, state, observed, intents)]
    if not going:
        return (), ()
    ranks = ", ".join(str(state.rank) for state in going)
    message = (
        f"Rank {ranks} of {tier.spec.pool.ranks} moves to {record.domain}, which the engines"
        " chose: nothing is held there yet."
    )
    deletions = tuple(
        Delete(kind="Pod", name=str(state.pod), uid=str(state.pod_uid)) for state in going
    )
    return deletions, (EventSpec(EventType.NORMAL, reasons.MOVING_RANKS, message),)


def _is_settled(
    tier: KVCacheTier,
    state: RankState,
    observed: Observed,
    intents: Mapping[ChildKey, Object],
) -> bool:
    """Whether a pod that is made now is made with the affinity."""
    key = ("StatefulSet", rank_name(tier.metadata.name, state.rank))
    live, intent = observed.children.get(key), intents[key]
    if live is None:
        return False
    seen = live.get("status", {}).get("observedGeneration", 0)
    return bool(
        seen >= live["metadata"].get("generation", 1)
        and contains(_affinity_of(live), _affinity_of(intent))
    )


def _affinity_of(statefulset: Object) -> Object:
    found: Object = statefulset["spec"]["template"]["spec"].get("affinity", {})
    return found


def placed(observed: Observed, states: Sequence[RankState]) -> Placed:
    """The tier's place as the checks look at it."""
    return place_of(
        observed.tier,
        nodes=observed.nodes,
        engines=observed.engines,
        states=states,
        domain=domain_of(observed.tier, observed.record),
        candidates=observed.candidates,
    )


def place_of(
    tier: KVCacheTier,
    *,
    nodes: Mapping[str, NodeFacts],
    engines: Sequence[Engine],
    states: Sequence[RankState],
    domain: Domain | None,
    candidates: Mapping[str, NodeFacts] | None,
) -> Placed:
    """The same from its parts. ``candidates`` are those of ``Observed``."""
    placement = tier.spec.placement
    room = None
    if candidates is not None and lacks_room(states):
        room = _room(tier, candidates, engines=engines, states=states, domain=domain)
    return Placed(
        topology_of(tier, nodes=nodes, engines=engines, states=states),
        domain=domain,
        within=placement.within,
        linked={link.domain for link in placement.links},
        room=room,
    )


def foreseen_domain(
    tier: KVCacheTier, *, topology: Topology, chosen: Domain | None
) -> Domain | None:
    """Where the ranks of a tier with this spec would belong, and stay while they hold something."""
    placement = tier.spec.placement
    named = pinned(tier.spec.store.node_selector, levels=_levels(tier), within=placement.within)
    return named or choose(topology, within=placement.within, chosen=chosen, hold_nothing=False)


def domain_named(tier: KVCacheTier, text: str) -> Domain | None:
    """The domain that ``status.domain`` names, None if the spec has no such level any more."""
    name, _, value = text.partition("=")
    keys = {level.name: level.key for level in _levels(tier)}
    return Domain(level=name, key=keys[name], value=value) if name in keys and value else None


def lacks_room(states: Collection[RankState]) -> bool:
    """Whether some rank has no node yet."""
    return any(state.node is None for state in states)


def _room(
    tier: KVCacheTier,
    candidates: Mapping[str, NodeFacts],
    *,
    engines: Sequence[Engine],
    states: Sequence[RankState],
    domain: Domain | None,
) -> Room:
    """What the listed nodes have left for ranks without a node."""
    store = tier.spec.store
    asked = [(engine.node, engine.memory) for engine in engines]
    asked += [(state.node, store.memory_bytes) for state in states if state.node]
    required = tier.spec.placement.enforcement is Enforcement.REQUIRED
    free = {
        name: facts.allocatable_memory - sum(size for node, size in asked if node == name)
        for name, facts in candidates.items()
        if facts.allocatable_memory is not None
        and not facts.cordoned
        and store.node_selector.items() <= facts.labels.items()
        and (domain is None or not required or domain.holds(facts.labels))
    }
    return Room(
        wanted=sum(state.node is None for state in states),
        memory=int(store.memory_bytes),
        free=free,
    )
