"""TLS, held against the fake and against real servers that speak it."""

import os
import signal
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from time import monotonic, time
from typing import Any

import pytest
from rank_under_test import RANK, SETTINGS
from test_store_client import listening
from valkey import Valkey, exceptions
from valkey_servers import BINARIES, running_server, with_tls

from certificates import Ca, Pair
from kvtier.api.types import KVCacheTier
from kvtier.generation.acl import acl_file
from kvtier.generation.record import Record
from kvtier.render.names import TLS_DIRECTORY
from kvtier.render.statefulset import statefulset
from kvtier.render.valkey_conf import certificate_reload, settings
from kvtier.store.apply import apply_live_settings
from kvtier.store.client import connector
from kvtier.store.fake import FakeServer, FakeStores
from kvtier.store.protocol import (
    Address,
    Connect,
    Credentials,
    Store,
    StoreError,
    StoreUnreachable,
    StoreUntrusted,
    TlsName,
)

NAME = "demo-r3.serving.svc"
DAY = timedelta(days=1)
HASTY = connector(connect_seconds=0.5, reply_seconds=0.5)
SOON = 4.0
"""Seconds in which a session with these limits must have given up, on a busy machine too."""


@pytest.fixture(scope="module")
def ca() -> Ca:
    return Ca()


@pytest.fixture(scope="module")
def other_ca() -> Ca:
    return Ca("other")


@pytest.fixture(scope="module")
def first(ca: Ca) -> Pair:
    return ca.issue(NAME)


@dataclass(slots=True)
class TlsRank:
    """A rank that serves TLS; ``mount`` is what the kubelet does with a renewed Secret."""

    address: Address
    connect: Connect
    record: Record
    ca: str
    mount: Callable[[Pair], None]
    reload: dict[str, str]
    pid: int = 0

    @asynccontextmanager
    async def session(self, *, ca: str | None = None, name: str = NAME) -> AsyncIterator[Store]:
        address = Address(self.address.host, self.address.port, TlsName(name, ca or self.ca))
        credentials = Credentials("operator", self.record.operator_token)
        async with self.connect(address, credentials) as store:
            yield store


def write(directory: Path, pair: Pair, ca: str) -> None:
    for name, text in (("tls.crt", pair.certificate), ("tls.key", pair.key), ("ca.crt", ca)):
        (directory / name).write_text(text)


def tier(version: str) -> KVCacheTier:
    spec = {
        "model": {
            "name": "m",
            "revision": "r",
            "kvCacheDtype": "bfloat16",
            "layout": {"gqa": {"layers": 4, "kvHeads": 8, "headDim": 128}},
        },
        "pool": {"ranks": 8, "maxEngines": 2, "prefillRate": [{"tokensPerSecond": 5000}]},
        "store": {
            "memoryPerRank": "512Mi",
            "version": version,
            "tls": {"secretName": "ranks-tls"},
        },
    }
    metadata = {"name": "demo", "namespace": "serving"}
    return KVCacheTier.model_validate({"metadata": metadata, "spec": spec})


def as_rendered(version: str, directory: Path) -> dict[str, str]:
    """The tier's settings, with the tests' own paths."""
    found = settings(tier(version).spec)
    lines = {**found.live, **found.restart}
    for name in ("bind", "port", "dir", "aclfile"):
        del lines[name]
    return {name: value.replace(TLS_DIRECTORY, str(directory)) for name, value in lines.items()}


@pytest.fixture(params=["fake", *BINARIES])
def rank(
    request: pytest.FixtureRequest, tmp_path: Path, record: Record, ca: Ca, first: Pair
) -> Iterator[TlsRank]:
    users = acl_file(record, rank=RANK)
    if request.param == "fake":
        reload = certificate_reload()
        fake = FakeServer(acl_file=users, settings=SETTINGS | reload, mounted=first.files())
        address = Address("127.0.0.1")

        def mount(pair: Pair) -> None:
            fake.mounted = pair.files()

        stores = FakeStores({address: fake})
        yield TlsRank(address, stores.connect, record, ca.pem, mount, reload)
        return
    write(tmp_path, first, ca.pem)
    with running_server(
        request.param,
        directory=tmp_path,
        acl=users,
        settings=as_rendered(request.param, tmp_path),
        program=with_tls(request.param, "valkey-server"),
    ) as server:
        yield TlsRank(
            address=Address("127.0.0.1", server.port),
            connect=HASTY,
            record=record,
            ca=ca.pem,
            mount=lambda pair: write(tmp_path, pair, ca.pem),
            reload={
                name: value.replace(TLS_DIRECTORY, str(tmp_path))
                for name, value in certificate_reload().items()
            },
            pid=server.pid,
        )


