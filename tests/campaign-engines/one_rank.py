"""One rank without a cluster: its settings, its users, an engine's configuration and a probe's."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from certificates import Ca
from kvtier.api.load import parse_tier
from kvtier.api.types import KVCacheTier
from kvtier.breakeven.tier import chunk_bytes_per_rank
from kvtier.generation.acl import PROBE_USER, acl_file, probe_prefix
from kvtier.generation.record import new_record
from kvtier.probe.config import ProbeConfig
from kvtier.redact import new_token
from kvtier.render.engine import engine_files
from kvtier.render.valkey_conf import settings
from kvtier.store.address import RankAddress

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "store"))
from valkey_servers import running_server, with_tls

HOST = "localhost"
PATIENCE = 120.0
"""Seconds for a request or a connection: as rendered they are for a link, here all share CPUs."""
PROBE_BYTES = 2 << 30


@dataclass(frozen=True, slots=True)
class Rank:
    """``adapter`` is what LMCache's server for it is given, ``environment`` what engines get for
    its certificate."""

    chunk_bytes: int
    adapter: dict[str, Any]
    environment: dict[str, str]
    probe: ProbeConfig


def tier(*, layers: int, tls: bool = False) -> KVCacheTier:
    """A tier of one rank with one KV head of 128 in bf16 for each of the layers."""
    store: dict[str, Any] = {"memoryPerRank": "3Gi"}
    return parse_tier(
        {
            "apiVersion": "kvtier.dev/v1alpha1",
            "kind": "KVCacheTier",
            "metadata": {"name": "bench", "namespace": "bench"},
            "spec": {
                "model": {
                    "name": "bench",
                    "revision": "1",
                    "kvCacheDtype": "bfloat16",
                    "layout": {"gqa": {"layers": layers, "kvHeads": 1, "headDim": 128}},
                },
                "pool": {
                    "ranks": 1,
                    "striping": "Shard",
                    "engine": {"adapter": "Stock"},
                    "prefillRate": [{"tokensPerSecond": 5000}],
                },
                "store": store | ({"tls": {"secretName": "bench"}} if tls else {}),
            },
        }
    )


@contextmanager
def running(of: KVCacheTier, *, home: Path) -> Iterator[Rank]:
    """The server, with what the tier's configuration and users are in a cluster."""
    probe_token = new_token()
    record = new_record(
        of.spec, operator_token=new_token(), engine_token=new_token(), probe_token=probe_token
    )
    rendered = settings(of.spec)
    lines = {**rendered.restart, **rendered.live}
    for name in ("port", "dir", "aclfile", "bind"):
        lines.pop(name, None)
    ca = Ca() if of.spec.store.tls else None
    ca_file = home / "ca.crt"
    if ca is not None:
        pair = ca.issue(HOST)
        files = {"tls-cert-file": ("tls.crt", pair.certificate), "tls-key-file": ("key", pair.key)}
        for name, (file, text) in (files | {"tls-ca-cert-file": ("ca.crt", ca.pem)}).items():
            (home / file).write_text(text)
            lines[name] = str(home / file)
    with running_server(
        "9.1",
        directory=home,
        acl=acl_file(record, rank=0),
        settings=lines,
        program=with_tls("9.1", "valkey-server"),
    ) as server:
        adapter = json.loads(engine_files(of, record)["l2-adapter-r0.json"])
        adapter |= {"startup_nodes": f"{HOST}:{server.port}"}
        adapter |= {"request_timeout": PATIENCE, "connection_timeout": PATIENCE}
        yield Rank(
            chunk_bytes=chunk_bytes_per_rank(of.spec),
            adapter=adapter,
            environment={"SSL_CERT_FILE": str(ca_file)} if ca else {},
            probe=ProbeConfig(
                ranks=(RankAddress(rank=0, host=HOST, port=server.port, prefix=probe_prefix(0)),),
                value_bytes=chunk_bytes_per_rank(of.spec),
                max_bytes=PROBE_BYTES,
                seconds=10.0,
                username=PROBE_USER,
                password=probe_token,
                setup_seconds=PATIENCE,
                ca=ca.pem if ca else None,
            ),
        )
