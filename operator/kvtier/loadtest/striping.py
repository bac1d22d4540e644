"""Which rank holds which chunk, and how long a prompt's hit is."""

from collections.abc import Sequence
from enum import StrEnum


class Striping(StrEnum):
    """How the chunks of a prompt spread over the W ranks.

    ``SHARD``: a part of each chunk on every rank. ``HASH``: a whole chunk on the rank that its hash
    picks. ``CHUNK_MODULO``: chunk c on rank c mod W, as in the paper; no released engine does it.
    """

    SHARD = "Shard"
    HASH = "Hash"
    CHUNK_MODULO = "ChunkModulo"


def holders(striping: Striping, *, index: int, chunk_hash: bytes, ranks: int) -> Sequence[int]:
    """The ranks that must hold the prompt's chunk number ``index`` for it to be usable."""
    if striping is Striping.SHARD:
        return range(ranks)
    if striping is Striping.HASH:
        return (int.from_bytes(chunk_hash, "big") % ranks,)
    return (index % ranks,)


def chunks_by_rank(striping: Striping, *, hashes: Sequence[bytes], ranks: int) -> list[list[int]]:
    """For each rank the numbers of the chunks that it holds of a prompt, rising."""
    held: list[list[int]] = [[] for _ in range(ranks)]
    for index, chunk_hash in enumerate(hashes):
        for rank in holders(striping, index=index, chunk_hash=chunk_hash, ranks=ranks):
            held[rank].append(index)
    return held


def answer(held: Sequence[int], present: Sequence[bool], *, chunks: int) -> int:
    """A rank's answer to a look-up: the number of its first missing chunk, or all ``chunks``.

    ``held`` are the chunks that the rank holds of the prompt, rising, ``present`` says of each
    whether it is there. Chunks of other ranks do not shorten the answer.
    """
    missing = (index for index, there in zip(held, present, strict=True) if not there)
    return next(missing, chunks)


def hit_chunks(answers: Sequence[int]) -> int:
    """The prompt's hit: the minimum over all ranks' answers.

    It is the longest prefix whose chunks are all present wherever they must be, found without a
    word between ranks (paper B, rank partition).
    """
    return min(answers)
