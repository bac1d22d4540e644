"""What is known of where a tier runs or is to run, for ``kvtier plan``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvtier.api.types import KVCacheTier
from kvtier.breakeven.assessment import LinkFigures
from kvtier.breakeven.observed import SeenRate
from kvtier.placement.domain import Domain
from kvtier.placement.topology import Engine
from kvtier.placement.topology_checks import Placed
from kvtier.plan.observed import NodeFacts, RankState
from kvtier.plan.placement import foreseen_domain, place_of, topology_of


@dataclass(frozen=True, slots=True)
class Around:
    """The cluster around a tier, from ``source``.

    ``nodes`` are all that there are. ``ranks``: rank -> node, those that run; ``chosen`` is where
    they belong already, ``link`` what was measured, ``seen`` what engines show; None where nothing
    is.
    """

    source: str
    nodes: Mapping[str, NodeFacts]
    engines: Sequence[Engine] = ()
    ranks: Mapping[int, str] = field(default_factory=dict)
    chosen: Domain | None = None
    link: LinkFigures | None = None
    seen: SeenRate | None = None

    def place(self, tier: KVCacheTier) -> Placed:
        """The tier's place as the operator would look at it; ranks that do not run need room."""
        states = [
            RankState(rank=rank, node=self.ranks.get(rank)) for rank in range(tier.spec.pool.ranks)
        ]
        topology = topology_of(tier, nodes=self.nodes, engines=self.engines, states=states)
        return place_of(
            tier,
            nodes=self.nodes,
            engines=self.engines,
            states=states,
            domain=foreseen_domain(tier, topology=topology, chosen=self.chosen),
            candidates=self.nodes,
        )

    def facts(self, tier: KVCacheTier) -> list[tuple[str, str]]:
        """Names and texts for people."""
        place = self.place(tier)
        topology = place.topology
        engines, held = "no engine", "no rank yet"
        if topology.engines:
            ready = sum(engine.ready for engine in topology.engines)
            on = len(topology.engines_per_node())
            engines = f"{len(topology.engines)} engines ({ready} Ready) on {on} of them"
        if topology.ranks:
            on = len(topology.ranks_per_node())
            held = f"{len(topology.ranks)} of {tier.spec.pool.ranks} ranks on {on}"
        return [
            ("nodes", f"{len(self.nodes)} of {self.source}: {engines}, {held}"),
            ("ranks belong in", str(place.domain or "no domain yet: no Ready engine chooses one")),
        ]

    def document(self, tier: KVCacheTier) -> dict[str, Any]:
        """The same for programs; ``domain`` and ``rankStates`` are status fields."""
        place = self.place(tier)
        topology = place.topology
        content: dict[str, Any] = {
            "nodes": len(self.nodes),
            "engines": {
                "total": len(topology.engines),
                "ready": sum(engine.ready for engine in topology.engines),
            },
            "rankStates": [{"rank": rank, "node": node} for rank, node in topology.ranks.items()],
        }
        return content if place.domain is None else content | {"domain": str(place.domain)}
