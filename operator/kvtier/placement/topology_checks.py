"""What is wrong with where engines and ranks are, each with its figures."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from kvtier.api import reasons
from kvtier.placement.domain import Domain
from kvtier.placement.findings import Finding, named
from kvtier.placement.room import Room
from kvtier.placement.topology import Level, Topology, in_words


@dataclass(frozen=True, slots=True)
class Placed:
    """A tier's place: what was asked for, what was chosen, what is.

    ``domain`` is where ranks belong, None while nobody knows. ``within`` is the level asked for,
    ``linked`` are the levels that links are declared for. ``room`` is None once every rank has a
    node: nothing is left to fit.
    """

    topology: Topology
    domain: Domain | None = None
    within: str | None = None
    linked: Collection[str] = ()
    room: Room | None = None

    def inside(self, node: str) -> bool:
        found = self.topology.nodes.get(node)
        return self.domain is not None and found is not None and self.domain.holds(found.labels)

    @property
    def engines_outside(self) -> list[str]:
        """Nodes of engines that are not in the domain, one entry for each engine."""
        if self.domain is None:
            return []
        return [one.node for one in self.topology.engines if not self.inside(one.node)]

    @property
    def ranks_outside(self) -> list[int]:
        """Ranks that run on a node outside of the domain."""
        if self.domain is None:
            return []
        return [rank for rank, node in self.topology.ranks.items() if not self.inside(node)]


def check(placed: Placed) -> tuple[Finding, ...]:
    """What each check has to say, in the order of the list. Raises nothing."""
    return tuple(found for one in CHECKS if (found := one(placed)) is not None)


def domains_contradict(placed: Placed) -> Finding | None:
    """A domain must lie in one domain of each farther level, or its nodes are not together."""
    topology = placed.topology
    for index, level in enumerate(topology.levels):
        for wider in topology.levels[index + 1 :]:
            homes: dict[str, dict[str, str]] = {}
            for node in topology.used_nodes():
                value, home = topology.value(node, level), topology.value(node, wider)
                if value and home:
                    homes.setdefault(value, {}).setdefault(home, node)
            for value, found in sorted(homes.items()):
                if len(found) > 1:
                    places = [f"{wider.name}={home} ({node})" for home, node in found.items()]
                    return Finding(
                        reasons.DOMAINS_CONTRADICT,
                        f"{level.name}={value} lies in {named(places)}: nodes of one"
                        f" {level.name} must be in one {wider.name}. List placement.domains near to"
                        f" far, with a label for {level.name} whose values are unique in the"
                        " cluster.",
                    )
    return None


def labels_missing(placed: Placed) -> Finding | None:
    """Without its label a node is in no domain: the nearest one it shares is not known."""
    topology, told = placed.topology, []
    for level in topology.levels:
        lacking = [node for node in topology.used_nodes() if topology.value(node, level) is None]
        asked = placed.within == level.name or level.name in placed.linked
        # A level that no node has a label of, and nobody asked for, is a default of no use here.
        if lacking and (asked or len(lacking) < len(topology.used_nodes())):
            told.append(f"{named(lacking)}: no label {level.key} ({level.name})")
    if not told:
        return None
    return Finding(
        reasons.DOMAIN_LABELS_MISSING,
        f"{named(told)}. A node without it counts as outside of every {_levels(told)}: label it, or"
        " take the level out of placement.domains.",
    )


def pool_left_domain(placed: Placed) -> Finding | None:
    """All engines are elsewhere: every hit crosses a longer link than it need."""
    outside, total = placed.engines_outside, len(placed.topology.engines)
    if placed.domain is None or not outside or len(outside) < total:
        return None
    where = _places(placed, outside)
    return Finding(
        reasons.POOL_LEFT_DOMAIN,
        f"None of the {total} engines is in {placed.domain}, where the ranks belong: {where}."
        f" Ranks hold KV, so they stay; store.nodeSelector with {placed.domain.key} moves them"
        " at once, for the price of an empty cache.",
    )


def pool_spans_domains(placed: Placed) -> Finding | None:
    """Some engines are elsewhere: their hits are slower than the others'."""
    outside, total = placed.engines_outside, len(placed.topology.engines)
    if placed.domain is None or not outside or len(outside) == total:
        return None
    where = _places(placed, outside)
    return Finding(
        reasons.POOL_SPANS_DOMAINS,
        f"{len(outside)} of {total} engines are outside of {placed.domain}, where the ranks"
        f" are: {where}. Their hits cross a longer link than the others': keep the pool in one"
        f" {placed.domain.level}, or make a tier for each.",
    )


def ranks_outside_domain(placed: Placed) -> Finding | None:
    """Ranks that hold KV do not move, and a preference is none that the scheduler must meet."""
    outside = placed.ranks_outside
    if placed.domain is None or not outside:
        return None
    where = _places(placed, [placed.topology.ranks[rank] for rank in outside])
    return Finding(
        reasons.RANKS_OUTSIDE_DOMAIN,
        f"Rank {', '.join(map(str, outside))} of {len(placed.topology.ranks)} run outside of"
        f" {placed.domain}: on {where}. What holds KV stays; at its next start a rank goes there if"
        " there is room.",
    )


def ranks_on_cordoned_nodes(placed: Placed) -> Finding | None:
    """One lost rank is the whole tier, and a drain takes all ranks of a node."""
    topology = placed.topology
    held: dict[str, list[str]] = {}
    for rank, node in topology.ranks.items():
        found = topology.nodes.get(node)
        if found is not None and found.cordoned:
            held.setdefault(node, []).append(str(rank))
    if not held:
        return None
    nodes = [f"{node} (rank {', '.join(ranks)})" for node, ranks in sorted(held.items())]
    return Finding(
        reasons.RANKS_ON_CORDONED_NODES,
        f"Cordoned: {named(nodes)}. A drain evicts these ranks, and one lost rank is the whole"
        " tier until it has filled again: drain when traffic is low.",
    )


def memory_does_not_fit(placed: Placed) -> Finding | None:
    """The scheduler would say so too, once for each rank and without the sum."""
    room = placed.room
    if room is None or room.fits >= room.wanted:
        return None
    return Finding(reasons.MEMORY_DOES_NOT_FIT, room.in_words())


def _places(placed: Placed, nodes: list[str]) -> str:
    assert placed.domain is not None
    level = Level(name=placed.domain.level, key=placed.domain.key)
    return named(in_words(nodes, placed.topology, level))


def _levels(told: list[str]) -> str:
    return "such domain" if len(told) > 1 else told[0].rpartition("(")[2].rstrip(")")


CHECKS: Final[tuple[Callable[[Placed], Finding | None], ...]] = (
    # The domains themselves: nothing else can be told where they are wrong.
    domains_contradict,
    labels_missing,
    # Engines against the domain that was chosen.
    pool_left_domain,
    pool_spans_domains,
    # Ranks against it, and against what their nodes are about to do.
    ranks_outside_domain,
    ranks_on_cordoned_nodes,
    # What has yet to be placed against what nodes have.
    memory_does_not_fit,
)
