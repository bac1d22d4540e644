"""Whether ranks that have no node yet can fit by what nodes have."""

from collections.abc import Mapping
from dataclasses import dataclass

from kvtier.breakeven.words import size
from kvtier.placement.findings import named


@dataclass(frozen=True, slots=True)
class Room:
    """``free`` is by node what is allocatable without what this tier's engines and ranks request
    there, in bytes. ``wanted`` ranks of ``memory`` bytes each have no node yet.

    What pods of others request is not in it: reading that would take every pod of the cluster. So
    too little room is a fact, and enough room is none.
    """

    wanted: int
    memory: int
    free: Mapping[str, int]

    @property
    def fits(self) -> int:
        """The most ranks that the nodes could hold. ``memory`` is positive."""
        return sum(max(free, 0) // self.memory for free in self.free.values())

    def in_words(self) -> str:
        """The figures, the largest nodes first."""
        if not self.free:
            return (
                f"{self.wanted} ranks of {size(self.memory)} have no node, and no node may hold"
                " one: see store.nodeSelector and placement.within."
            )
        largest = sorted(self.free.items(), key=lambda item: (-item[1], item[0]))
        nodes = [f"{node} {size(max(free, 0))}" for node, free in largest]
        return (
            f"{self.wanted} ranks of {size(self.memory)} have no node, and at most {self.fits}"
            f" fit: allocatable without this tier's own pods is {named(nodes)}. Lower"
            " store.memoryPerRank, or add nodes."
        )
