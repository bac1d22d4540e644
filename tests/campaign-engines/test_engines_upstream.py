"""What LMCache does that kvtier works around, each shown with the real one (docs/upstream.md).

A test passes as long as LMCache behaves so. One that fails tells which workaround can go.
"""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lmcache_server
import one_rank
import pytest
from adapter_driver import ONE_RANK, Driver, Refused, driver
from faulty_rank import Rank, at, record_of
from valkey_servers import running_server

from certificates import Ca
from kvtier.generation.record import Record
from kvtier.render.engine import engine_files
from livecluster.figures import write_row

BYTES = 4096
CHUNKS = 64
"""Of 16k tokens."""
PROMPT: dict[str, Any] = {"chunks": CHUNKS}
SOON = 0.5
"""Seconds that a lookup of CHUNKS may take on a busy machine while all is well."""


def mended(what: str) -> str:
    return f"LMCache no longer does this. What can go: {what}. See docs/upstream.md"


def record(behaviour: str, figures: str) -> None:
    write_row("upstream.md", place="upstream", row=(behaviour, figures))


@dataclass(slots=True)
class Tier:
    """A tier of one rank with stock LMCache, as published but for the rank's address."""

    home: Path
    record: Record
    rank: Rank
    files: dict[str, str]
    adapter: dict[str, Any] = field(default_factory=dict)


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[Tier]:
    spec = one_rank.tier(layers=8)
    of = record_of(spec)
    files = engine_files(spec, of)
    with Rank(spec, of, rank=0, home=tmp_path) as rank:
        adapter = at(json.loads(files["l2-adapter-r0.json"]), rank)
        yield Tier(tmp_path, of, rank, files, adapter)


@pytest.fixture
def lmcache(tier: Tier, program: list[str]) -> Iterator[Driver]:
    with driver(program, home=tier.home) as driven:
        yield driven


@pytest.fixture
def opened(tier: Tier, lmcache: Driver) -> Driver:
    lmcache.open(tier.adapter)
    return lmcache


def test_user_and_password_are_swapped(program: list[str], tmp_path: Path) -> None:
    acl = "user default reset\nuser name reset on >word ~* +@all\n"
    with (
        running_server("9.1", directory=tmp_path, acl=acl) as server,
        driver(program, home=tmp_path) as lmcache,
    ):
        adapter = {"type": "valkey", "startup_nodes": f"127.0.0.1:{server.port}"}
        told = mended("the engine's user name need not be its password (generation/acl.py)")
        why = refusal(lmcache, adapter | {"username": "name", "password": "word"})
        assert why is not None, told
        assert "WRONGPASS" in why
        lmcache.open(adapter | {"username": "word", "password": "name"})
        assert lmcache.store(1, chunk_bytes=BYTES)
    record("credentials swapped", "user `name` with password `word`: refused; swapped: accepted")


def test_the_key_has_no_rank_where_each_rank_has_a_server(tier: Tier, opened: Driver) -> None:
    ranks = opened.ask("kv_rank", tensor=8, servers=8)["kv_ranks"]
    told = mended("the rank in the key prefix (generation/acl.py: key_prefix)")
    assert set(ranks) == {ONE_RANK}, told
    assert opened.store(4, chunk_bytes=BYTES)
    # Another rank's server, pointed at this rank: alike but for the prefix.
    opened.open(tier.adapter)
    without = opened.load(4, chunk_bytes=BYTES)["hits"]
    assert without == 4, told
    opened.open(tier.adapter | {"key_prefix": f"{tier.adapter['key_prefix']}-other"})
    with_it = opened.load(4, chunk_bytes=BYTES)["hits"]
    assert with_it == 0
    record(
        "no rank in the key",
        f"eight servers, one rank part: `{ONE_RANK:08x}`; at another rank's address {without} of 4 "
        f"hits without the rank in the prefix, {with_it} with it",
    )


def test_the_key_has_no_dtype(tier: Tier, opened: Driver) -> None:
    told = mended("kvCacheDtype in the identity guards alone no longer (generation/identity.py)")
    assert opened.store(1, chunk_bytes=BYTES, dtype="bfloat16")
    (key,) = tier.rank.keys()
    prefix = re.escape(tier.adapter["key_prefix"])
    assert re.fullmatch(rf"{prefix}@fault@{ONE_RANK:08x}@0@[0-9a-f]{{64}}", key), told
    found = opened.load(1, chunk_bytes=BYTES, dtype="float16")
    assert found["hits"] == found["right"] == 1, told
    record("no dtype in the key", "stored as bfloat16, loaded as float16: a hit, the same bytes")


