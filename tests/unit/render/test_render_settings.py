"""valkey.conf: what is in it, what is live, and that real servers take it."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from socket import create_connection
from typing import Any

import pytest
import yaml
from valkey import Valkey
from valkey_servers import Server, running_server

from kvtier.api.types import KVCacheTier
from kvtier.generation.acl import acl_file, key_prefix
from kvtier.generation.record import Record
from kvtier.render.memory import MemoryTooSmall, memory
from kvtier.render.valkey_conf import settings, valkey_conf
from kvtier.store.config import differing

FACTS = yaml.safe_load(
    (Path(__file__).parents[1] / "store" / "settings_facts.yaml").read_text("utf-8")
)
SMALL = {
    "model.layout": {"gqa": {"layers": 16, "kvHeads": 8, "headDim": 64}},
    "pool.ranks": 4,
    "pool.maxEngines": 1,
    "store.memoryPerRank": "256Mi",
}


@pytest.fixture(params=["8.1", "9.1"])
def tier(request: pytest.FixtureRequest, make_tier: Any) -> KVCacheTier:
    made: KVCacheTier = make_tier({**SMALL, "store.version": request.param})
    return made


@pytest.fixture
def server(tier: KVCacheTier, make_record: Any, tmp_path: Path) -> Iterator[Server]:
    """A real server of the tier's series with the tier's own settings and users."""
    wanted = settings(tier.spec)
    values = {**wanted.restart, **wanted.live}
    for name in ("bind", "port", "aclfile"):
        del values[name]
    acl = acl_file(make_record(tier), rank=0)
    with running_server(
        tier.spec.store.version.value, directory=tmp_path, acl=acl, settings=values
    ) as started:
        yield started


def connect(server: Server, user: str, token: str) -> Valkey:
    return Valkey(port=server.port, username=user, password=token)


def test_a_real_server_runs_with_every_setting(
    server: Server, tier: KVCacheTier, make_record: Any
) -> None:
    record: Record = make_record(tier)
    wanted = settings(tier.spec)
    with connect(server, "operator", record.operator_token) as operator:
        config = operator.config_get(*wanted.live, *wanted.restart)
    expected = {**wanted.live, **wanted.restart}
    for name in ("bind", "port", "aclfile"):
        del expected[name]
    assert differing(expected, config) == {}


def test_a_real_server_takes_every_live_setting(
    server: Server, tier: KVCacheTier, make_record: Any
) -> None:
    with connect(server, "operator", make_record(tier).operator_token) as operator:
        assert operator.execute_command(
            "CONFIG SET", *(word for pair in settings(tier.spec).live.items() for word in pair)
        )


def test_chunks_pass_through_the_buffer_limits_even_in_a_pipeline(
    server: Server, tier: KVCacheTier, make_record: Any
) -> None:
    record: Record = make_record(tier)
    chunk = b"\xa5" * memory(tier.spec).chunk_bytes
    keys = [f"{key_prefix(record.current.id, 0)}@m@{number}" for number in range(8)]
    with connect(server, record.current.token, record.current.token) as engine:
        pipeline = engine.pipeline(transaction=False)
        for key in keys:
            pipeline.set(key, chunk)
        assert pipeline.execute() == [True] * len(keys)
        for key in keys:
            pipeline.get(key)
        assert pipeline.execute() == [chunk] * len(keys)


def test_a_full_rank_evicts_and_goes_on_storing(
    server: Server, tier: KVCacheTier, make_record: Any
) -> None:
    record: Record = make_record(tier)
    found = memory(tier.spec)
    chunk = b"\x5a" * found.chunk_bytes
    count = found.chunks + 20
    prefix = key_prefix(record.current.id, 0)
    with connect(server, record.current.token, record.current.token) as engine:
        for number in range(count):
            assert engine.set(f"{prefix}@m@{number}", chunk)
        assert engine.get(f"{prefix}@m@{count - 1}") == chunk
    with connect(server, "operator", record.operator_token) as operator:
        assert found.chunks <= operator.dbsize() <= found.maxmemory // found.chunk_bytes


def test_the_smallest_rank_stores_while_every_connection_sends_a_chunk(
    make_tier: Any, make_record: Any, tmp_path: Path
) -> None:
    """Buffers count towards maxmemory: too small a rank answers OOM when all engines store."""
    changes = {
        "model.layout": {"gqa": {"layers": 16, "kvHeads": 4, "headDim": 32}},
        "pool.ranks": 4,
        "pool.maxEngines": 4,
        "store.memoryPerRank": "62Mi",
    }
    tier = make_tier(changes)
    with pytest.raises(MemoryTooSmall, match="at least 62Mi"):
        memory(make_tier({**changes, "store.memoryPerRank": "61Mi"}).spec)
    found = memory(tier.spec)
    record: Record = make_record(tier)
    wanted = settings(tier.spec)
    values = {**wanted.restart, **wanted.live}
    for name in ("bind", "port", "aclfile"):
        del values[name]
    prefix, token = key_prefix(record.current.id, 0), record.current.token
    with (
        running_server(
            "9.1", directory=tmp_path, acl=acl_file(record, rank=0), settings=values
        ) as server,
        ExitStack() as stack,
    ):
        engines = [
            stack.enter_context(create_connection(("127.0.0.1", server.port), timeout=10))
            for _ in range(found.connections)
        ]
        for number, engine in enumerate(engines):
            engine.sendall(f"AUTH {token} {token}\r\n".encode())
            assert engine.recv(100) == b"+OK\r\n"
            key = f"{prefix}@m@{number}"
            engine.sendall(
                f"*3\r\n$3\r\nSET\r\n${len(key)}\r\n{key}\r\n${found.chunk_bytes}\r\n".encode()
            )
            # All but the last byte: every connection holds its chunk in its buffer.
            engine.sendall(b"\x5a" * (found.chunk_bytes - 1))
        for engine in engines:
            engine.sendall(b"\x5a\r\n")
            assert engine.recv(100) == b"+OK\r\n"


def test_a_setting_is_live_where_real_servers_take_it_live() -> None:
    table = yaml.safe_load(
        (Path(settings.__code__.co_filename).parent / "valkey_settings.yaml").read_text("utf-8")
    )
    # What the test above replaces by its own, and what no server may change.
    without_facts = {"bind", "port", "dir", "aclfile"}
    # These servers have no TLS; test_store_tls.py tries those settings on others.
    without_facts |= {name for name in table if name.startswith("tls-")}
    assert table.keys() - FACTS.keys() == without_facts
    for name in table.keys() - without_facts:
        assert table[name]["live"] == FACTS[name]["live"], name
        assert FACTS[name]["file"] == ["8.1", "9.1"], name
        assert table[name]["reason"], name


def test_io_threads_change_live_only_where_the_series_can(make_tier: Any) -> None:
    def of(version: str) -> Any:
        return settings(make_tier({"store.version": version, "store.ioThreads": 4}).spec)

    assert of("9.1").live["io-threads"] == "4"
    assert of("8.1").restart["io-threads"] == "4"
    assert "io-threads" not in of("8.1").live


def test_the_figures_follow_from_the_tier(make_tier: Any) -> None:
    """64 GiB, chunks of 10 MiB on a rank, 64 connections."""
    live = settings(make_tier({"store.eviction": "LFU"}).spec).live
    chunk = 10_485_760
    reserve = -(-(64 << 30) // 10)
    assert live["maxmemory"] == str((64 << 30) - reserve)
    assert live["maxmemory-clients"] == str(reserve)
    assert live["maxmemory-policy"] == "allkeys-lfu"
    assert live["maxclients"] == "160"
    assert live["client-output-buffer-limit"] == f"normal {16 * chunk} {8 * chunk} 30"
    assert live["client-query-buffer-limit"] == str(2 * chunk + (1 << 20))


def test_the_file_has_every_setting_once(make_tier: Any) -> None:
    spec = make_tier().spec
    lines = valkey_conf(spec).splitlines()
    wanted = settings(spec)
    assert len(lines) == len(wanted.live) + len(wanted.restart)
    assert 'save ""' in lines
    assert "databases 1" in lines
    assert lines == sorted(lines)


def test_with_tls_nothing_listens_without_it(make_tier: Any) -> None:
    plain, tls = (
        valkey_conf(make_tier(changes).spec).splitlines()
        for changes in ({}, {"store.tls": {"secretName": "ranks-tls"}})
    )
    assert "port 6379" in plain
    assert not any(line.startswith("tls-") for line in plain)
    assert {"port 0", "tls-port 6379", "tls-auth-clients no"} <= set(tls)
    assert "port 6379" not in tls
