"""kvtier's plugin for LMCache as the engine Secret has it, and what it is told."""

import io
import math
import zipfile
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from kvtier.api.types import Connector, KVCacheTier, KVCacheTierSpec
from kvtier.breakeven.tier import minimum_hit
from kvtier.generation.acl import key_prefix
from kvtier.generation.record import Record
from kvtier.render.mount import Mount
from kvtier.render.names import CA_KEY, TOKEN_KEY
from kvtier.render.transport import Transport

PACKAGE: Final = "kvtier_lmcache"
ZIP_KEY: Final = f"{PACKAGE}.zip"
MP_CLASS: Final = "StripedL2Adapter"
IN_PROCESS_CLASS: Final = "StripedConnectorAdapter"
CONNECTION_TIMEOUT: Final = 1.0
LONGEST_TIMEOUT: Final = 600.0
"""Seconds: the most that the plugin takes."""
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
"""The first date that a zip file can hold."""
_UNIX: Final = 3


@cache
def plugin_zip() -> bytes:
    """The package as a file that Python imports from: the same bytes for the same sources.

    It is read where it is installed and not imported: it imports LMCache, which is not here.
    Raises RuntimeError where it is not installed.
    """
    found = find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise RuntimeError(f"{PACKAGE} is not installed beside kvtier: install kvtier's package")
    home = Path(found.origin).parent
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for file in sorted(home.rglob("*.py")):
            entry = zipfile.ZipInfo(f"{PACKAGE}/{file.relative_to(home).as_posix()}", _EPOCH)
            entry.create_system = _UNIX
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, file.read_bytes())
    return buffer.getvalue()


def parameters(
    tier: KVCacheTier,
    record: Record,
    *,
    ranks: Sequence[int],
    settings: Transport,
    mount: Mount,
) -> dict[str, Any]:
    """What the plugin is given. No token is in it: it reads the mounted file."""
    tls = tier.spec.store.tls is not None
    given: dict[str, Any] = {
        "striping": tier.spec.pool.striping.value,
        "ranks": [_rank(tier, record, rank=rank, mount=mount) for rank in ranks],
        "credentials": mount.file(TOKEN_KEY),
        "workers": settings.workers,
        "request_timeout": min(settings.request_timeout, LONGEST_TIMEOUT),
        "connection_timeout": CONNECTION_TIMEOUT,
        "tls": tls,
    }
    if tls:
        given["ca"] = mount.file(CA_KEY)
    if tier.spec.pool.engine.connector is Connector.LMCACHE_MP:
        # In process LMCache has a setting of its own for it.
        given["minimum_hit_chunks"] = minimum_hit_chunks(tier.spec)
    return given


def minimum_hit_chunks(spec: KVCacheTierSpec) -> int:
    """Whole chunks below which no hit pays, by what is declared; 0 where that does not say."""
    tokens = minimum_hit(spec)
    if tokens is None or math.isinf(tokens):
        return 0
    return math.ceil(tokens / spec.pool.chunk_tokens)


def _rank(tier: KVCacheTier, record: Record, *, rank: int, mount: Mount) -> dict[str, Any]:
    address, port = mount.address(tier, rank)
    return {"host": address, "port": port, "prefix": key_prefix(record.current.id, rank)}
