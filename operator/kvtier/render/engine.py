"""The Secret that engines mount: addresses, key prefixes, credentials, and their configuration."""

import json
from typing import Any

import yaml

from kvtier.api.scalars import parse_duration
from kvtier.api.types import Adapter, Connector, KVCacheTier, KVCacheTierSpec, Striping
from kvtier.breakeven.footprint import chunk_bytes_per_rank, objects_per_chunk
from kvtier.generation.acl import key_prefix
from kvtier.generation.record import Record
from kvtier.render import lmcache
from kvtier.render.memory import held_tokens
from kvtier.render.meta import secret
from kvtier.render.mount import IN_CLUSTER, Mount
from kvtier.render.names import CA_KEY, TOKEN_KEY, engine_secret_name
from kvtier.render.notice import notice
from kvtier.render.plugin import ZIP_KEY, plugin_zip
from kvtier.render.transport import Transport, transport
from kvtier.render.vllm import kv_transfer_config

PYTHON_PATH = "PYTHONPATH"


def engine_secret(tier: KVCacheTier, record: Record, *, ca: str | None = None) -> dict[str, Any]:
    """A function of spec, record and CA only: engines' configuration never follows live counts.

    It is mutable: a declared link or ``maxEngines`` changes timeouts within one generation. The
    token in it changes only with the record.
    """
    name = engine_secret_name(tier.metadata.name, record.current.id)
    files = engine_files(tier, record, ca=ca)
    return secret(tier, name, data={**files, **engine_binaries(tier.spec)})


def engine_binaries(spec: KVCacheTierSpec) -> dict[str, bytes]:
    """The keys of the Secret that are no text: the plugin, where a connector loads it."""
    return {ZIP_KEY: plugin_zip()} if has_plugin(spec) else {}


def engine_files(
    tier: KVCacheTier, record: Record, *, ca: str | None = None, mount: Mount = IN_CLUSTER
) -> dict[str, str]:
    """Text of the other keys. ``ca`` is what engines verify ranks by (PEM), with TLS."""
    settings = transport(tier.spec)
    text = notice(tier, settings)
    files = {
        "connection.json": _json(
            _connection(tier, record, settings=settings, told=text, mount=mount)
        ),
        TOKEN_KEY: record.current.token,
        "env": _environment(tier, record, mount=mount),
        "NOTICE": f"{text}\n",
    }
    if ca is not None:
        files[CA_KEY] = ca
    connector = tier.spec.pool.engine.connector
    if connector is Connector.LMCACHE_MP:
        files |= _servers(tier, record, settings=settings, mount=mount)
        transfer = kv_transfer_config(tier.spec, servers=lmcache.servers(tier))
        files["kv-transfer-config.json"] = _json(transfer)
    elif connector is Connector.LMCACHE_IN_PROCESS:
        config = lmcache.in_process(tier, record, settings=settings, mount=mount)
        files[lmcache.CONFIG_KEY] = yaml.safe_dump(config, default_flow_style=False)
        files["kv-transfer-config.json"] = _json(kv_transfer_config(tier.spec, servers=()))
    return files


def has_plugin(spec: KVCacheTierSpec) -> bool:
    """Whether engines of the tier load kvtier's plugin."""
    engine = spec.pool.engine
    return engine.connector is not Connector.GENERIC and engine.adapter is Adapter.PLUGIN


def _servers(
    tier: KVCacheTier, record: Record, *, settings: Transport, mount: Mount
) -> dict[str, str]:
    """Adapter and arguments of each LMCache server: of every rank's, or of the one for all."""
    ranks = range(tier.spec.pool.ranks)
    if tier.spec.pool.striping is Striping.HASH:
        adapter = lmcache.l2_adapter(tier, record, ranks=ranks, settings=settings, mount=mount)
        return {"l2-adapter.json": _json(adapter), "server-args": lmcache.server_arguments(tier, 0)}
    files = {}
    for rank in ranks:
        own = range(rank, rank + 1)
        adapter = lmcache.l2_adapter(tier, record, ranks=own, settings=settings, mount=mount)
        files[f"l2-adapter-r{rank}.json"] = _json(adapter)
        files[f"server-args-r{rank}"] = lmcache.server_arguments(tier, rank)
    return files


def _connection(
    tier: KVCacheTier, record: Record, *, settings: Transport, told: str, mount: Mount
) -> dict[str, Any]:
    pool, live = tier.spec.pool, record.current
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
        "notice": told,
        "tls": tier.spec.store.tls is not None,
        "ranks": [
            {"rank": rank, "host": host, "port": port, "prefix": key_prefix(live.id, rank)}
            for rank in range(pool.ranks)
            for host, port in [mount.address(tier, rank)]
        ],
    }


def kv_ranks(spec: KVCacheTierSpec) -> list[str]:
    """Which objects LMCache keeps of a chunk on a rank, by that part of their keys.

    It is ``%08x`` of world size << 24 | rank << 16 | local world size << 8 | local rank. With one
    server per rank each server has a world of one.
    """
    world = objects_per_chunk(spec)
    return [f"{world:02x}{rank:02x}{world:02x}{rank:02x}" for rank in range(world)]


def _seconds(duration: str | None) -> float | None:
    return None if duration is None else parse_duration(duration)


def environment(tier: KVCacheTier, generation: str, *, mount: Mount = IN_CLUSTER) -> dict[str, str]:
    """Variables of engines and LMCache servers. ``PYTHONPATH`` goes in front of what is there."""
    spec = tier.spec
    values = {
        "KVTIER_TIER": tier.metadata.name,
        "KVTIER_GENERATION": generation,
        # Without it every process hashes prompts in its own way, and no engine finds a chunk of
        # another.
        "PYTHONHASHSEED": "0",
    }
    if spec.store.tls and not has_plugin(spec):
        # LMCache's own client has no setting for a CA: it takes the process's trust store. The
        # plugin has one, and leaves vLLM what it needs to fetch models.
        values["SSL_CERT_FILE"] = mount.file(CA_KEY)
    if spec.pool.engine.connector is Connector.LMCACHE_IN_PROCESS:
        values["LMCACHE_CONFIG_FILE"] = mount.file(lmcache.CONFIG_KEY)
    if has_plugin(spec):
        values[PYTHON_PATH] = mount.file(ZIP_KEY)
    return values


def _environment(tier: KVCacheTier, record: Record, *, mount: Mount) -> str:
    values = environment(tier, record.current.id, mount=mount)
    if PYTHON_PATH in values:
        values[PYTHON_PATH] += f"${{{PYTHON_PATH}:+:${PYTHON_PATH}}}"
    return "".join(f"{name}={value}\n" for name, value in values.items())


def _json(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=1, sort_keys=True) + "\n"
