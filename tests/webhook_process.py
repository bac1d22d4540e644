"""``kvtier webhook`` as a process of its own."""

import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from certificates import Pair

PROGRAM = Path(sys.executable).with_name("kvtier")


@dataclass(frozen=True, slots=True)
class Webhook:
    process: subprocess.Popen[str]
    port: int
    metrics_port: int
    log: Path

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}/validate"

    def answers(self, path: str) -> int:
        """HTTP status of a path of the metrics port, 0 without an answer."""
        try:
            url = f"http://127.0.0.1:{self.metrics_port}{path}"
            with urllib.request.urlopen(url, timeout=5) as reply:
                return int(reply.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        except OSError:
            return 0

    def metric(self, name: str) -> float:
        """A metric's value now; ``name`` may have labels."""
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=5) as reply:
            text = reply.read().decode()
        (found,) = re.findall(rf"^{re.escape(name)} (\S+)$", text, flags=re.MULTILINE)
        return float(found)

    def ask(self, body: bytes, *, ca: str) -> dict[str, Any]:
        """The response to a review, over a new connection that is verified by ``ca``."""
        context = ssl.create_default_context(cadata=ca)
        connection = http.client.HTTPSConnection(
            "localhost", self.port, context=context, timeout=20
        )
        try:
            connection.request("POST", "/validate", body=body)
            found: dict[str, Any] = json.loads(connection.getresponse().read())["response"]
            return found
        finally:
            connection.close()

    def served(self, *, ca: str) -> str:
        """Common name of the certificate that a new connection gets."""
        context = ssl.create_default_context(cadata=ca)
        with (
            socket.create_connection(("localhost", self.port), timeout=20) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as secured,
        ):
            peer = secured.getpeercert()
        assert peer is not None
        return str(peer["subject"][0][0][1])

    def stop(self) -> int:
        """SIGTERM, and the exit code that it brings."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=30)


@contextmanager
def webhook(files: Path, *options: str, kubeconfig: Path | None = None) -> Iterator[Webhook]:
    """Runs with ``tls.crt`` and ``tls.key`` of the directory ``files``, which may come later."""
    environment = dict(os.environ) | ({"KUBECONFIG": str(kubeconfig)} if kubeconfig else {})
    port, metrics_port = free_port(), free_port()
    log = files / f"webhook-{port}.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [
                PROGRAM,
                "webhook",
                f"--listen=localhost:{port}",
                f"--metrics-listen=127.0.0.1:{metrics_port}",
                f"--tls-certificate={files / 'tls.crt'}",
                f"--tls-key={files / 'tls.key'}",
                *options,
            ],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )
    try:
        yield Webhook(process=process, port=port, metrics_port=metrics_port, log=log)
    finally:
        process.kill()
        process.wait()


def write(files: Path, pair: Pair) -> None:
    """Renew both files."""
    (files / "tls.crt").write_text(pair.certificate)
    (files / "tls.key").write_text(pair.key)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(what: Callable[[], bool], *, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.1)
