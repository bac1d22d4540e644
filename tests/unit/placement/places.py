"""Nodes, engines and ranks of the placement tests, written short."""

from collections.abc import Mapping

from kvtier.placement.topology import HOSTNAME_KEY, Engine, Level, Node, Topology

HOST = Level("hostname", HOSTNAME_KEY)
RACK = Level("rack", "example.com/rack")
ZONE = Level("zone", "topology.kubernetes.io/zone")
LEVELS = (HOST, RACK, ZONE)
GIB = 2**30


def node(name: str, rack: str | None = None, zone: str | None = None, **facts: object) -> Node:
    values = {HOST.key: name, RACK.key: rack, ZONE.key: zone}
    labels = {key: value for key, value in values.items() if value}
    return Node(labels=labels, **facts)  # type: ignore[arg-type]


def nodes(*named: str) -> dict[str, Node]:
    """``a/r1/z1`` is node a in rack r1 of zone z1; ``a//z1`` has no rack."""
    split = [text.split("/") for text in named]
    return {name: node(name, *(part or None for part in rest)) for name, *rest in split}


def engines(*on: str) -> tuple[Engine, ...]:
    """One Ready engine on each node, the first one Ready for longest; ``-node`` is not Ready."""
    return tuple(
        Engine(
            name=f"engine-{index}",
            node=name.removeprefix("-"),
            ready_since=None if name.startswith("-") else f"2026-01-01T00:00:{index:02}Z",
        )
        for index, name in enumerate(on)
    )


def topology(
    found: Mapping[str, Node],
    *,
    engines_on: tuple[str, ...] = (),
    ranks_on: tuple[str, ...] = (),
    levels: tuple[Level, ...] = LEVELS,
) -> Topology:
    return Topology(
        levels=levels,
        nodes=found,
        engines=engines(*engines_on),
        ranks=dict(enumerate(ranks_on)),
    )
