"""What LMCache is told: its servers' adapters and arguments, or its file when it is in process."""

import math
from typing import Any, Final

from kvtier.api.types import Adapter, KVCacheTier, Striping
from kvtier.breakeven.footprint import wire
from kvtier.breakeven.tier import farthest_link, shown_lengths
from kvtier.generation.acl import key_prefix
from kvtier.generation.record import Record
from kvtier.render import plugin
from kvtier.render.l1 import l1_gigabytes
from kvtier.render.mount import Mount
from kvtier.render.transport import DEFAULT_BITS_PER_SECOND, MARGIN, Transport

CONNECTION_TIMEOUT: Final = 5.0
SERVER_PORT: Final = 6660
HTTP_PORT: Final = 8880
"""LMCache's own ports of rank 0's server; rank k has the k-th after it. Both on loopback only:
the HTTP one prints its configuration to whoever asks."""
LEAST_BLOCKING_TIMEOUT: Final = 10
"""LMCache's default."""
NEVER: Final = 1 << 30
"""Loads that may come back short between two looks of LMCache's health monitor. By default ten turn
all of LMCache off for five minutes at least, and a rank that is lost has as many in flight."""
CONFIG_KEY: Final = "lmcache.yaml"
_PLUGIN_NAME: Final = "kvtier"


def servers(tier: KVCacheTier) -> tuple[str, ...]:
    """Addresses of one engine's LMCache servers: one for each rank, or one for all."""
    pool = tier.spec.pool
    count = pool.ranks if pool.striping is Striping.SHARD else 1
    return tuple(f"tcp://127.0.0.1:{SERVER_PORT + index}" for index in range(count))


def l2_adapter(
    tier: KVCacheTier,
    record: Record,
    *,
    ranks: range,
    settings: Transport,
    mount: Mount,
) -> dict[str, Any]:
    """One LMCache server's ``--l2-adapter``, for the ranks that it has."""
    if tier.spec.pool.engine.adapter is Adapter.STOCK:
        (rank,) = ranks
        return _stock(tier, record, rank=rank, settings=settings, mount=mount)
    return {
        "type": "plugin",
        "module_path": plugin.PACKAGE,
        "class_name": plugin.MP_CLASS,
        "adapter_params": plugin.parameters(
            tier, record, ranks=ranks, settings=settings, mount=mount
        ),
    }


def _stock(
    tier: KVCacheTier, record: Record, *, rank: int, settings: Transport, mount: Mount
) -> dict[str, Any]:
    address, port = mount.address(tier, rank)
    adapter = {
        "type": "valkey",
        "startup_nodes": f"{address}:{port}",
        "username": record.current.token,
        "password": record.current.token,
        "key_prefix": key_prefix(record.current.id, rank),
        "num_workers": settings.workers,
        "request_timeout": settings.request_timeout,
        "connection_timeout": CONNECTION_TIMEOUT,
        # Valkey evicts; LMCache is not to count.
        "max_capacity_gb": 0,
    }
    return adapter | {"tls_enable": True} if tier.spec.store.tls else adapter


def server_arguments(tier: KVCacheTier, index: int) -> str:
    """Arguments of one engine's ``lmcache server`` number ``index``, safe to split at spaces.

    Not in it: ``--l2-adapter``, whose JSON holds the token with the stock adapter.
    """
    arguments = {
        "--host": "127.0.0.1",
        "--port": str(SERVER_PORT + index),
        "--http-host": "127.0.0.1",
        "--http-port": str(HTTP_PORT + index),
        "--l1-size-gb": _number(l1_gigabytes(tier.spec)),
        "--chunk-size": str(tier.spec.pool.chunk_tokens),
        "--hash-algorithm": "blake3",
        "--eviction-policy": "LRU",
        "--l2-store-policy": "default",
        # The default policy fetches every hit of a hot prefix again.
        "--l2-prefetch-policy": "retain",
        "--l2-prefetch-max-in-flight": "8",
        # The server then takes both ways, and the worker's device chooses: on GPUs the server
        # copies by IPC handles, as with lmcache_driven, on CPUs the engine does (LMCache 0.5.6:
        # DeviceSpec.default_mp_transfer_mode).
        "--supported-transfer-mode": "auto",
    }
    return " ".join(f"{name} {value}" for name, value in arguments.items()) + "\n"


def in_process(
    tier: KVCacheTier, record: Record, *, settings: Transport, mount: Mount
) -> dict[str, Any]:
    """LMCACHE_CONFIG_FILE of every worker of an engine."""
    pool = tier.spec.pool
    given = plugin.parameters(tier, record, ranks=range(pool.ranks), settings=settings, mount=mount)
    name = f"remote_storage_plugin.{_PLUGIN_NAME}"
    return {
        "chunk_size": pool.chunk_tokens,
        "local_cpu": True,
        "max_local_cpu_size": l1_gigabytes(tier.spec),
        "remote_storage_plugins": [_PLUGIN_NAME],
        "remote_serde": "naive",
        "save_unfull_chunk": False,
        # The default one is another in every process.
        "pre_caching_hash_algorithm": "sha256_cbor_64bit",
        "blocking_timeout_secs": _blocking_timeout(tier),
        "min_retrieve_tokens": plugin.minimum_hit_chunks(tier.spec) * pool.chunk_tokens,
        "extra_config": {
            f"{name}.module_path": plugin.PACKAGE,
            f"{name}.class_name": plugin.IN_PROCESS_CLASS,
            _PLUGIN_NAME: given,
            "save_chunk_meta": False,
            "get_blocking_failed_threshold": NEVER,
        },
    }


def _blocking_timeout(tier: KVCacheTier) -> int:
    """Seconds for all chunks of a load: 4 x the time of the longest on the link, at least 10."""
    link = farthest_link(tier.spec)
    rate = link.bytes_per_second if link else DEFAULT_BITS_PER_SECOND / 8
    longest = wire(tier.spec).of(max(shown_lengths(tier.spec)))
    return max(LEAST_BLOCKING_TIMEOUT, math.ceil(MARGIN * longest / rate))


def _number(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".")
