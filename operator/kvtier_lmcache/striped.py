"""All ranks of a tier together, and which of them has which chunk."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from kvtier_lmcache.config import SEPARATOR, Config
from kvtier_lmcache.counters import Counts, Lines
from kvtier_lmcache.jobs import Job, Kind, slices
from kvtier_lmcache.rank import Rank
from kvtier_lmcache.tasks import Batch

Finish = Callable[[list[bool]], None]
"""Gets an answer for each key, once, from any thread."""


def holder(chunk_hash: bytes | int, ranks: int) -> int:
    """The rank that has a chunk, as an index; every object of a chunk is on the same."""
    number = chunk_hash if isinstance(chunk_hash, int) else int.from_bytes(chunk_hash, "big")
    return number % ranks


class Ranks:
    """``rank_of`` a key of LMCache's is the index of the rank that has it, ``name`` what stands
    behind that rank's prefix. ``told`` gets a line when a rank goes or comes back; ``lines``, if
    given, one a minute.

    Connects to all of them at once; with ``only`` to that one, and to another when it is asked: an
    engine's worker has one rank, and W workers with connections to W ranks would be too many.
    """

    def __init__(
        self,
        config: Config,
        *,
        rank_of: Callable[[Any], int],
        name: Callable[[Any], str],
        told: Callable[[str], None],
        lines: Callable[[str], None] | None = None,
        only: int | None = None,
    ) -> None:
        self._config = config
        self._rank_of = rank_of
        self._name = name
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

    def look_up(self, keys: Sequence[Any], finish: Finish) -> None:
        """Which of the keys are there."""
        if not keys:
            finish([])
            return
        batch = Batch(len(keys), finish)
        for rank, (at, wire) in self._by_rank(keys).items():
            self[rank].submit(
                [
                    Job(
                        kind=Kind.LOOKUP,
                        keys=wire[piece.start : piece.stop],
                        done=batch.at(at[piece.start : piece.stop]),
                    )
                    for piece in slices(len(at), workers=self._config.workers)
                ]
            )

    def move(self, kind: Kind, keys: Sequence[Any], objects: Sequence[Any], finish: Finish) -> None:
        """Load the keys into the objects' buffers, or store them from there."""
        if not keys:
            finish([])
            return
        batch = Batch(len(keys), finish)
        jobs = {
            rank: [
                Job(
                    kind=kind,
                    keys=(key,),
                    done=batch.at((each,)),
                    buffer=memoryview(objects[each].byte_array),
                )
                for each, key in zip(at, wire, strict=True)
            ]
            for rank, (at, wire) in self._by_rank(keys).items()
        }
        # All or none: LMCache frees the buffers of a task whose submission raised.
        for rank, own in jobs.items():
            self[rank].submit(own)

    def _by_rank(self, keys: Sequence[Any]) -> dict[int, tuple[list[int], list[bytes]]]:
        """By rank, the positions of its keys and what they are on the wire."""
        found: dict[int, tuple[list[int], list[bytes]]] = {}
        for position, key in enumerate(keys):
            rank = self._rank_of(key)
            at, wire = found.setdefault(rank, ([], []))
            at.append(position)
            wire.append(f"{self._config.ranks[rank].prefix}{SEPARATOR}{self._name(key)}".encode())
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
