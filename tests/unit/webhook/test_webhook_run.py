"""The process: when it is ready, what it serves, how it ends, what it says to bad flags."""

import gzip
import http.client
import json
import socket
import ssl
import subprocess
import warnings
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from webhook_reviews import BAD, body, tier

from certificates import Ca, Pair
from kvtier.webhook.listener import MAX_CONNECTIONS
from webhook_process import PROGRAM, Webhook, free_port, until, webhook, write

EXPIRY = "kvtier_webhook_certificate_expiry_timestamp_seconds"


def test_it_waits_for_a_certificate_serves_renews_and_ends(
    files: Path, ca: Ca, first: Pair, second: Pair
) -> None:
    with webhook(files, "--log-format=json") as process:
        until(lambda: process.answers("/healthz") == 200)
        assert process.answers("/readyz") == 503
        write(files, first)
        until(lambda: process.answers("/readyz") == 200)
        assert process.served(ca=ca.pem) == "first"
        assert process.ask(body(tier()), ca=ca.pem)["allowed"] is True
        assert process.ask(body(tier(BAD)), ca=ca.pem)["allowed"] is False
        assert process.metric('kvtier_webhook_reviews_total{result="refused"}') == 1
        write(files, second)
        until(lambda: process.served(ca=ca.pem) == "second")
        assert process.answers("/readyz") == 200
        assert process.stop() == 0
        lines = [json.loads(line) for line in process.log.read_text().splitlines()]
    said = [line["message"] for line in lines]
    assert said[1].startswith("certificate not usable, waiting for another: ")
    assert [line["severity"] for line in lines] == ["info", "warn", "info", "info"]
    assert set(lines[0]) == {"message", "timestamp", "severity"}


def test_it_ends_while_it_still_waits(files: Path) -> None:
    with webhook(files) as process:
        until(lambda: process.answers("/healthz") == 200)
        assert process.stop() == 0


def test_an_address_that_is_taken_is_one_line(files: Path, first: Pair) -> None:
    write(files, first)
    with webhook(files) as process:
        until(lambda: process.answers("/readyz") == 200)
        for flag in ("--listen", "--metrics-listen"):
            port = process.port if flag == "--listen" else process.metrics_port
            host = "localhost" if flag == "--listen" else "127.0.0.1"
            flags = {"--listen": f"127.0.0.1:{free_port()}"}
            flags["--metrics-listen"] = f"127.0.0.1:{free_port()}"
            flags[flag] = f"{host}:{port}"
            done = subprocess.run(
                [
                    *(str(PROGRAM), "webhook", "--log-level=warning"),
                    *(f"{name}={value}" for name, value in flags.items()),
                    f"--tls-certificate={files / 'tls.crt'}",
                    f"--tls-key={files / 'tls.key'}",
                ],
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert done.returncode == 2
            (line,) = done.stderr.splitlines()
            assert line.startswith("kvtier: cannot listen: ")
            assert str(port) in line


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["--listen=8443"], "--listen"),
        (["--metrics-listen=x:y"], "--metrics-listen"),
        (["--listen=a:70000"], "--listen"),
    ],
)
def test_a_bad_address_is_one_line(flags: list[str], word: str) -> None:
    done = subprocess.run(
        [str(PROGRAM), "webhook", "--tls-certificate=c", "--tls-key=k", *flags],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"kvtier: {word}: ")


def test_it_runs_without_the_clusters_libraries() -> None:
    """It has no API access, and half of a controller's memory is those libraries."""
    script = (
        "import sys, kvtier.cli.webhook\n"
        "print(sorted({'kopf', 'kubernetes', 'valkey'} & set(sys.modules)))\n"
    )
    python = PROGRAM.with_name("python")
    done = subprocess.run([python, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr


def test_many_connections_that_say_nothing_keep_nobody_out_and_take_bounded_memory(
    files: Path, ca: Ca, first: Pair
) -> None:
    write(files, first)
    trust = ssl.create_default_context(cadata=ca.pem)
    with webhook(files) as process, ExitStack() as held:
        until(lambda: process.answers("/readyz") == 200)
        before = open_files(process)
        for number in range(2 * MAX_CONNECTIONS):
            plain = held.enter_context(socket.create_connection(("localhost", process.port), 20))
            if number % 8 == 0:
                held.enter_context(trust.wrap_socket(plain, server_hostname="localhost"))
        assert process.ask(body(tier(BAD)), ca=ca.pem)["allowed"] is False
        assert open_files(process) <= before + MAX_CONNECTIONS


def open_files(process: Webhook) -> int:
    return len(list(Path(f"/proc/{process.process.pid}/fd").iterdir()))


def test_a_compressed_body_is_not_unpacked(files: Path, ca: Ca, first: Pair) -> None:
    write(files, first)
    trust = ssl.create_default_context(cadata=ca.pem)
    with webhook(files) as process:
        until(lambda: process.answers("/readyz") == 200)
        connection = http.client.HTTPSConnection("localhost", process.port, context=trust)
        packed = gzip.compress(body(tier()))
        connection.request("POST", "/validate", packed, {"Content-Encoding": "gzip"})
        assert connection.getresponse().status == 400
        connection.close()


def test_no_tls_before_1_2_is_spoken(files: Path, ca: Ca, first: Pair) -> None:
    """To clients that speak one version each."""
    write(files, first)
    spoken = []
    with webhook(files) as process:
        until(lambda: process.answers("/readyz") == 200)
        for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2):
            trust = ssl.create_default_context(cadata=ca.pem)
            trust.set_ciphers("ALL:@SECLEVEL=0")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                trust.minimum_version = trust.maximum_version = version
            address = ("localhost", process.port)
            with (
                suppress(OSError),
                socket.create_connection(address, timeout=20) as plain,
                trust.wrap_socket(plain, server_hostname="localhost") as secured,
            ):
                spoken.append(secured.version())
    assert spoken == ["TLSv1.2"]
