"""All ranks of a tier together, and which of them has which chunk."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from kvtier_lmcache.config import Config
from kvtier_lmcache.counters import Counts, Lines
from kvtier_lmcache.rank import Rank


def holder(chunk_hash: bytes | int, ranks: int) -> int:
    """The rank that has a chunk, as an index; every object of a chunk is on the same."""
    number = chunk_hash if isinstance(chunk_hash, int) else int.from_bytes(chunk_hash, "big")
    return number % ranks


class Ranks:
    """``told`` gets a line when a rank goes or comes back. ``lines``, if given, one a minute."""

    def __init__(
        self,
        config: Config,
        *,
        told: Callable[[str], None],
        lines: Callable[[str], None] | None = None,
    ) -> None:
        # Two ranks may have one address, with a prefix each.
        self._names = [f"{each}/{each.prefix}" for each in config.ranks]
        self.counts: Mapping[str, Counts] = {name: Counts() for name in self._names}
        minutes = Lines(lines) if lines else None
        self._ranks = [
            Rank(
                address,
                config=config,
                counts=self.counts[name],
                told=told,
                # One of the keepers writes for all.
                tick=(lambda: minutes.write(self.counts)) if minutes and not number else _nothing,
            )
            for number, (name, address) in enumerate(zip(self._names, config.ranks, strict=True))
        ]

    def __getitem__(self, rank: int) -> Rank:
        return self._ranks[rank]

    def states(self) -> Mapping[str, str]:
        return {name: str(rank.state) for name, rank in zip(self._names, self._ranks, strict=True)}

    def report(self) -> list[dict[str, Any]]:
        return [
            {"rank": name, "breaker": str(rank.state), **asdict(self.counts[name])}
            for name, rank in zip(self._names, self._ranks, strict=True)
        ]

    def close(self) -> None:
        for rank in self._ranks:
            rank.close()


def _nothing() -> None:
    pass
