"""The process that owns the servers of a trial and their directory, whatever becomes of its parent.

``python -m kvtier.trial.keeper``: a line of JSON for each word, both ways. It tells its private
directory, is told to start the ranks whose files are in it, tells their ports, and ends when its
input does, or on SIGTERM: the servers are killed and the directory is removed. A server ends with
the keeper even if that is killed. After the word ``keep`` the end of its input ends nothing.
"""

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

PREFIX: Final = "kvtier-try-"
START_SECONDS: Final = 20.0
PORT_TRIES: Final = 5
POLL_SECONDS: Final = 0.5
HOST: Final = "127.0.0.1"
CONF, ACL, LOG = "valkey.conf", "users.acl", "valkey.log"
_SET_PARENT_DEATH_SIGNAL: Final = 1

Server = subprocess.Popen[bytes]


class _Stop(BaseException):
    """A signal said so."""


class CannotStart(Exception):
    """Why a rank does not run. One line."""


def main() -> int:
    """Until the input ends or a signal comes."""
    servers: list[Server] = []
    directory = ""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    os.umask(0o077)
    try:
        for number in numbers:
            signal.signal(number, _stop)
        # The caller has them blocked, and so have its children.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
        directory = tempfile.mkdtemp(prefix=PREFIX)
        _tell({"directory": directory, "pid": os.getpid()})
        _serve(Path(directory), servers)
    except _Stop:
        pass
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        for server in servers:
            server.kill()
        for server in servers:
            server.wait()
        if directory:
            shutil.rmtree(directory, ignore_errors=True)
    return 0


def _stop(*_: object) -> None:
    raise _Stop


def _serve(directory: Path, servers: list[Server]) -> None:
    order = _hear()
    if order is None:
        return
    try:
        homes = [directory / f"r{rank}" for rank in range(order["ranks"])]
        ports = _start(order["program"], homes, servers)
    except CannotStart as error:
        _tell({"failed": str(error)})
        return
    _tell({"ports": ports})
    if _hear() is None:
        return
    # Kept: nobody listens from now on.
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nowhere, stream)
    while any(server.poll() is None for server in servers):
        time.sleep(POLL_SECONDS)


def _start(program: str, homes: Sequence[Path], servers: list[Server]) -> list[int]:
    """All ranks at once; the ports that they listen on. Raises CannotStart."""
    ports = _free_ports(len(homes))
    for home, port in zip(homes, ports, strict=True):
        servers.append(_run(program, home, port=port))
    for rank, home in enumerate(homes):
        tries = 1
        while not _listens(servers[rank], ports[rank]):
            said = (home / LOG).read_text("utf-8", "replace").strip()
            if tries == PORT_TRIES or "Address already in use" not in said:
                last = said.splitlines() or [f"it exited with {servers[rank].returncode}"]
                why = " ".join(last[-1].split())[:300]
                raise CannotStart(f"{home.name}: {program} did not start: {why}")
            tries += 1
            (ports[rank],) = _free_ports(1)
            servers[rank] = _run(program, home, port=ports[rank])
    return ports


def _run(program: str, directory: Path, *, port: int) -> Server:
    command = [
        *(program, str(directory / CONF)),
        # Arguments stand above the file, which is the one that the cluster's ranks start with.
        *("--bind", HOST, "--port", str(port), "--aclfile", str(directory / ACL)),
    ]
    with (directory / LOG).open("wb") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=_die_with_parent(os.getpid()),
        )


def _die_with_parent(parent: int) -> Any:
    """What a server does before it is one. Where there is no such call, signals have to do."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)

    def prepare() -> None:
        if prctl is not None:
            prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)

    return prepare


def _listens(server: Server, port: int) -> bool:
    """Whether it comes to listen; ends it if it does not in time."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        with socket.socket() as client:
            if client.connect_ex((HOST, port)) == 0 and server.poll() is None:
                return True
        time.sleep(0.01)
    server.kill()
    server.wait()
    return False


def _free_ports(count: int) -> list[int]:
    """So many, no two of them equal: taken all before one is let go."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((HOST, 0))
        return [probe.getsockname()[1] for probe in probes]


def _tell(word: dict[str, Any]) -> None:
    with suppress(BrokenPipeError):
        sys.stdout.write(json.dumps(word) + "\n")
        sys.stdout.flush()


def _hear() -> dict[str, Any] | None:
    """The next word; None at the end of the input."""
    line = sys.stdin.readline()
    if not line:
        return None
    word: dict[str, Any] = json.loads(line)
    return word


if __name__ == "__main__":
    sys.exit(main())
