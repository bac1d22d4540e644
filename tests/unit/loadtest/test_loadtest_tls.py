"""A rank's certificate is verified against the Secret's CA, by the name in the Secret."""

import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from driving import BUSY, drive, until_read
from local_tier import LocalTier, NewLocalTier

from kvtier.loadtest.report import exit_code
from kvtier.store.failure import Kind
from tcp_server import listening


def openssl(directory: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=directory, capture_output=True, check=True)


def certificate(directory: Path, *, hosts: str) -> None:
    """A CA in ca.crt, and what it says of a server in tls.crt and tls.key."""
    directory.mkdir(exist_ok=True)
    new = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl(
        directory,
        *(*new, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=ca"),
        *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
    )
    openssl(
        directory,
        *(*new, "-keyout", "tls.key", "-out", "tls.crt", "-subj", "/CN=rank"),
        *("-CA", "ca.crt", "-CAkey", "ca.key", "-addext", f"subjectAltName={hosts}"),
        *("-addext", "basicConstraints=critical,CA:FALSE"),
    )


@contextmanager
def tls_before(port: int, *, directory: Path) -> Iterator[int]:
    """A port that speaks TLS and hands all on to another, as these Valkeys are built without."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "tls.crt", directory / "tls.key")

    def pump(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def serve(client: socket.socket) -> None:
        with (
            suppress(OSError),
            context.wrap_socket(client, server_side=True) as inner,
            socket.create_connection(("127.0.0.1", port)) as server,
        ):
            back = threading.Thread(target=pump, args=(server, inner), daemon=True)
            back.start()
            pump(inner, server)
            back.join()

    with listening(serve) as own:
        yield own


@pytest.fixture
def tls_tier(local_tier: NewLocalTier, tmp_path: Path) -> Iterator[LocalTier]:
    tier = local_tier()
    certificate(tmp_path / "pki", hosts="DNS:localhost")
    with ExitStack() as stack:
        ports = [
            stack.enter_context(tls_before(server.port, directory=tmp_path / "pki"))
            for server in tier.servers
        ]
        ranks = [
            {**rank, "host": "localhost", "port": port}
            for rank, port in zip(tier.connection()["ranks"], ports, strict=True)
        ]
        tier.change(ranks=ranks, tls=True)
        (tier.secret / "ca.crt").write_bytes((tmp_path / "pki" / "ca.crt").read_bytes())
        yield tier


def test_values_come_through_tls_whole(tls_tier: LocalTier) -> None:
    results = drive(tls_tier.secret, workload=BUSY, during=until_read(16))
    assert exit_code(results) == 0
    assert not results.outages


def test_a_certificate_for_another_name_is_an_outage_that_says_so(tls_tier: LocalTier) -> None:
    ranks = [{**rank, "host": "127.0.0.1"} for rank in tls_tier.connection()["ranks"]]
    tls_tier.change(ranks=ranks)
    results = drive(tls_tier.secret, seconds=0.3)
    assert exit_code(results) == 1
    assert {outage.kind for outage in results.outages} == {Kind.OTHER}
    assert all("certificate" in outage.reason for outage in results.outages)


def test_a_certificate_of_another_ca_is_an_outage(tls_tier: LocalTier, tmp_path: Path) -> None:
    certificate(tmp_path / "other", hosts="DNS:localhost")
    (tls_tier.secret / "ca.crt").write_bytes((tmp_path / "other" / "ca.crt").read_bytes())
    results = drive(tls_tier.secret, seconds=0.3)
    assert exit_code(results) == 1
    assert all("self-signed" in o.reason or "verify" in o.reason for o in results.outages)


def test_a_server_without_tls_is_an_outage_and_not_a_hang(tls_tier: LocalTier) -> None:
    plain = [
        {**rank, "port": server.port}
        for rank, server in zip(tls_tier.connection()["ranks"], tls_tier.servers, strict=True)
    ]
    tls_tier.change(ranks=plain, requestTimeoutSeconds=0.3)
    results = drive(tls_tier.secret, seconds=0.3)
    assert exit_code(results) == 1
    assert results.outages
