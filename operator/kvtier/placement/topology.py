"""Where engines and ranks are: nodes, and the domains that hold them, near to far."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from kvtier.engines.endpoint import Endpoint

Item = TypeVar("Item")

HOSTNAME_KEY = "kubernetes.io/hostname"


@dataclass(frozen=True, slots=True)
class Level:
    """One level of the topology: nodes whose label ``key`` has one value are in one domain."""

    name: str
    key: str

    @property
    def is_one_node(self) -> bool:
        return self.key == HOSTNAME_KEY


@dataclass(frozen=True, slots=True)
class Node:
    """One node. ``labels`` are all that it has, ``allocatable_memory`` is in bytes (None: unknown).

    ``reports``: its kubelet can still tell of its pods.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    allocatable_memory: int | None = None
    cordoned: bool = False
    reports: bool = True


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine: the node that its pod runs on.

    ``ready_since`` is RFC 3339, None while it is not Ready. ``memory`` is what its containers
    request, in bytes. ``metrics`` is where it shows its own metrics, None if it does not, or is not
    Ready.
    """

    name: str
    node: str
    ready_since: str | None = None
    memory: int = 0
    metrics: Endpoint | None = None

    @property
    def ready(self) -> bool:
        return self.ready_since is not None


@dataclass(frozen=True, slots=True)
class Topology:
    """A tier on its nodes.

    ``levels`` near to far; ``nodes`` by name, at least those that engines and ranks run on, as far
    as they exist; ``ranks``: rank -> node, ranks that have none left out.
    """

    levels: tuple[Level, ...]
    nodes: Mapping[str, Node]
    engines: tuple[Engine, ...] = ()
    ranks: Mapping[int, str] = field(default_factory=dict)

    def level(self, name: str) -> Level | None:
        return next((level for level in self.levels if level.name == name), None)

    def value(self, node: str, level: Level) -> str | None:
        """The domain of this level that the node is in, None without the label (or the node)."""
        found = self.nodes.get(node)
        return (found.labels.get(level.key) or None) if found else None

    def nearest_common(self, one: str, other: str) -> Level | None:
        """The nearest level at which two nodes are in one domain.

        None if there is none. A domain that lies in two domains of a farther level is no common one
        (``rack=1`` of two zones): levels beyond it may be unlabelled, but must not differ.
        """
        found: Level | None = None
        for level in reversed(self.levels):
            here, there = self.value(one, level), self.value(other, level)
            if here is None or there is None:
                continue
            if here != there:
                return found
            found = level
        return found

    def used_nodes(self) -> list[str]:
        """Nodes of engines and ranks that exist, sorted."""
        used = {engine.node for engine in self.engines} | set(self.ranks.values())
        return sorted(used & self.nodes.keys())

    def engines_per_node(self) -> Mapping[str, int]:
        return Counter(engine.node for engine in self.engines)

    def ranks_per_node(self) -> Mapping[str, int]:
        return Counter(self.ranks.values())

    def ranks_together(self, ranks: int) -> int | None:
        """The most ranks that one node holds, None until all of so many have a node."""
        held = self.ranks_per_node()
        return max(held.values()) if sum(held.values()) == ranks else None

    def link_levels(self) -> Mapping[str | None, int]:
        """How many pairs of engine and rank have which nearest common level, by name.

        Under None: pairs with no domain in common, or whose nodes are not known.
        """
        pairs: Counter[str | None] = Counter()
        ranks = self.ranks_per_node()
        for engine_node, engines in self.engines_per_node().items():
            for rank_node, held in ranks.items():
                level = self.nearest_common(engine_node, rank_node)
                pairs[level.name if level else None] += engines * held
        return pairs

    def farthest_link(self) -> str | None:
        """The farthest level that a hit crosses: that of the slowest link between an engine and a
        rank. None when it is not known: no pairs yet, or one without a common domain."""
        levels = self.link_levels()
        if not levels or None in levels:
            return None
        return next(level.name for level in reversed(self.levels) if level.name in levels)


def path(labels: Mapping[str, str], levels: Sequence[Level]) -> tuple[str | None, ...]:
    """The domains that a node's labels put it in, near to far; None where it has no label."""
    return tuple(labels.get(level.key) or None for level in levels)


def evenly(these: Sequence[Item], *, most: int) -> list[Item]:
    """At most so many, from the first to the last, always the same ones of the same."""
    if len(these) <= most:
        return list(these)
    return [these[place * (len(these) - 1) // (most - 1)] for place in range(most)]


def in_words(nodes: Iterable[str], topology: Topology, level: Level) -> list[str]:
    """``node-3 (leaf=leaf-b)`` for each node, sorted."""
    return [
        f"{node} ({level.name}={topology.value(node, level) or '?'})" for node in sorted(set(nodes))
    ]