def test_a_dead_rank_stalls_every_lookup_and_all_that_wait_behind(
    tier: Tier, lmcache: Driver
) -> None:
    workers, timeout, chunks = 2, 0.5, 8
    lmcache.open(tier.adapter | {"num_workers": workers, "request_timeout": timeout})
    tier.rank.kill()
    told = mended("the bound on workers and timeout (render/transport.py), and the stall in NOTICE")
    stall = chunks // workers * timeout
    for _ in range(2):
        both = lmcache.lookups([{"chunks": chunks}, {"chunks": 1, "first": 1000}])
        (first, nothing), (behind, _) = both
        assert nothing == 0
        assert first > 0.9 * stall, told
        assert behind > 0.9 * (stall + timeout), told
    record(
        "stall on a dead rank",
        f"{chunks} chunks, {workers} workers, {timeout:g} s: {first:.2f} s each time; a lookup of "
        f"one chunk behind it {behind:.2f} s",
    )


def test_the_server_exits_when_its_rank_is_down(tier: Tier, program: list[str]) -> None:
    tier.rank.kill()
    told = mended("the advice on starting while a rank is down (docs/engines.md)")
    exited = lmcache_server.exit_of(program, **_server(tier))
    assert exited is not None, told
    assert exited.code == 3, exited
    record("exit at start", f"`lmcache server` exits with 3, {exited.seconds:.1f} s after start")


def test_health_stays_green_credentials_are_printed_and_nothing_is_reconfigured(
    tier: Tier, program: list[str]
) -> None:
    """One server for all three: it takes long to start."""
    token = tier.adapter["password"]
    with lmcache_server.running(program, **_server(tier)) as server:
        assert server.get("/healthcheck") == {"status": "healthy"}
        tier.rank.kill()
        time.sleep(2)
        told = mended("kvtier's own word on ranks is no longer all that there is (AllRanksReady)")
        assert server.get("/healthcheck") == {"status": "healthy"}, told
        flags = list(_values(server.get("/status"), "is_healthy"))
        assert flags, "no is_healthy in /status"
        assert all(flags), told
        told = mended("the HTTP port need not be on loopback alone (render/engine.py)")
        printed = json.dumps(server.get("/config"))
        assert token in printed, told
        line = Path(f"/proc/{server.pid}/cmdline").read_bytes().decode()
        assert token in line, told
        environment = server.get("/env")
        assert "PATH" in json.dumps(environment), told
        told = mended("an engine of a new generation need not restart (docs/generations.md)")
        (adapter,) = _adapters(server.get("/config/adapters"))
        assert adapter["reconfigurable"] is False, told
    record(
        "health stays green",
        f"its Valkey killed: `/healthcheck` healthy, all {len(flags)} `is_healthy` of `/status` "
        "true",
    )
    record(
        "credentials printed",
        "`GET /config`, without a login: the token; `GET /env`: the environment; the adapter's "
        "JSON is in the arguments of the process",
    )
    record("not reconfigurable", "`GET /config/adapters`: `reconfigurable: false`")


def test_there_is_no_setting_for_a_ca(program: list[str], tmp_path: Path) -> None:
    spec = one_rank.tier(layers=8, tls=True)
    of, ca = record_of(spec), Ca()
    (tmp_path / "ca.crt").write_text(ca.pem)
    adapter = json.loads(engine_files(spec, of, ca=ca.pem)["l2-adapter-r0.json"])
    with Rank(spec, of, rank=0, home=tmp_path, ca=ca) as rank:
        adapter |= {"startup_nodes": f"localhost:{rank.port}"}
        told = mended("SSL_CERT_FILE for the whole process (render/engine.py: _environment)")
        with driver(program, home=tmp_path) as lmcache:
            help_text = lmcache.ask("fields", kind="valkey")["help"]
            assert not re.search(r"\bca\b|cert|root", help_text, re.IGNORECASE), told
            assert refusal(lmcache, adapter) is not None, told
        trusting = {"SSL_CERT_FILE": str(tmp_path / "ca.crt")}
        with driver(program, home=tmp_path, environment=trusting) as lmcache:
            lmcache.open(adapter)
            assert lmcache.store(1, chunk_bytes=BYTES)
    record(
        "no setting for a CA",
        "no connection until `connection_timeout`, and no reason said; with `SSL_CERT_FILE` it "
        "stores",
    )


