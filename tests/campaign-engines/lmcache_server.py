"""``lmcache server`` on free ports, started as docs/engines.md says from what a tier publishes."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from kvtier.redact import redact

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "store"))
from valkey_servers import free_port

READY_SECONDS = 300.0
"""It imports torch first."""
STOP_SECONDS = 30.0
L1 = ("--l1-size-gb", "1")


class Exited(Exception):
    """It went away before it was ready: with what code, and seconds after its start."""

    def __init__(self, code: int | None, *, seconds: float, said: str) -> None:
        super().__init__(f"lmcache server exited with {code} after {seconds:.1f} s: {said}")
        self.code = code
        self.seconds = seconds


@dataclass(frozen=True, slots=True)
class Server:
    """``start_seconds`` is from its start until it is healthy by its own account."""

    pid: int
    port: int
    http_port: int
    start_seconds: float

    def get(self, path: str) -> Any:
        url = f"http://127.0.0.1:{self.http_port}{path}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            text = answer.read().decode()
        try:
            return json.loads(text)
        except ValueError:
            return text


@contextmanager
def running(
    program: Sequence[str],
    *,
    arguments: str,
    adapter: Mapping[str, Any],
    home: Path,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """``arguments`` is ``server-args`` of the Secret. Raises Exited."""
    port, http_port = free_port(), free_port()
    words = _with(arguments.split(), {"--port": str(port), "--http-port": str(http_port)})
    if L1[0] not in words:
        words += L1
    said = home / "server.log"
    begun = monotonic()
    with said.open("w") as log:
        process = subprocess.Popen(
            [*program, "server", *words, "--l2-adapter", json.dumps(dict(adapter))],
            env=os.environ | {"OMP_NUM_THREADS": "1"} | dict(environment or {}),
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        server = Server(process.pid, port, http_port, 0.0)
        while not _healthy(server):
            code = process.poll()
            after = monotonic() - begun
            if code is not None or after > READY_SECONDS:
                end = redact(said.read_text())[-3000:]
                raise Exited(code, seconds=after, said=end)
            sleep(0.05)
        yield Server(process.pid, port, http_port, monotonic() - begun)
    finally:
        _end(process)


def exit_of(program: Sequence[str], **how: Any) -> Exited | None:
    """How a server that cannot start goes away; None if it became ready."""
    try:
        with running(program, **how):
            return None
    except Exited as exited:
        return exited


def _with(words: list[str], values: Mapping[str, str]) -> list[str]:
    words = list(words)
    for name, value in values.items():
        words[words.index(name) + 1] = value
    return words


def _healthy(server: Server) -> bool:
    try:
        return bool(server.get("/healthcheck") == {"status": "healthy"})
    except OSError:
        return False


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            # Its workers are in its session.
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
