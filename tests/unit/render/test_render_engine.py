"""What engines get."""

import json
import re
import shlex
from base64 import b64decode
from math import ceil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtier.api.load import load_file
from kvtier.generation.acl import users
from kvtier.generation.identity import generation_id
from kvtier.render.engine import engine_binaries, engine_files, engine_secret
from kvtier.render.transport import transport

STOCK = {"pool.engine": {"adapter": "Stock"}}
GB25 = [{"domain": "zone", "bitsPerSecond": "25G", "roundTrip": "50us"}]


def files_of(tier: Any, make_record: Any) -> dict[str, str]:
    return engine_files(tier, make_record(tier))


def test_the_connection_names_every_rank_with_its_own_prefix(
    make_tier: Any, make_record: Any
) -> None:
    tier = make_tier({"pool.ranks": 2})
    record = make_record(tier)
    connection = json.loads(engine_files(tier, record)["connection.json"])
    assert connection["ranks"] == [
        {
            "rank": rank,
            "host": f"llama-r{rank}.models.svc",
            "port": 6379,
            "prefix": f"kvt-{record.current.id}-r{rank}",
        }
        for rank in range(2)
    ]
    assert connection["username"] == connection["password"] == record.current.token
    assert (connection["striping"], connection["worldSize"]) == ("Shard", 2)
    assert (connection["chunkTokens"], connection["maxEngines"]) == (256, 8)
    assert connection["generation"] == record.current.id


def test_a_client_of_the_tier_finds_its_model_sizes_and_rates(
    make_tier: Any, make_record: Any
) -> None:
    tier = make_tier({"pool.hitLatency": "330ms", "pool.ranks": 2})
    connection = json.loads(files_of(tier, make_record)["connection.json"])
    assert connection["model"] == "meta-llama/Llama-3.1-70B-Instruct"
    # 320 KiB a token x 256 tokens, on two ranks.
    assert connection["chunkBytesPerRank"] == 320 * 1024 * 256 // 2
    assert connection["prefillRate"] == [{"tokens": 0, "tokensPerSecond": 5000}]
    assert (connection["hitLatencySeconds"], connection["hitEngineTimeSeconds"]) == (0.33, None)


def test_a_hybrid_is_said_to_be_untried_and_names_the_objects_of_every_rank(
    make_tier: Any, make_record: Any
) -> None:
    linear = {"attention": "Linear", "layers": 45, "stateBytes": 4268032}
    latent = {"attention": "Full", "layers": 61, "kvLoraRank": 512, "qkRopeHeadDim": 64}
    index = {"attention": "SparseIndex", "layers": 61, "indexHeadDim": 128}
    base = {"pool.striping": "Hash", "store.memoryPerRank": "256Gi"}
    hybrid = base | {"model.layout": {"groups": [latent, linear]}}
    files = files_of(make_tier(hybrid), make_record)
    assert "not been validated with the real LMCache" in files["NOTICE"]
    assert len(json.loads(files["connection.json"])["kvRanks"]) == 8
    same = base | {"model.layout": {"groups": [latent, index]}}
    connection = json.loads(files_of(make_tier(same), make_record)["connection.json"])
    assert connection["kvRanks"] == ["01000100"]
    plain = files_of(make_tier(base), make_record)
    assert "Hybrid" not in plain["NOTICE"]


MLA = {"mla": {"layers": 61, "kvLoraRank": 512, "qkRopeHeadDim": 64}}


@pytest.mark.parametrize(
    ("changes", "objects"),
    [
        ({"pool.striping": "Shard"}, ["01000100"]),
        ({"pool.striping": "Hash", "pool.ranks": 2}, ["02000200", "02010201"]),
        ({"pool.striping": "Hash", "model.layout": MLA}, ["01000100"]),
        (
            {
                "pool.striping": "Hash",
                "model.layout": MLA,
                "pool.parallelism": {"decodeContext": 2},
            },
            ["02000200", "02010201"],
        ),
    ],
)
def test_the_objects_of_a_chunk_are_those_of_lmcaches_workers(
    changes: dict[str, Any], objects: list[str], make_tier: Any, make_record: Any
) -> None:
    files = files_of(make_tier(changes), make_record)
    assert json.loads(files["connection.json"])["kvRanks"] == objects


