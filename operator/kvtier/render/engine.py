"""The Secret that engines mount: addresses, key prefixes, credentials, and their configuration."""

import json
from typing import Any

from kvtier.api.scalars import parse_duration
from kvtier.api.types import KVCacheTier, KVCacheTierSpec, LoadFailurePolicy, Striping
from kvtier.breakeven.footprint import chunk_bytes_per_rank, stored_by_every_rank
from kvtier.breakeven.words import counted
from kvtier.generation.acl import key_prefix
from kvtier.generation.record import Record
from kvtier.render.memory import held_tokens
from kvtier.render.meta import secret
from kvtier.render.names import CA_KEY, PORT, TOKEN_KEY, engine_secret_name, host
from kvtier.render.transport import Transport, transport

CONNECTION_TIMEOUT = 5.0
MQ_TIMEOUT = 30.0
SERVER_PORT = 6660
HTTP_PORT = 8880
"""LMCache's own ports of rank 0's server; rank k has the k-th after it. Both on loopback only:
the HTTP one prints credentials to whoever asks."""
STALL_TOKENS = 16384
MOUNT_PATH = "/kvtier"
"""Where engines mount the Secret (docs/engines.md)."""

HASH_NOTICE = (
    "Engines cannot use this tier yet: striping Hash needs kvtier's LMCache plugin, which is not "
    "part of this release. The addresses, prefixes and credentials here work; for GQA models "
    "striping Shard works with stock LMCache."
)

HYBRID_NOTICE = (
    "Hybrid attention (model.layout.groups) has not been validated with the real LMCache: which "
    "objects it keeps of windows and linear states, and whether a hit can end at every chunk, is "
    "read from its source, not run."
)


def engine_secret(tier: KVCacheTier, record: Record, *, ca: str | None = None) -> dict[str, Any]:
    """A function of spec, record and CA only: engines' configuration never follows live counts.

    It is mutable: a declared link or ``maxEngines`` changes timeouts within one generation. The
    token in it changes only with the record.
    """
    name = engine_secret_name(tier.metadata.name, record.live.id)
    return secret(tier, name, data=engine_files(tier, record, ca=ca))


def engine_files(tier: KVCacheTier, record: Record, *, ca: str | None = None) -> dict[str, str]:
    """Text of every key of the Secret. ``ca`` is what engines verify ranks by (PEM), with TLS."""
    pool = tier.spec.pool
    settings = transport(tier.spec)
    shard = pool.striping is Striping.SHARD
    notice = _stall_notice(tier, settings) if shard else HASH_NOTICE
    if tier.spec.model.layout.groups is not None:
        notice = f"{notice} {HYBRID_NOTICE}"
    files = {
        "connection.json": _json(_connection(tier, record, settings=settings, notice=notice)),
        TOKEN_KEY: record.live.token,
        "env": _environment(tier, record),
        "NOTICE": f"{notice}\n",
    }
    if ca is not None:
        files[CA_KEY] = ca
    if shard:
        for rank in range(pool.ranks):
            files[f"l2-adapter-r{rank}.json"] = _json(
                _adapter(tier, record, rank=rank, settings=settings)
            )
            files[f"server-args-r{rank}"] = _server_arguments(tier, rank)
        files["kv-transfer-config.json"] = _json(_kv_transfer_config(tier))
    return files


def _connection(
    tier: KVCacheTier, record: Record, *, settings: Transport, notice: str
) -> dict[str, Any]:
    pool, live = tier.spec.pool, record.live
    return {
        "tier": tier.metadata.name,
        "namespace": tier.metadata.namespace,
        "generation": live.id,
        "striping": pool.striping.value,
        "worldSize": pool.ranks,
        "model": tier.spec.model.name,
        "kvRanks": kv_ranks(tier.spec),
        "chunkTokens": pool.chunk_tokens,
        "chunkBytesPerRank": chunk_bytes_per_rank(tier.spec),
        "capacityTokens": held_tokens(tier.spec),
        "prefillRate": [
            {"tokens": rate.tokens, "tokensPerSecond": rate.tokens_per_second}
            for rate in pool.prefill_rate
        ],
        "hitLatencySeconds": _seconds(pool.hit_latency),
        "hitEngineTimeSeconds": _seconds(pool.hit_engine_time),
        "maxEngines": pool.max_engines,
        # The engine's user is named as its password: stock LMCache 0.5.6 swaps the two.
        "username": live.token,
        "password": live.token,
        "workers": settings.workers,
        "requestTimeoutSeconds": settings.request_timeout,
        "notice": notice,
        "tls": tier.spec.store.tls is not None,
        "ranks": [
            {
                "rank": rank,
                "host": host(tier.metadata.name, namespace=tier.metadata.namespace, rank=rank),
                "port": PORT,
                "prefix": key_prefix(live.id, rank),
            }
            for rank in range(pool.ranks)
        ],
    }


