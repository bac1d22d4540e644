"""The process: when it is ready, what it serves, how it ends, what it says to bad flags."""

import json
import subprocess
from pathlib import Path

import pytest
from webhook_reviews import BAD, body, tier

from certificates import Ca, Pair
from webhook_process import PROGRAM, free_port, until, webhook, write

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