def fingerprint(pair: Pair) -> str:
    return sha256(ssl.PEM_cert_to_DER_cert(pair.certificate)).hexdigest()


async def test_a_session_knows_what_the_server_served(rank: TlsRank, first: Pair) -> None:
    async with rank.session() as store:
        await store.ping()
        assert store.peer is not None
        assert store.peer.fingerprint == fingerprint(first)
        assert store.peer.not_after == pytest.approx(time() + 5 * 86400, abs=300)
        assert not store.peer.expired


async def test_a_server_of_another_ca_is_refused_with_the_reason(
    rank: TlsRank, other_ca: Ca
) -> None:
    begun = monotonic()
    with pytest.raises(StoreUntrusted, match=r"not trusted: (unable to|self.signed)"):
        async with rank.session(ca=other_ca.pem):
            pass
    assert monotonic() - begun < SOON


async def test_a_server_under_another_name_is_refused_with_the_name(rank: TlsRank) -> None:
    with pytest.raises(StoreUntrusted, match=r"demo-r4\.serving\.svc"):
        async with rank.session(name="demo-r4.serving.svc"):
            pass


@pytest.mark.parametrize("text", ["", "junk"], ids=["none", "junk"])
async def test_without_a_ca_nobody_is_trusted(rank: TlsRank, text: str) -> None:
    address = Address(rank.address.host, rank.address.port, TlsName(NAME, text))
    with pytest.raises(StoreUnreachable):
        async with rank.connect(address, Credentials("operator", rank.record.operator_token)):
            pass


async def test_nobody_gets_in_without_tls(rank: TlsRank) -> None:
    with pytest.raises(StoreUnreachable):
        async with rank.connect(rank.address, Credentials("operator", rank.record.operator_token)):
            pass


async def test_a_renewed_certificate_is_loaded_and_sessions_go_on(
    rank: TlsRank, ca: Ca, first: Pair
) -> None:
    renewed = ca.issue(NAME)
    async with rank.session() as before:
        rank.mount(renewed)
        async with rank.session() as store:
            assert store.peer is not None
            assert store.peer.fingerprint == fingerprint(first)
            await store.config_set(rank.reload)
        async with rank.session() as store:
            assert store.peer is not None
            assert store.peer.fingerprint == fingerprint(renewed)
        await before.ping()


async def test_files_that_cannot_be_loaded_leave_the_served_certificate(
    rank: TlsRank, ca: Ca, first: Pair
) -> None:
    rank.mount(Pair(ca.issue(NAME).certificate, first.key))
    async with rank.session() as store:
        with pytest.raises(StoreError, match="Unable to update TLS configuration"):
            await store.config_set(rank.reload)
    async with rank.session() as store:
        assert store.peer is not None
        assert store.peer.fingerprint == fingerprint(first)


async def test_an_expired_certificate_can_still_be_replaced(rank: TlsRank, ca: Ca) -> None:
    rank.mount(ca.issue(NAME, begin=-9 * DAY, end=-DAY))
    async with rank.session() as store:
        await store.config_set(rank.reload)
    rank.mount(ca.issue(NAME))
    async with rank.session() as store:
        assert store.peer is not None
        assert store.peer.expired
        assert store.peer.not_after < time()
        await store.config_set(rank.reload)
    async with rank.session() as store:
        assert store.peer is not None
        assert not store.peer.expired


async def test_an_expired_certificate_of_another_ca_or_name_is_not_let_pass(
    rank: TlsRank, ca: Ca, other_ca: Ca
) -> None:
    rank.mount(ca.issue(NAME, begin=-9 * DAY, end=-DAY))
    async with rank.session() as store:
        await store.config_set(rank.reload)
    for wrong in ({"ca": other_ca.pem}, {"name": "demo-r4.serving.svc"}):
        with pytest.raises(StoreUntrusted):
            async with rank.session(**wrong):
                pass


