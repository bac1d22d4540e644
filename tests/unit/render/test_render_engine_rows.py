"""The engine Secret of each row of the table of combinations."""

import importlib
import io
import json
import re
import shlex
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvtier.breakeven.tier import assess
from kvtier.generation.acl import users
from kvtier.render.engine import engine_binaries, engine_files, engine_secret
from kvtier.render.mount import Mount
from kvtier.render.plugin import plugin_zip
from kvtier.render.transport import transport
from kvtier.render.valkey_conf import settings

HASH = {"pool.striping": "Hash"}
IN_PROCESS = {"pool.engine": {"connector": "LMCacheInProcess"}}
GENERIC = {"pool.engine": {"connector": "Generic"}}
STOCK = {"pool.engine": {"adapter": "Stock"}}
TLS = {"store.tls": {"secretName": "ranks-tls"}}
LINKED = {
    "pool.hitLatency": "300ms",
    "pool.hitEngineTime": "30ms",
    "placement.links": [{"domain": "zone", "bitsPerSecond": "25G", "roundTrip": "50us"}],
}
MLA = {"model.layout": {"mla": {"layers": 61, "kvLoraRank": 512, "qkRopeHeadDim": 64}}}
COMMON = {"connection.json", "token", "env", "NOTICE"}
PLUGIN = "kvtier_lmcache.zip"
ROWS: dict[str, tuple[Mapping[str, Any], set[str]]] = {
    "Shard": (
        {"pool.ranks": 2},
        {"l2-adapter-r0.json", "l2-adapter-r1.json", "server-args-r0", "server-args-r1"}
        | {"kv-transfer-config.json", PLUGIN},
    ),
    "Shard, stock": (
        {"pool.ranks": 1} | STOCK,
        {"l2-adapter-r0.json", "server-args-r0", "kv-transfer-config.json"},
    ),
    "Hash": (HASH, {"l2-adapter.json", "server-args", "kv-transfer-config.json", PLUGIN}),
    "Hash, stock": (
        HASH | STOCK | {"pool.ranks": 1},
        {"l2-adapter.json", "server-args", "kv-transfer-config.json"},
    ),
    "in process": (IN_PROCESS, {"lmcache.yaml", "kv-transfer-config.json", PLUGIN}),
    "Generic": (GENERIC, set()),
}


def files_of(make_tier: Any, make_record: Any, *changes: Mapping[str, Any]) -> dict[str, str]:
    tier = make_tier({key: value for each in changes for key, value in each.items()})
    return engine_files(tier, make_record(tier))


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("tls", [{}, TLS])
def test_a_row_has_these_keys(
    row: str, tls: Mapping[str, Any], make_tier: Any, make_record: Any
) -> None:
    changes, keys = ROWS[row]
    tier = make_tier({**changes, **tls})
    secret = engine_secret(tier, make_record(tier), ca="the CA" if tls else None)
    assert secret["data"].keys() == COMMON | keys | ({"ca.crt"} if tls else set())


def test_every_key_of_the_secret_is_documented(make_tier: Any, make_record: Any) -> None:
    text = (Path(__file__).parents[3] / "docs" / "engines.md").read_text("utf-8")
    for changes, _ in ROWS.values():
        tier = make_tier({**changes, **TLS})
        for key in engine_secret(tier, make_record(tier), ca="the CA")["data"]:
            assert f"| `{re.sub('r[0-9]+', 'r<k>', key)}` |" in text


@pytest.mark.parametrize("row", ROWS)
def test_the_secret_is_far_below_what_kubernetes_takes(
    row: str, make_tier: Any, make_record: Any
) -> None:
    tier = make_tier({**ROWS[row][0], **TLS})
    secret = engine_secret(tier, make_record(tier), ca="a" * 16384)
    assert sum(len(key) + len(value) for key, value in secret["data"].items()) < 512 << 10


def parameters(files: Mapping[str, str], key: str = "l2-adapter.json") -> Any:
    adapter = json.loads(files[key])
    assert (adapter["type"], adapter["module_path"]) == ("plugin", "kvtier_lmcache")
    return adapter["adapter_params"]


