"""The domain that a tier's ranks belong in: chosen once, by the first engines that are Ready."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvtier.placement.topology import Engine, Level, Topology


@dataclass(frozen=True, slots=True)
class Domain:
    """The nodes whose label ``key`` has ``value``: one place of the level of this name."""

    level: str
    key: str
    value: str

    def __str__(self) -> str:
        return f"{self.level}={self.value}"

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels is in it."""
        return labels.get(self.key) == self.value


def choose(
    topology: Topology,
    *,
    within: str | None,
    chosen: Domain | None,
    hold_nothing: bool,
) -> Domain | None:
    """The domain to record: ``chosen`` as long as it stands, else a new one, None if none yet.

    ``within`` names the level. Without it, it is the farthest level that the engines' nodes have a
    label of, and never a single node: a tier is larger than one. A domain that was chosen stands
    as long as its level is the one asked for; and though all engines have left it, unless all ranks
    ``hold_nothing``: then nothing is lost by following them.

    Among Ready engines in several domains the most decide; between equals the one that has been
    Ready for longest.
    """
    ready = [engine for engine in topology.engines if engine.ready]
    if chosen is not None and _stands(chosen, levels=topology.levels, within=within):
        inside = [engine for engine in ready if _is_in(chosen, engine, topology)]
        if inside or not hold_nothing:
            return chosen
    level = _level(topology, ready, within=within)
    found = _favourite(topology, ready, level) if level else None
    if level is None or found is None:
        # One that was chosen at a level which is not asked for any more is no domain any more, but
        # as long as no engine says which one is, ranks had better stay together.
        return chosen if chosen and _is_declared(chosen, topology.levels) else None
    return Domain(level=level.name, key=level.key, value=found)


def pinned(
    selector: Mapping[str, str], *, levels: Sequence[Level], within: str | None
) -> Domain | None:
    """The domain that ``store.nodeSelector`` names itself: the owner's word, stronger than any.

    It is one of level ``within``, else the farthest that it names; None if it names none.
    """
    named = [
        level
        for level in levels
        if level.key in selector and (within == level.name if within else not level.is_one_node)
    ]
    if not named:
        return None
    level = named[-1]
    return Domain(level=level.name, key=level.key, value=selector[level.key])


def _stands(chosen: Domain, *, levels: Sequence[Level], within: str | None) -> bool:
    return within in (None, chosen.level) and _is_declared(chosen, levels)


def _is_declared(chosen: Domain, levels: Sequence[Level]) -> bool:
    return any((level.name, level.key) == (chosen.level, chosen.key) for level in levels)


def _is_in(domain: Domain, engine: Engine, topology: Topology) -> bool:
    node = topology.nodes.get(engine.node)
    return node is not None and domain.holds(node.labels)


def _level(topology: Topology, ready: Sequence[Engine], *, within: str | None) -> Level | None:
    if within is not None:
        return topology.level(within)
    return next(
        (
            level
            for level in reversed(topology.levels)
            if not level.is_one_node and any(topology.value(engine.node, level) for engine in ready)
        ),
        None,
    )


def _favourite(topology: Topology, ready: Sequence[Engine], level: Level) -> str | None:
    values = [(topology.value(engine.node, level), engine) for engine in ready]
    counts = Counter(value for value, _ in values if value)
    if not counts:
        return None
    most = max(counts.values())
    first = min(
        (engine.ready_since or "", value)
        for value, engine in values
        if value and counts[value] == most
    )
    return first[1]