def kv_ranks(spec: KVCacheTierSpec) -> list[str]:
    """Which objects LMCache keeps of a chunk on a rank, by that part of their keys.

    It is ``%08x`` of world size << 24 | rank << 16 | local world size << 8 | local rank. With one
    server per rank each server has a world of one. One server for all stores an object for each
    worker whose KV is its own: every one under GQA, one per decode context rank under MLA, and
    for a hybrid every one unless all ranks hold the same.
    """
    pool, layout = spec.pool, spec.model.layout
    world = 1
    if pool.striping is Striping.HASH:
        every_rank = layout.gqa or (layout.groups and stored_by_every_rank(layout.groups))
        world = pool.ranks if every_rank else pool.parallelism.decode_context
    return [f"{world:02x}{rank:02x}{world:02x}{rank:02x}" for rank in range(world)]


def _seconds(duration: str | None) -> float | None:
    return None if duration is None else parse_duration(duration)


def _environment(tier: KVCacheTier, record: Record) -> str:
    values = {
        "KVTIER_TIER": tier.metadata.name,
        "KVTIER_GENERATION": record.live.id,
        # Without it every process hashes prompts in its own way, and no engine finds a chunk of
        # another.
        "PYTHONHASHSEED": "0",
    }
    if tier.spec.store.tls:
        # LMCache's Valkey client has no setting for a CA; it takes the process's trust store.
        values["SSL_CERT_FILE"] = f"{MOUNT_PATH}/{CA_KEY}"
    return "".join(f"{name}={value}\n" for name, value in values.items())


def _adapter(
    tier: KVCacheTier, record: Record, *, rank: int, settings: Transport
) -> dict[str, Any]:
    """One LMCache server's ``--l2-adapter``: the stock Valkey adapter on its own rank."""
    address = host(tier.metadata.name, namespace=tier.metadata.namespace, rank=rank)
    adapter = {
        "type": "valkey",
        "startup_nodes": f"{address}:{PORT}",
        "username": record.live.token,
        "password": record.live.token,
        "key_prefix": key_prefix(record.live.id, rank),
        "num_workers": settings.workers,
        "request_timeout": settings.request_timeout,
        "connection_timeout": CONNECTION_TIMEOUT,
        # Valkey evicts; LMCache is not to count.
        "max_capacity_gb": 0,
    }
    return adapter | {"tls_enable": True} if tier.spec.store.tls else adapter


def _server_arguments(tier: KVCacheTier, rank: int) -> str:
    """Arguments of ``lmcache server`` for one rank, safe to split at spaces.

    Not in it: ``--l1-size-gb``, which only the owner of the engine's node knows, and
    ``--l2-adapter``, whose JSON holds the token.
    """
    arguments = {
        "--host": "127.0.0.1",
        "--port": str(SERVER_PORT + rank),
        "--http-host": "127.0.0.1",
        "--http-port": str(HTTP_PORT + rank),
        "--chunk-size": str(tier.spec.pool.chunk_tokens),
        "--hash-algorithm": "blake3",
        "--eviction-policy": "LRU",
        "--l2-store-policy": "default",
        # The default policy fetches every hit of a hot prefix again.
        "--l2-prefetch-policy": "retain",
        "--l2-prefetch-max-in-flight": "8",
        "--supported-transfer-mode": "lmcache_driven",
    }
    return " ".join(f"{name} {value}" for name, value in arguments.items()) + "\n"


def _kv_transfer_config(tier: KVCacheTier) -> dict[str, Any]:
    """vLLM's ``--kv-transfer-config``. ``server_urls`` gives each worker the server of its rank."""
    policy = {LoadFailurePolicy.RECOMPUTE: "recompute", LoadFailurePolicy.FAIL: "fail"}
    urls = [f"tcp://127.0.0.1:{SERVER_PORT + rank}" for rank in range(tier.spec.pool.ranks)]
    return {
        "kv_connector": "LMCacheMPConnector",
        "kv_connector_module_path": "lmcache.integration.vllm.lmcache_mp_connector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": policy[tier.spec.pool.engine.load_failure_policy],
        "kv_connector_extra_config": {
            "lmcache.mp.server_urls": ",".join(urls),
            "lmcache.mp.mq_timeout": MQ_TIMEOUT,
        },
    }


def _stall_notice(tier: KVCacheTier, settings: Transport) -> str:
    """What stock LMCache does when a rank is lost, in figures."""
    chunks = -(-STALL_TOKENS // tier.spec.pool.chunk_tokens)
    assumed = f"the declared link of domain {settings.link}" if settings.link else "25 Gb/s"
    text = (
        f"Stock LMCache: while a rank is dead or hung, every lookup of {STALL_TOKENS} tokens "
        f"waits {settings.stall(chunks):.3g} s ({counted(chunks, 'chunk')}, "
        f"{counted(settings.workers, 'worker')}, request_timeout "
        f"{settings.request_timeout:g} s by {assumed}). LMCache exits at start "
        "when its rank is down."
    )
    if not settings.fits:
        text += (
            " The link is too slow for this pool: even one worker per engine needs a timeout "
            "above 1 s. Lower spec.pool.maxEngines or chunkTokens, or measure the link (kvtier "
            "probe) and declare what it does."
        )
    return text


def _json(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=1, sort_keys=True) + "\n"