def test_the_default_policy_fetches_a_hot_prefix_again_and_there_is_no_minimum_hit(
    tier: Tier, opened: Driver
) -> None:
    assert opened.store(16, chunk_bytes=BYTES)
    served = {
        policy: opened.ask("hits", adapters=[tier.adapter], policy=policy, chunks=16, times=3)
        for policy in ("default", "retain")
    }
    counts = {policy: [each["l2"] for each in found["served"]] for policy, found in served.items()}
    told = mended("--l2-prefetch-policy retain (render/engine.py: _server_arguments)")
    assert counts["default"] == [16, 16, 16], told
    assert counts["retain"] == [16, 0, 0]
    one = opened.ask("hits", adapters=[tier.adapter], policy="retain", chunks=1, times=1)
    (short,) = one["served"]
    told = mended("minimum_hit_chunks of the plugin, where LMCache's own can be set")
    assert short["l2"] == 1, told
    flags = opened.ask("flags")
    assert "min_retrieve_tokens" in flags["in_process"]
    assert [flag for flag in flags["server"] if re.search("min.*(hit|retrieve)", flag)] == [], told
    record(
        "hot prefixes fetched again",
        f"16 chunks looked up three times, from L2: {_list(counts['default'])} with `default`, "
        f"{_list(counts['retain'])} with `retain`",
    )
    record(
        "no minimum hit",
        "a hit of one chunk is fetched; `lmcache server` has no option, in process there is "
        "`min_retrieve_tokens`",
    )


def test_several_adapters_are_copies_not_stripes(
    tier: Tier, lmcache: Driver, tmp_path: Path
) -> None:
    second = tmp_path / "second"
    second.mkdir()
    acl = f"user default reset\nuser {tier.adapter['username']} reset on nopass ~* +@all\n"
    with running_server("9.1", directory=second, acl=acl) as other:
        both = [tier.adapter, tier.adapter | {"startup_nodes": f"127.0.0.1:{other.port}"}]
        lmcache.ask("put", adapters=both, chunks=16)
        lmcache.open(both[0])
        (_, here) = lmcache.lookup(16)
        lmcache.open(both[1])
        (_, there) = lmcache.lookup(16)
    told = mended("the plugin's striping, where LMCache can stripe")
    assert (here, there) == (16, 16), told
    record(
        "several adapters are copies",
        f"two `--l2-adapter`, 16 chunks: {here} on one, {there} on the other",
    )


def test_sizes_of_keys_are_kept_for_ever(tier: Tier, opened: Driver) -> None:
    for first in range(0, 1000, 100):
        assert opened.store(100, first=first, chunk_bytes=BYTES)
    tier.rank.flush()
    assert tier.rank.keys() == []
    left = opened.ask("remembered")
    told = mended("nothing of kvtier's; the plugin never had it")
    assert left == {"keys": 1000, "bytes": 1000 * BYTES}, told
    each = opened.ask("key_bytes", keys=100_000)["bytes"]
    record(
        "sizes of keys are kept",
        f"1,000 chunks stored, all evicted: the adapter keeps {left['keys']:,} keys and counts "
        f"{left['bytes']:,} bytes as used; {each:.0f} bytes of memory for each of 100,000 keys",
    )


def test_resp_has_neither_prefix_nor_tls(program: list[str], tmp_path: Path) -> None:
    with driver(program, home=tmp_path) as lmcache:
        fields = lmcache.ask("fields", kind="resp")["help"]
    told = mended("the recipe with raw for LMCache's operator (docs/engines.md)")
    assert not re.search("prefix|tls", fields, re.IGNORECASE), told
    record("`resp` has neither prefix nor TLS", "its configuration has no such field")


def refusal(lmcache: Driver, adapter: dict[str, Any]) -> str | None:
    """Why LMCache cannot make this adapter; None when it can."""
    try:
        lmcache.open(adapter)
    except Refused as error:
        return str(error)
    return None


def _server(tier: Tier) -> dict[str, Any]:
    arguments = tier.files["server-args-r0"]
    return {"arguments": arguments, "adapter": tier.adapter, "home": tier.home}


def _values(document: Any, name: str) -> Iterator[Any]:
    if isinstance(document, dict):
        for key, value in document.items():
            if key == name:
                yield value
            yield from _values(value, name)
    elif isinstance(document, list):
        for value in document:
            yield from _values(value, name)


def _adapters(document: Any) -> list[dict[str, Any]]:
    found = document["adapters"] if isinstance(document, dict) else document
    assert isinstance(found, list)
    return found


def _list(counts: list[int]) -> str:
    return ", ".join(map(str, counts))