async def test_the_rendered_settings_are_what_a_real_server_has(rank: TlsRank) -> None:
    if not rank.pid:
        return
    for version in BINARIES:
        async with rank.session() as store:
            if (await store.info("server"))["valkey_version"].startswith(version):
                applied = await apply_live_settings(store, settings(tier(version).spec).live)
                assert (applied.changed, applied.not_applied) == ({}, {})


async def test_a_server_that_hangs_in_the_handshake_is_unreachable_in_bounded_time(
    rank: TlsRank,
) -> None:
    if not rank.pid:
        return
    os.kill(rank.pid, signal.SIGSTOP)
    try:
        begun = monotonic()
        with pytest.raises(StoreUnreachable):
            async with rank.session():
                pass
        assert monotonic() - begun < SOON
    finally:
        os.kill(rank.pid, signal.SIGCONT)


@pytest.mark.parametrize("answer", [b"", b"-ERR what\r\n", b"\x15\x03\x03\x00\x02\x02\x28"])
async def test_a_server_without_tls_is_unreachable_in_bounded_time(answer: bytes, ca: Ca) -> None:
    begun = monotonic()
    async with listening(answer) as plain:
        address = Address(plain.host, plain.port, TlsName(NAME, ca.pem))
        with pytest.raises(StoreUnreachable):
            async with HASTY(address, Credentials("operator", "x")):
                pass
    assert monotonic() - begun < SOON


def probe(kind: str, *, version: str, port: int, directory: Path) -> list[str]:
    """A rank's rendered probe, for a server of a test."""
    pod: Any = statefulset(tier(version), RANK, image="x")["spec"]["template"]["spec"]
    command: list[str] = pod["containers"][0][kind]["exec"]["command"]
    assert command[0] == "valkey-cli"
    words = [word.replace(TLS_DIRECTORY, str(directory)) for word in command[1:]]
    words[words.index("6379")] = str(port)
    return [*with_tls(version, "valkey-cli"), *words]


@pytest.mark.parametrize("version", BINARIES)
def test_no_rank_starts_with_a_certificate_of_another_ca_and_one_that_serves_stays_ready(
    version: str, tmp_path: Path, record: Record, ca: Ca, other_ca: Ca, first: Pair
) -> None:
    write(tmp_path, first, ca.pem)

    def passes(kind: str, port: int) -> bool:
        command = probe(kind, version=version, port=port, directory=tmp_path)
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        return done.returncode == 0 and done.stdout.strip() == "PONG"

    with running_server(
        version,
        directory=tmp_path,
        acl=acl_file(record, rank=RANK),
        settings=as_rendered(version, tmp_path),
        program=with_tls(version, "valkey-server"),
    ) as server:
        assert passes("startupProbe", server.port)
        assert passes("readinessProbe", server.port)
        # A renewed Secret of another CA, which the server has not loaded yet.
        write(tmp_path, other_ca.issue(NAME), other_ca.pem)
        assert not passes("startupProbe", server.port)
        assert passes("readinessProbe", server.port)


@pytest.mark.parametrize("version", BINARIES)
def test_an_engine_needs_the_ca_and_no_certificate_of_its_own(
    version: str, tmp_path: Path, record: Record, ca: Ca, other_ca: Ca
) -> None:
    write(tmp_path, ca.issue("localhost"), ca.pem)
    (tmp_path / "other.crt").write_text(other_ca.pem)
    with running_server(
        version,
        directory=tmp_path,
        acl=acl_file(record, rank=RANK),
        settings=as_rendered(version, tmp_path),
        program=with_tls(version, "valkey-server"),
    ) as server:

        def engine(file: str) -> Valkey:
            return Valkey(
                host="localhost",
                port=server.port,
                username=record.current.token,
                password=record.current.token,
                ssl=True,
                ssl_ca_certs=str(tmp_path / file),
                ssl_check_hostname=True,
            )

        with engine("ca.crt") as client:
            assert client.ping()
        with (
            engine("other.crt") as client,
            pytest.raises(exceptions.ConnectionError, match="verify failed"),
        ):
            client.ping()
