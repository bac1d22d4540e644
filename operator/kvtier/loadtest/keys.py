"""Names of chunks: chained hashes of a prompt, and the keys that LMCache 0.5 writes."""

import hashlib
from typing import Final

TOKEN_BYTES: Final = 4
"""A prompt is its token ids, each an unsigned little-endian integer of so many bytes."""
OBJECT_GROUP: Final = 0


def chunk_hashes(tokens: bytes, *, chunk_tokens: int) -> list[bytes]:
    """Hashes (32 bytes) of a prompt's full chunks; the tokens after the last have none.

    Each covers every token before it, because KV depends on all of them: two prompts share a
    chunk only as long as they are equal from their first token on. LMCache's BLAKE3 is not in the
    standard library, so these are BLAKE2b: as long and as even, but not the same.
    """
    step = chunk_tokens * TOKEN_BYTES
    hashes = []
    previous = b""
    for start in range(0, len(tokens) - step + 1, step):
        previous = hashlib.blake2b(previous + tokens[start : start + step], digest_size=32).digest()
        hashes.append(previous)
    return hashes


def wire_key(*, prefix: str, model: str, kv_rank: str, chunk_hash: bytes) -> bytes:
    """``prefix@model@kv_rank@group@hash``, as LMCache's MP adapters write it.

    ``kv_rank`` is ``%08x`` of world size << 24 | rank << 16 | local world size << 8 | local rank.
    """
    return f"{prefix}@{model}@{kv_rank}@{OBJECT_GROUP:x}@{chunk_hash.hex()}".encode()