def test_what_engines_are_told_is_what_the_rank_lets_them_do(
    make_tier: Any, make_record: Any
) -> None:
    tier = make_tier(STOCK)
    record = make_record(tier)
    files = engine_files(tier, record)
    for rank in range(8):
        adapter = json.loads(files[f"l2-adapter-r{rank}.json"])
        rules = users(record, rank=rank)[adapter["username"]]
        assert f"~{adapter['key_prefix']}@*" in rules
        assert adapter["password"] == adapter["username"] == files["token"]


def test_stock_shard_gets_one_lmcache_server_a_rank(make_tier: Any, make_record: Any) -> None:
    tier = make_tier(STOCK | {"placement.links": GB25})
    record = make_record(tier)
    files = engine_files(tier, record)
    assert json.loads(files["l2-adapter-r7.json"]) == {
        "type": "valkey",
        "startup_nodes": "llama-r7.models.svc:6379",
        "username": record.current.token,
        "password": record.current.token,
        "key_prefix": f"kvt-{record.current.id}-r7",
        "num_workers": 1,
        "request_timeout": 0.86,
        "connection_timeout": 5.0,
        "max_capacity_gb": 0,
    }
    arguments = shlex.split(files["server-args-r7"])
    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert (options["--host"], options["--port"]) == ("127.0.0.1", "6667")
    assert (options["--http-host"], options["--http-port"]) == ("127.0.0.1", "8887")
    assert (options["--chunk-size"], options["--l2-prefetch-policy"]) == ("256", "retain")
    assert record.current.token not in files["server-args-r7"]
    transfer = json.loads(files["kv-transfer-config.json"])
    urls = transfer["kv_connector_extra_config"]["lmcache.mp.server_urls"].split(",")
    assert urls == [f"tcp://127.0.0.1:666{rank}" for rank in range(8)]
    assert transfer["kv_load_failure_policy"] == "recompute"
    assert transfer["kv_connector_extra_config"]["lmcache.mp.mq_timeout"] == 30.0


def test_with_tls_engines_verify_the_ranks_by_the_ca_that_they_get(
    make_tier: Any, make_record: Any
) -> None:
    plain, tls = make_tier(STOCK), make_tier(STOCK | {"store.tls": {"secretName": "ranks-tls"}})
    files = engine_files(tls, make_record(tls), ca="the CA")
    assert files["ca.crt"] == "the CA"
    assert "SSL_CERT_FILE=/kvtier/ca.crt\n" in files["env"]
    for rank in range(8):
        assert json.loads(files[f"l2-adapter-r{rank}.json"])["tls_enable"] is True
    assert json.loads(files["connection.json"])["tls"] is True
    without = files_of(plain, make_record)
    assert "ca.crt" not in without
    assert "SSL_CERT_FILE" not in without["env"]
    assert "tls_enable" not in without["l2-adapter-r0.json"]
    assert json.loads(without["connection.json"])["tls"] is False
    assert files["NOTICE"] == without["NOTICE"]


def test_a_load_that_must_not_be_recomputed_fails(make_tier: Any, make_record: Any) -> None:
    files = files_of(make_tier({"pool.engine": {"loadFailurePolicy": "Fail"}}), make_record)
    assert json.loads(files["kv-transfer-config.json"])["kv_load_failure_policy"] == "fail"


def test_a_client_is_told_what_the_notice_says(make_tier: Any, make_record: Any) -> None:
    files = files_of(make_tier(), make_record)
    assert json.loads(files["connection.json"])["notice"] + "\n" == files["NOTICE"]


def test_engines_hash_prompts_alike(make_tier: Any, make_record: Any) -> None:
    assert "PYTHONHASHSEED=0\n" in files_of(make_tier(), make_record)["env"]


def test_the_secret_is_named_after_its_generation_and_keeps_its_bytes(
    make_tier: Any, make_record: Any
) -> None:
    tier = make_tier()
    record = make_record(tier)
    secret = engine_secret(tier, record)
    assert secret["metadata"]["name"] == f"llama-engine-{record.current.id}"
    kept = {key: b64decode(value) for key, value in secret["data"].items()}
    texts = {key: text.encode() for key, text in engine_files(tier, record).items()}
    assert kept == texts | engine_binaries(tier.spec)


