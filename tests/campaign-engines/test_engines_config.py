"""The files of every row of the table, read by LMCache's and vLLM's own code."""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from certificates import Ca
from kvtier.api.combinations import Row, row_of, rows
from kvtier.api.load import parse_tier
from kvtier.api.types import KVCacheTier
from kvtier.generation.record import Record, new_record
from kvtier.redact import new_token
from kvtier.render.engine import engine_binaries, engine_files
from kvtier.render.mount import Mount
from kvtier.render.plugin import minimum_hit_chunks
from kvtier.render.transport import transport

PARSER = Path(__file__).with_name("engine_parser.py")
LAYOUTS: Mapping[str, Any] = {
    "gqa": {"gqa": {"layers": 80, "kvHeads": 8, "headDim": 128}},
    "mla": {"mla": {"layers": 61, "kvLoraRank": 512, "qkRopeHeadDim": 64}},
    "groups": {"groups": [{"attention": "Full", "layers": 8, "kvHeads": 8, "headDim": 128}]},
    "bytesPerToken": {"bytesPerToken": 48_400},
}
LMCACHE = [row for row in rows() if row.connector != "Generic"]


def name(row: Row) -> str:
    return f"{row.connector}-{row.adapter}-{row.striping}-{row.attention}"


def tier_of(row: Row, *, tls: bool, engine: Mapping[str, Any] | None = None) -> KVCacheTier:
    """A tier of this row, of which everything is declared that its files follow."""
    store = {"memoryPerRank": "256Gi"} | ({"tls": {"secretName": "ranks"}} if tls else {})
    engine = {"connector": row.connector.value, "adapter": row.adapter.value} | dict(engine or {})
    tier = parse_tier(
        {
            "apiVersion": "kvtier.dev/v1alpha1",
            "kind": "KVCacheTier",
            "metadata": {"name": "chat", "namespace": "models"},
            "spec": {
                "model": {
                    "name": "org/model",
                    "revision": "1605565b47bb9346c5515c34102e054115b4f98b",
                    "kvCacheDtype": "bfloat16",
                    "layout": LAYOUTS[row.attention],
                },
                "pool": {
                    "ranks": 1 if row.one_rank else 4,
                    "striping": row.striping.value,
                    "prefillRate": [{"tokensPerSecond": 5000}],
                    "hitLatency": "300ms",
                    "hitEngineTime": "30ms",
                    "engine": {"l1Size": "1536Mi", **engine},
                },
                "store": store,
                "placement": {
                    "links": [{"domain": "zone", "bitsPerSecond": "400G", "roundTrip": "50us"}]
                },
            },
        }
    )
    assert row_of(tier.spec) == row
    return tier


class Secret:
    """The published files as a mount shows them."""

    def __init__(self, tier: KVCacheTier, home: Path) -> None:
        self.tier, self.home = tier, home
        self.record: Record = new_record(
            tier.spec,
            operator_token=new_token(),
            engine_token=new_token(),
            probe_token=new_token(),
        )
        ca = Ca().pem if tier.spec.store.tls else None
        mount = Mount(directory=str(home))
        files = engine_files(tier, self.record, ca=ca, mount=mount)
        for key, text in files.items():
            (home / key).write_text(text)
        for key, content in engine_binaries(tier.spec).items():
            (home / key).write_bytes(content)

    def parsed(self, python: str, *more: str) -> Any:
        """As an engine's containers would start it: by a shell that has read ``env``."""
        script = f'set -a; . {self.home}/env; exec "$0" "$@"'
        done = subprocess.run(
            ["sh", "-c", script, python, str(PARSER), str(self.home), *more],
            capture_output=True,
            text=True,
            check=False,
            env={key: value for key, value in os.environ.items() if "PYTHON" not in key},
        )
        assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
        return json.loads(done.stdout.rstrip().splitlines()[-1])


@pytest.fixture
def python(program: list[str]) -> str:
    return program[0]


