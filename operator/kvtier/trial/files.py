"""What the ranks and the engines of a trial read: the very text that a cluster would have."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from kvtier.api.types import KVCacheTier
from kvtier.generation.acl import acl_file
from kvtier.generation.record import Record
from kvtier.render.engine import engine_binaries, engine_files
from kvtier.render.mount import Mount
from kvtier.render.valkey_conf import valkey_conf
from kvtier.trial.keeper import ACL, CONF, HOST

ENGINE: Final = "engine"
"""The engine Secret as a directory."""
LEAST_TIMEOUT: Final = 5.0
"""Seconds. A declared link gives no bound here: ranks and client share the machine's CPUs."""


def write_ranks(directory: Path, tier: KVCacheTier, record: Record) -> None:
    """``r<k>/valkey.conf`` and ``r<k>/users.acl``, as ConfigMap and Secret have them."""
    for rank in range(tier.spec.pool.ranks):
        home = directory / f"r{rank}"
        home.mkdir(mode=0o700)
        _write(home / CONF, valkey_conf(tier.spec))
        _write(home / ACL, acl_file(record, rank=rank))


def write_engine(
    directory: Path, tier: KVCacheTier, record: Record, *, ports: Sequence[int]
) -> Path:
    """The engine Secret with local addresses, as it is mounted; its directory."""
    home = directory / ENGINE
    home.mkdir(mode=0o700)
    mount = Mount(directory=str(home), addresses=tuple((HOST, port) for port in ports))
    for name, text in engine_files(tier, record, mount=mount).items():
        _write(home / name, _patient(text) if name == "connection.json" else text)
    for name, content in engine_binaries(tier.spec).items():
        _write(home / name, content)
    return home


def _patient(text: str) -> str:
    connection: dict[str, Any] = json.loads(text)
    timeout = max(connection["requestTimeoutSeconds"], LEAST_TIMEOUT)
    return (
        json.dumps(connection | {"requestTimeoutSeconds": timeout}, indent=1, sort_keys=True) + "\n"
    )


def _write(file: Path, content: str | bytes) -> None:
    file.touch(mode=0o600)
    file.write_bytes(content.encode() if isinstance(content, str) else content)