def test_hash_gives_one_server_the_plugin_with_every_rank(make_tier: Any, make_record: Any) -> None:
    tier = make_tier({"pool.ranks": 2, **HASH, **LINKED})
    record = make_record(tier)
    files = engine_files(tier, record)
    assert json.loads(files["l2-adapter.json"])["class_name"] == "StripedL2Adapter"
    assert parameters(files) == {
        "striping": "Hash",
        "ranks": [
            {
                "host": f"llama-r{rank}.models.svc",
                "port": 6379,
                "prefix": f"kvt-{record.current.id}-r{rank}",
            }
            for rank in range(2)
        ],
        "credentials": "/kvtier/token",
        "workers": transport(tier.spec).workers,
        "request_timeout": transport(tier.spec).request_timeout,
        "connection_timeout": 1.0,
        "tls": False,
        # A hit wins from so many tokens on, by the declared figures.
        "minimum_hit_chunks": -(-assess(tier.spec).minimum_hit // 256),  # type: ignore[operator]
    }
    urls = json.loads(files["kv-transfer-config.json"])["kv_connector_extra_config"]
    assert urls["lmcache.mp.server_urls"] == "tcp://127.0.0.1:6660"


def test_with_shard_each_server_has_the_plugin_with_its_own_rank(
    make_tier: Any, make_record: Any
) -> None:
    tier = make_tier(TLS)
    record = make_record(tier)
    files = engine_files(tier, record, ca="the CA")
    token = record.current.token
    for rank in range(8):
        given = parameters(files, f"l2-adapter-r{rank}.json")
        (only,) = given["ranks"]
        assert f"~{only['prefix']}@*" in users(record, rank=rank)[token]
        assert (given["tls"], given["ca"]) == (True, "/kvtier/ca.crt")
    urls = json.loads(files["kv-transfer-config.json"])["kv_connector_extra_config"]
    assert len(urls["lmcache.mp.server_urls"].split(",")) == 8


@pytest.mark.parametrize("changes", [{}, HASH, IN_PROCESS, GENERIC])
def test_the_plugin_reads_the_token_from_a_file(
    changes: Mapping[str, Any], make_tier: Any, make_record: Any
) -> None:
    tier = make_tier(changes)
    record = make_record(tier)
    token = record.current.token
    holding = {key for key, text in engine_files(tier, record).items() if token in text}
    assert holding == {"token", "connection.json"}


def test_nothing_below_the_minimum_hit_is_suppressed_where_nobody_declared_it(
    make_tier: Any, make_record: Any
) -> None:
    assert parameters(files_of(make_tier, make_record, HASH))["minimum_hit_chunks"] == 0
    never = LINKED | {"pool.prefillRate": [{"tokensPerSecond": 1_000_000}]}
    assert assess(make_tier({**HASH, **never}).spec).minimum_hit == float("inf")
    assert parameters(files_of(make_tier, make_record, HASH, never))["minimum_hit_chunks"] == 0


@pytest.mark.parametrize("changes", [{}, HASH, STOCK])
@pytest.mark.parametrize(("size", "said"), [("5Gi", "5"), ("512Mi", "0.5"), ("20G", "18.626451")])
def test_a_server_is_told_its_memory_in_gib(
    size: str, said: str, changes: Mapping[str, Any], make_tier: Any, make_record: Any
) -> None:
    engine = {"pool.engine": {**changes.get("pool.engine", {}), "l1Size": size}}
    files = files_of(make_tier, make_record, {**changes, **engine})
    for key in (key for key in files if key.startswith("server-args")):
        arguments = shlex.split(files[key])
        options = dict(zip(arguments[::2], arguments[1::2], strict=True))
        assert options["--l1-size-gb"] == said
        assert options["--supported-transfer-mode"] == "auto"


def test_in_process_lmcache_loads_the_plugin(make_tier: Any, make_record: Any) -> None:
    files = files_of(make_tier, make_record, IN_PROCESS, LINKED)
    config = yaml.safe_load(files["lmcache.yaml"])
    assert config["remote_storage_plugins"] == ["kvtier"]
    extra = config["extra_config"]
    assert extra["remote_storage_plugin.kvtier.module_path"] == "kvtier_lmcache"
    assert extra["remote_storage_plugin.kvtier.class_name"] == "StripedConnectorAdapter"
    assert (config["chunk_size"], config["max_local_cpu_size"]) == (256, 5.0)
    assert len(extra["kvtier"]["ranks"]) == 8
    # Which rank is there is the plugin's to know, not LMCache's.
    assert extra["get_blocking_failed_threshold"] > 1_000_000
    # LMCache's own minimum hit is for it here.
    assert "minimum_hit_chunks" not in extra["kvtier"]
    assert config["min_retrieve_tokens"] == 14 * 256, "3,470 tokens in whole chunks"
    assert "LMCACHE_CONFIG_FILE=/kvtier/lmcache.yaml\n" in files["env"]
    transfer = json.loads(files["kv-transfer-config.json"])
    assert transfer == {
        "kv_connector": "LMCacheConnectorV1",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
    }


def test_another_client_gets_the_connection_alone(make_tier: Any, make_record: Any) -> None:
    files = files_of(make_tier, make_record, GENERIC)
    assert files.keys() == COMMON
    assert "PYTHONPATH" not in files["env"]
    connection = json.loads(files["connection.json"])
    # Nobody knows what it makes of a chunk.
    assert connection["kvRanks"] == ["01000100"]


@pytest.mark.parametrize(
    ("version", "policy", "told"),
    [
        (None, True, ""),
        ("0.16.0", True, ""),
        ("0.13", True, ""),
        ("0.12.0", False, "it always computes again what it could not load"),
        ("0.11.0", False, "what it does when a load fails is its own"),
        ("1.0", True, ""),
    ],
)
def test_an_old_vllm_gets_no_field_that_it_does_not_know(
    version: str | None, policy: bool, told: str, make_tier: Any, make_record: Any
) -> None:
    engine = {"connector": "LMCacheInProcess", "vllmVersion": version}
    files = files_of(make_tier, make_record, {"pool.engine": engine})
    config = json.loads(files["kv-transfer-config.json"])
    assert ("kv_load_failure_policy" in config) == policy
    assert told in files["NOTICE"]
    assert ("vLLM" in files["NOTICE"]) == bool(told)


def test_in_process_works_with_older_releases_of_vllm(make_tier: Any, make_record: Any) -> None:
    def notice(version: str) -> str:
        engine = {"connector": "LMCacheInProcess", "vllmVersion": version}
        return files_of(make_tier, make_record, {"pool.engine": engine})["NOTICE"]

    assert "too old" not in notice("0.13.0")
    assert "vLLM 0.8.5 may be too old" in notice("0.8.5")


def test_files_elsewhere_name_each_other_there(make_tier: Any, make_record: Any) -> None:
    tier = make_tier({"pool.ranks": 2, **IN_PROCESS, **TLS})
    mount = Mount(directory="/elsewhere", addresses=(("localhost", 1), ("localhost", 2)))
    files = engine_files(tier, make_record(tier), ca="the CA", mount=mount)
    assert not [key for key, text in files.items() if "/kvtier/" in text or "models.svc" in text]
    given = yaml.safe_load(files["lmcache.yaml"])["extra_config"]["kvtier"]
    assert [rank["port"] for rank in given["ranks"]] == [1, 2]
    connection = json.loads(files["connection.json"])
    assert [rank["port"] for rank in connection["ranks"]] == [1, 2]


@pytest.fixture
def no_plugin_yet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Neither the module nor the way to its sources."""
    kept = {name: module for name, module in sys.modules.items() if "kvtier_lmcache" in name}
    for name in kept:
        monkeypatch.delitem(sys.modules, name)
    yield
    for name in [name for name in sys.modules if name.startswith("kvtier_lmcache")]:
        del sys.modules[name]


def test_python_imports_the_plugin_from_its_zip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_plugin_yet: None
) -> None:
    file = tmp_path / PLUGIN
    file.write_bytes(plugin_zip())
    monkeypatch.setattr(sys, "path", [str(file), *sys.path])
    importlib.invalidate_caches()
    found = importlib.util.find_spec("kvtier_lmcache")
    assert found is not None
    assert found.origin == str(file / "kvtier_lmcache" / "__init__.py")
    assert found.loader is not None
    code = found.loader.get_code("kvtier_lmcache")  # type: ignore[attr-defined]
    assert code.co_filename == found.origin


def test_the_zip_is_a_function_of_the_sources() -> None:
    before = plugin_zip()
    plugin_zip.cache_clear()
    assert plugin_zip() == before
    with zipfile.ZipFile(io.BytesIO(before)) as archive:
        home = Path(__file__).parents[3] / "operator" / "kvtier_lmcache"
        sources = {f"kvtier_lmcache/{file.relative_to(home)}" for file in home.rglob("*.py")}
        assert set(archive.namelist()) == sources
        for entry in archive.infolist():
            assert entry.date_time == (1980, 1, 1, 0, 0, 0)
            assert entry.compress_type == zipfile.ZIP_STORED
            name = entry.filename.removeprefix("kvtier_lmcache/")
            assert archive.read(entry) == (home / name).read_bytes()


def test_stock_rows_have_no_plugin(make_tier: Any) -> None:
    assert engine_binaries(make_tier(STOCK).spec) == {}
    assert engine_binaries(make_tier(GENERIC).spec) == {}
    assert engine_binaries(make_tier(IN_PROCESS).spec).keys() == {PLUGIN}


def test_an_object_of_hash_is_one_workers_part_of_a_chunk(make_tier: Any) -> None:
    fast = {"placement.links": [{"domain": "zone", "bitsPerSecond": "400G", "roundTrip": "1us"}]}
    shard = transport(make_tier(fast).spec)
    hashed = transport(make_tier({**fast, **HASH}).spec)
    assert (hashed.workers, hashed.request_timeout) == (shard.workers, shard.request_timeout)
    # In process the workers move a whole chunk together; a latent is one object.
    whole = 80 * 2**20
    for changes, moved in (
        (IN_PROCESS, whole),
        (GENERIC, whole),
        (MLA, 61 * (512 + 64) * 2 * 256),
        ({"pool.engine": {"connector": "LMCacheMP"}}, whole // 8),
    ):
        found = transport(make_tier({**fast, **HASH, **changes}).spec)
        at_once = 4 * moved * found.workers * 8 / found.bytes_per_second
        assert found.request_timeout == pytest.approx(max(0.25, at_once), abs=0.01)


def test_every_worker_in_process_may_connect_to_every_rank(make_tier: Any) -> None:
    one = settings(make_tier(HASH).spec).live["maxclients"]
    assert one == str(2 * 64 + 32)
    each = settings(make_tier({**HASH, **IN_PROCESS}).spec).live["maxclients"]
    assert each == str(2 * 64 * 8 + 32)
    assert settings(make_tier(IN_PROCESS).spec).live["maxclients"] == one
