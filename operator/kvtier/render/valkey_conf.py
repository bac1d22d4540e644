"""The settings of a rank's Valkey, and the file that it starts with."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import yaml

from kvtier.api.types import Connector, Eviction, KVCacheTierSpec, Striping
from kvtier.render.memory import RankMemory, memory

OTHER_CLIENTS = 32
"""Connections of the operator, the probe, the limiter, exporters and people."""
PIPELINE = 8
"""Chunks that one connection may have asked for and not yet read."""
SLOW_READER_SECONDS = 30
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Settings:
    """Names and values as they stand in the file. A running server takes ``live`` by CONFIG SET,
    ``restart`` only by being started with it. Together they are the whole file."""

    live: Mapping[str, str]
    restart: Mapping[str, str]


def settings(spec: KVCacheTierSpec) -> Settings:
    """The settings of every rank of this tier. What is live depends on ``store.version``."""
    ranks = memory(spec)
    series = spec.store.version.value
    live: dict[str, str] = {}
    restart: dict[str, str] = {}
    for name, row in _table().items():
        value = _value(row, spec, ranks)
        if value is None:
            continue
        is_live = series in row["live"] and row.get("restart") != "keep"
        (live if is_live else restart)[name] = value
    return Settings(live=live, restart=restart)


def _value(row: Mapping[str, Any], spec: KVCacheTierSpec, ranks: RankMemory) -> str | None:
    """The value of a row of the table, None if it is not for this tier."""
    if spec.store.tls is not None and "tls" in row:
        return str(row["tls"])
    if "formula" in row:
        return _FORMULAS[row["formula"]](spec, ranks)
    value: str | None = row.get("value")
    return value


def certificate_reload() -> dict[str, str]:
    """What CONFIG SET makes a server load its certificate again: all three files at once."""
    files = ("tls-cert-file", "tls-key-file", "tls-ca-cert-file")
    return {name: _table()[name]["tls"] for name in files}


def chosen_at_start(spec: KVCacheTierSpec) -> dict[str, str]:
    """The settings that follow from the spec and need a restart: what a restart can be asked by.

    A value that only a release changes is not among them: it waits for the next restart.
    """
    restart = settings(spec).restart
    return {
        name: restart[name]
        for name, row in _table().items()
        if "formula" in row and name in restart
    }


def valkey_conf(spec: KVCacheTierSpec) -> str:
    """The text of valkey.conf."""
    values = settings(spec)
    lines = [
        f"{name} {value}" if value else f'{name} ""'
        for name, value in sorted({**values.restart, **values.live}.items())
    ]
    return "\n".join(lines) + "\n"


def _maxclients(spec: KVCacheTierSpec, ranks: RankMemory) -> str:
    pool = spec.pool
    # Each worker of an engine has connections of its own then, to every rank; what they move at
    # once is one chunk all together, so that memory does not count them.
    in_process = pool.engine.connector is Connector.LMCACHE_IN_PROCESS
    processes = pool.ranks if in_process and pool.striping is Striping.HASH else 1
    return str(2 * ranks.connections * processes + OTHER_CLIENTS)


def _maxmemory(_: KVCacheTierSpec, ranks: RankMemory) -> str:
    return str(ranks.maxmemory)


def _policy(spec: KVCacheTierSpec, _: RankMemory) -> str:
    return {Eviction.LRU: "allkeys-lru", Eviction.LFU: "allkeys-lfu"}[spec.store.eviction]


def _client_memory(_: KVCacheTierSpec, ranks: RankMemory) -> str:
    return str(ranks.reserve)


def _output_buffer(_: KVCacheTierSpec, ranks: RankMemory) -> str:
    soft = max(PIPELINE * ranks.chunk_bytes, _MIB)
    return f"normal {2 * soft} {soft} {SLOW_READER_SECONDS}"


def _query_buffer(_: KVCacheTierSpec, ranks: RankMemory) -> str:
    return str(2 * ranks.chunk_bytes + _MIB)


def _io_threads(spec: KVCacheTierSpec, _: RankMemory) -> str:
    return str(spec.store.io_threads)


_FORMULAS: dict[str, Callable[[KVCacheTierSpec, RankMemory], str]] = {
    "maxclients": _maxclients,
    "maxmemory": _maxmemory,
    "policy": _policy,
    "client_memory": _client_memory,
    "output_buffer": _output_buffer,
    "query_buffer": _query_buffer,
    "io_threads": _io_threads,
}


@cache
def _table() -> Mapping[str, Mapping[str, Any]]:
    text = resources.files(__package__).joinpath("valkey_settings.yaml").read_text("utf-8")
    table: Mapping[str, Mapping[str, Any]] = yaml.safe_load(text)
    return table
