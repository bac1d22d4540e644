"""LMCache's own memory in front of the tier, L1: every chunk passes through it."""

from kvtier.api.types import Connector, KVCacheTierSpec
from kvtier.breakeven.footprint import chunk_bytes_per_rank, object_bytes
from kvtier.breakeven.words import size


def l1_chunk_bytes(spec: KVCacheTierSpec) -> int:
    """Bytes that one chunk takes of one L1.

    A server of its own for each rank has that rank's part, one server for all has every worker's.
    In process each worker has what it stores.
    """
    in_process = spec.pool.engine.connector is Connector.LMCACHE_IN_PROCESS
    return object_bytes(spec) if in_process else chunk_bytes_per_rank(spec)


def l1_hit_bytes(spec: KVCacheTierSpec, tokens: int) -> int:
    """Bytes of one L1 that a hit of ``tokens`` takes, in whole chunks."""
    return -(-tokens // spec.pool.chunk_tokens) * l1_chunk_bytes(spec)


def l1_problem(spec: KVCacheTierSpec) -> list[str]:
    """An L1 that no chunk fits stores and loads nothing: the field and the fix in a line."""
    engine, least = spec.pool.engine, l1_chunk_bytes(spec)
    if engine.connector is Connector.GENERIC or engine.l1_bytes >= least:
        return []
    return [
        f"spec.pool.engine.l1Size: {engine.l1_size} leaves room for no chunk of {size(least)};"
        " write the host memory of one LMCache server, such as 20Gi"
    ]


def l1_gigabytes(spec: KVCacheTierSpec) -> float:
    """``l1Size`` in LMCache's gigabytes, which are GiB."""
    return spec.pool.engine.l1_bytes / 2**30
