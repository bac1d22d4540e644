"""What the ranks keep of one prompt, as keys or, while a request waits, as a few bits."""

from collections.abc import Collection, Sequence
from itertools import compress

from kvtier.loadtest import striping
from kvtier.loadtest.connection import Connection
from kvtier.loadtest.keys import wire_key

Held = dict[int, list[bytes]]
"""Of one rank: the keys of each chunk that it holds of a prompt, by the chunk's number."""


def objects(connection: Connection, hashes: Sequence[bytes]) -> list[Held]:
    """For each rank the keys that it must hold of the prompt with these chunks."""
    held = striping.chunks_by_rank(connection.striping, hashes=hashes, ranks=len(connection.ranks))
    return [
        {
            index: [
                wire_key(
                    prefix=address.prefix,
                    model=connection.model,
                    kv_rank=kv_rank,
                    chunk_hash=hashes[index],
                )
                for kv_rank in connection.kv_ranks
            ]
            for index in mine
        }
        for address, mine in zip(connection.ranks, held, strict=True)
    ]


def flat(held: Held) -> list[bytes]:
    """All keys of a rank, in the order of their chunks."""
    return [key for keys in held.values() for key in keys]


def pack(held: Held, some: Collection[bytes]) -> int:
    """Which of a rank's keys are among ``some``, a bit each: keys themselves are a thousandfold,
    and under overload many requests wait."""
    return int("0" + "".join("01"[key in some] for key in flat(held)), 2)


def unpack(held: Held, bits: int) -> list[bytes]:
    """The keys that ``pack`` was given."""
    keys = flat(held)
    return list(compress(keys, map(int, f"{bits:0{len(keys)}b}")))