@pytest.mark.parametrize(
    ("bits", "engines", "workers", "timeout"),
    [
        # 4 x 10,485,760 bytes x workers x engines over an eighth of the link.
        ("25G", 1, 8, 0.86),
        ("25G", 8, 1, 0.86),
        ("400G", 8, 8, 0.43),
        ("800G", 1, 8, 0.25),
        ("100G", 8, 4, 0.86),
        ("10G", 8, 1, 2.15),
    ],
)
def test_the_timeout_is_four_full_batches_and_workers_come_down_to_keep_it_short(
    bits: str, engines: int, workers: int, timeout: float, make_tier: Any
) -> None:
    link = {"domain": "zone", "bitsPerSecond": bits, "roundTrip": "50us"}
    found = transport(make_tier({"placement.links": [link], "pool.maxEngines": engines}).spec)
    assert (found.workers, found.request_timeout) == (workers, timeout)
    assert found.fits == (timeout <= 1)
    batch = 10_485_760 * workers * engines / (float(bits[:-1]) * 1e9 / 8 / 8)
    assert timeout == max(0.25, ceil(4 * batch * 100) / 100)


def test_a_link_too_slow_for_the_pool_is_named_with_figures(
    make_tier: Any, make_record: Any
) -> None:
    slow = [{"domain": "zone", "bitsPerSecond": "10G", "roundTrip": "50us"}]
    notice = files_of(make_tier(STOCK | {"placement.links": slow}), make_record)["NOTICE"]
    assert "waits 138 s (64 chunks, 1 worker, request_timeout 2.15 s" in notice
    assert "too slow for this pool" in notice
    fast = [{"domain": "zone", "bitsPerSecond": "400G", "roundTrip": "50us"}]
    notice = files_of(make_tier(STOCK | {"placement.links": fast}), make_record)["NOTICE"]
    assert "waits 3.44 s (64 chunks, 8 workers" in notice
    assert "too slow" not in notice


def test_without_a_declared_link_the_assumed_one_is_named(make_tier: Any, make_record: Any) -> None:
    assert transport(make_tier().spec).link is None
    assert "by 25 Gb/s" in files_of(make_tier(), make_record)["NOTICE"]


@given(gigabits=st.integers(1, 3200), engines=st.integers(1, 40))
def test_no_timeout_is_shorter_than_four_batches_or_a_quarter_second(
    gigabits: int, engines: int, make_tier: Any
) -> None:
    link = {"domain": "zone", "bitsPerSecond": f"{gigabits}G", "roundTrip": "50us"}
    found = transport(make_tier({"placement.links": [link], "pool.maxEngines": engines}).spec)
    batch = 10_485_760 * found.workers * engines / found.bytes_per_second
    assert found.request_timeout >= max(0.25, 4 * batch - 1e-6)
    assert found.request_timeout <= 1 or found.workers == 1
    assert 1 <= found.workers <= 8


def test_the_documented_stalls_are_the_computed_ones(make_tier: Any) -> None:
    text = (Path(__file__).parents[3] / "docs" / "engines.md").read_text("utf-8")
    rows = re.findall(
        r"^\| (\d+) Gb/s \| (\d+) \| (\d+) \| ([\d.]+) s \| ([\d.]+) s \|$", text, re.M
    )
    assert len(rows) == 4
    for bits, engines, *figures in rows:
        link = {"domain": "zone", "bitsPerSecond": f"{bits}G", "roundTrip": "50us"}
        found = transport(
            make_tier({"placement.links": [link], "pool.maxEngines": int(engines)}).spec
        )
        computed = (found.workers, found.request_timeout, found.stall(64))
        assert tuple(map(float, figures)) == pytest.approx(computed)


def test_the_documented_generations_are_those_of_the_smallest_tier_and_of_shard(
    make_tier: Any,
) -> None:
    docs = Path(__file__).parents[3] / "docs"
    smallest = load_file(str(docs.parent / "deploy" / "samples" / "smallest.yaml"))
    name = f"llama-prefill-engine-{generation_id(smallest.spec)}"
    for page in ("engines.md", "generations.md", "loadtest.md"):
        assert name in (docs / page).read_text("utf-8")
    shard = f"llama-prefill-engine-{generation_id(make_tier().spec)}"
    assert shard in (docs / "engines.md").read_text("utf-8")
