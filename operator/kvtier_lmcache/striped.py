"""All ranks of a tier together, and which of them has which chunk."""

import threading
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
    """``told`` gets a line when a rank goes or comes back. ``lines``, if given, one a minute.

    Connects to all of them at once; with ``only`` to that one, and to another when it is asked: an
    engine's worker has one rank, and W workers with connections to W ranks would be too many.
    """

    def __init__(
        self,
        config: Config,
        *,
        told: Callable[[str], None],
        lines: Callable[[str], None] | None = None,
        only: int | None = None,
    ) -> None:
        self._config = config
        self._told = told
        # Two ranks may have one address, with a prefix each.
        self._names = [f"{each}/{each.prefix}" for each in config.ranks]
        self.counts: Mapping[str, Counts] = {name: Counts() for name in self._names}
        self._lines = Lines(lines) if lines else None
        self._lock = threading.Lock()
        self._ranks: dict[int, Rank] = {}
        for rank in range(len(config.ranks)) if only is None else (only,):
            self[rank]

    def __getitem__(self, rank: int) -> Rank:
        found = self._ranks.get(rank)
        if found is None:
            with self._lock:
                found = self._ranks.get(rank) or self._made(rank)
        return found

    def _made(self, rank: int) -> Rank:
        # One of the keepers writes for all.
        writes = self._lines is not None and not self._ranks
        made = Rank(
            self._config.ranks[rank],
            config=self._config,
            counts=self.counts[self._names[rank]],
            told=self._told,
            tick=self._write if writes else _nothing,
        )
        self._ranks[rank] = made
        return made

    def _write(self) -> None:
        if self._lines is not None:
            self._lines.write(self.counts)

    def states(self) -> Mapping[str, str]:
        return {self._names[number]: str(rank.state) for number, rank in self._each()}

    def report(self) -> list[dict[str, Any]]:
        return [
            {
                "rank": self._names[number],
                "breaker": str(rank.state),
                **asdict(self.counts[self._names[number]]),
            }
            for number, rank in self._each()
        ]

    def close(self) -> None:
        for _, rank in self._each():
            rank.close()

    def _each(self) -> list[tuple[int, Rank]]:
        with self._lock:
            return sorted(self._ranks.items())


def _nothing() -> None:
    pass