# Of one layout with TLS too: each case imports torch, and what TLS adds is the same for all.
@pytest.mark.parametrize(
    ("row", "tls"),
    [
        pytest.param(row, tls, id=f"{name(row)}-{'tls' if tls else 'plain'}")
        for row in LMCACHE
        for tls in ((False, True) if row.attention == "gqa" else (False,))
    ],
)
def test_lmcache_reads_what_is_published(row: Row, tls: bool, python: str, tmp_path: Path) -> None:
    tier = tier_of(row, tls=tls)
    secret = Secret(tier, tmp_path)
    found = secret.parsed(python)
    if row.connector == "LMCacheInProcess":
        assert found["warnings"] == [], "no key that LMCache does not know"
        assert (found["chunk_size"], found["max_local_cpu_size"]) == (256, 1.5)
        assert found["min_retrieve_tokens"] == 256 * minimum_hit_chunks(tier.spec) > 0
        assert found["pre_caching_hash_algorithm"] == "sha256_cbor_64bit"
        assert "ConnectorAdapter" in found["plugin"]["bases"]
        check_plugin(found["plugin"], secret, ranks=range(tier.spec.pool.ranks))
        return
    count = tier.spec.pool.ranks if row.striping == "Shard" else 1
    assert len(found["servers"]) == count
    for index, server in enumerate(found["servers"]):
        assert server["mp"] == ["127.0.0.1", 6660 + index, 256, "blake3"]
        assert server["http"] == ["127.0.0.1", 8880 + index]
        assert (server["transfer"], server["l1_bytes"]) == ("auto", 1536 << 20)
        mine = range(index, index + 1) if row.striping == "Shard" else range(tier.spec.pool.ranks)
        check_adapter(server["adapter"], secret, ranks=mine)


def check_adapter(found: Mapping[str, Any], secret: Secret, *, ranks: range) -> None:
    if "plugin" in found:
        assert "L2AdapterInterface" in found["plugin"]["bases"]
        check_plugin(found["plugin"], secret, ranks=ranks)
        return
    (rank,) = ranks
    assert found["class"] == "ValkeyL2AdapterConfig"
    fields = found["fields"]
    assert fields["username"] == fields["password"] == secret.record.current.token
    assert fields["key_prefix"] == f"kvt-{secret.record.current.id}-r{rank}"
    assert fields["tls_enable"] == str(secret.tier.spec.store.tls is not None)
    assert float(fields["request_timeout"]) == transport(secret.tier.spec).request_timeout


def check_plugin(found: Mapping[str, Any], secret: Secret, *, ranks: range) -> None:
    settings = transport(secret.tier.spec)
    assert found["from"].startswith(str(secret.home / "kvtier_lmcache.zip")), "from the Secret"
    config = found["config"]
    assert config["striping"] == secret.tier.spec.pool.striping
    assert config["credentials"] == str(secret.home / "token")
    assert (config["workers"], config["request_timeout"]) == (
        str(settings.workers),
        str(settings.request_timeout),
    )
    tls = secret.tier.spec.store.tls is not None
    assert config["ca"] == (str(secret.home / "ca.crt") if tls else "None")
    for rank in range(secret.tier.spec.pool.ranks):
        named = f"'kvt-{secret.record.current.id}-r{rank}'" in config["ranks"]
        assert named == (rank in ranks)


@pytest.mark.parametrize(
    "row", [row for row in LMCACHE if row.attention == "gqa" and not row.one_rank], ids=name
)
def test_vllm_reads_its_transfer_config(row: Row, python: str, tmp_path: Path) -> None:
    """Of a recent release: vLLM must be in the environment."""
    secret = Secret(tier_of(row, tls=False, engine={"loadFailurePolicy": "Fail"}), tmp_path)
    found = secret.parsed(python, "vllm")
    assert found["kv_load_failure_policy"] == "fail"
    assert found["kv_role"] == "kv_both"
    in_process = row.connector == "LMCacheInProcess"
    assert found["kv_connector"] == ("LMCacheConnectorV1" if in_process else "LMCacheMPConnector")
