"""How much of a rank's memory limit holds KV, and how many connections that allows for."""

from dataclasses import dataclass

from kvtier.api.pool import MIN_CHUNK_TOKENS
from kvtier.api.types import KVCacheTierSpec, Striping
from kvtier.breakeven.footprint import chunk_bytes_per_rank, object_bytes, objects_per_chunk, wire
from kvtier.breakeven.words import size
from kvtier.render.quantities import memory_quantity

WORKERS = 8
"""Connections of one engine to one rank: LMCache's default ``num_workers``, and the most that a
published configuration asks for. Fewer, where a slow link brings them down, need no other size."""
MIN_CHUNKS = 16
MAX_CHUNK_BYTES = 512 << 20
"""Valkey's ``proto-max-bulk-len``: no larger value can be stored."""
_MIB = 1 << 20
_PROCESS_BYTES = 24 * _MIB
_HEADER_BYTES = 64
"""Key, object and string header of one value, at most."""


class MemoryTooSmall(ValueError):
    """A rank that could not work. One line that names the field and the fix."""


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Memory of one rank, in bytes.

    ``limit`` is the container's, ``reserve`` what Valkey needs beside the data, ``maxmemory`` the
    rest. ``connections`` are the engines' at full pool size. ``chunk_bytes`` is one chunk as it
    comes over the wire, ``stored_bytes`` what the allocator takes for it. ``chunks`` is how many
    stay while every connection holds one more.
    """

    limit: int
    reserve: int
    maxmemory: int
    connections: int
    chunk_bytes: int
    stored_bytes: int
    chunks: int


def memory(spec: KVCacheTierSpec) -> RankMemory:
    """The memory of one rank of this tier.

    reserve = max(10 % of the limit, 2 x connections x chunk bytes, min(512 MiB, 25 % of the
    limit), 24 MiB): every connection may hold a chunk that comes in and one that goes out, beside
    what the allocator and the process need. Valkey never forks here, so nothing is kept for copies.

    The process takes 4 MiB, and what the allocator has not given back yet up to 14 more, whatever
    the limit (measured, Valkey 9.1.2, values of 1 MiB over a full cache of smaller ones). With 16
    MiB for both a rank of 64 MiB was killed.

    Valkey counts clients' buffers towards maxmemory as well, and evicts chunks for them: what is
    left when all connections are busy decides. Where that was nothing, stores failed (tried: 2 MiB
    chunks, 64 busy connections, maxmemory 33 MiB).

    Raises MemoryTooSmall if fewer than 16 chunks would stay, or one chunk is more than Valkey
    takes.
    """
    chunk = chunk_bytes_per_rank(spec)
    if (largest := object_bytes(spec)) > MAX_CHUNK_BYTES:
        raise MemoryTooSmall(_too_large(spec, largest))
    limit = spec.store.memory_bytes
    connections = WORKERS * spec.pool.max_engines
    reserve = _reserve(limit, chunk=chunk, connections=connections)
    maxmemory = max(limit - reserve, 0)
    stored = allocated_bytes(chunk)
    chunks = _chunks(limit, chunk=chunk, connections=connections)
    if chunks < MIN_CHUNKS:
        least = _least_limit((MIN_CHUNKS + connections) * stored, buffers=2 * connections * chunk)
        raise MemoryTooSmall(
            f"spec.store.memoryPerRank: {spec.store.memory_per_rank} leaves room for {chunks} "
            f"chunks of {size(chunk)} beside the buffers of {connections} connections; a rank "
            f"needs {MIN_CHUNKS}: set it to at least {memory_quantity(least)}"
            + _fewer_engines(limit, chunk=chunk, engines=spec.pool.max_engines)
        )
    return RankMemory(
        limit=limit,
        reserve=reserve,
        maxmemory=maxmemory,
        connections=connections,
        chunk_bytes=chunk,
        stored_bytes=stored,
        chunks=chunks,
    )


def held_chunks(spec: KVCacheTierSpec, rank: RankMemory) -> int:
    """Whole chunks that all ranks of this tier hold together."""
    shared = spec.pool.striping is Striping.SHARD
    return rank.chunks if shared else rank.chunks * spec.pool.ranks


def held_tokens(spec: KVCacheTierSpec) -> int:
    """Tokens of KV that all ranks hold together: no longer hit is ever found whole.

    Raises MemoryTooSmall as ``memory`` does.
    """
    return held_chunks(spec, memory(spec)) * spec.pool.chunk_tokens


def _too_large(spec: KVCacheTierSpec, value: int) -> str:
    states = wire(spec).states // objects_per_chunk(spec)
    if states >= MAX_CHUNK_BYTES:
        return (
            f"spec.model.layout.groups: the states of linear layers are {states} bytes on a rank, "
            f"and Valkey stores no value above {MAX_CHUNK_BYTES}; check stateBytes, or spread the "
            "model over more ranks"
        )
    most = spec.pool.chunk_tokens * (MAX_CHUNK_BYTES - states) // (value - states)
    if most < MIN_CHUNK_TOKENS:
        return (
            f"spec.model.layout: one token's KV is {value // spec.pool.chunk_tokens} bytes on a "
            f"rank, and Valkey stores no value above {MAX_CHUNK_BYTES}, less than the smallest "
            f"chunk of {MIN_CHUNK_TOKENS} tokens; write the model's own "
            "layout (kvtier layout prints it)"
        )
    return (
        f"spec.pool.chunkTokens: a chunk of {spec.pool.chunk_tokens} tokens makes a value of "
        f"{value} bytes, and Valkey stores no value above {MAX_CHUNK_BYTES}; lower it to at most "
        f"{most}, or correct spec.model.layout if the model's KV is smaller"
    )


def allocated_bytes(size: int) -> int:
    """What a value of ``size`` bytes takes of maxmemory with jemalloc up to 5.3.0.

    It has four sizes for each doubling, and a value has a header: 10 MiB take 12 MiB, 2 MiB take
    2.5 (measured with Valkey 8.1.1). From jemalloc 5.3.1 on large sizes are rounded to pages only
    (measured: 10 MiB take 10 MiB), but which one an image has cannot be known here.
    """
    needed = size + _HEADER_BYTES
    step = 1 << max((needed - 1).bit_length() - 3, 0)
    return _ceil_div(needed, step) * step


def _reserve(limit: int, *, chunk: int, connections: int) -> int:
    buffers = 2 * connections * chunk
    return max(_ceil_div(limit, 10), buffers, min(512 * _MIB, limit // 4), _PROCESS_BYTES)


def _chunks(limit: int, *, chunk: int, connections: int) -> int:
    maxmemory = limit - _reserve(limit, chunk=chunk, connections=connections)
    return max(maxmemory // allocated_bytes(chunk) - connections, 0)


def _fewer_engines(limit: int, *, chunk: int, engines: int) -> str:
    """The other way out, empty where even one engine is too many."""
    for fewer in range(engines - 1, 0, -1):
        if _chunks(limit, chunk=chunk, connections=WORKERS * fewer) >= MIN_CHUNKS:
            return f", or lower spec.pool.maxEngines to at most {fewer}"
    return ""


def _least_limit(data: int, *, buffers: int) -> int:
    """The least limit that leaves ``data`` bytes of maxmemory, rounded up to a MiB.

    What each of the four reserves leaves grows with the limit, so each gives a least limit of its
    own and the largest of them satisfies all.
    """
    least = max(
        _ceil_div(10 * data, 9),
        data + buffers,
        min(_ceil_div(4 * data, 3), data + 512 * _MIB),
        data + _PROCESS_BYTES,
    )
    return _ceil_div(least, _MIB) * _MIB


def _ceil_div(value: int, by: int) -> int:
    return -(-value // by)
