"""One rank without a cluster that can be killed, hung and cut off, and comes back where it was."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import valkey

from certificates import Ca
from kvtier.api.types import KVCacheTier
from kvtier.generation.acl import OPERATOR_USER, acl_file
from kvtier.generation.record import Record, new_record
from kvtier.redact import new_token
from kvtier.render.valkey_conf import settings

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "store"))
from valkey_servers import Server, free_port, running_server, with_tls

HOST = "127.0.0.1"
NOT_HERE = ("port", "dir", "aclfile", "bind", "tls-port")


class Rank:
    """A rank's settings and users as in a cluster, on a port of its own that it keeps."""

    def __init__(
        self, tier: KVCacheTier, record: Record, *, rank: int, home: Path, ca: Ca | None = None
    ) -> None:
        self.port = free_port()
        self._record = record
        self._acl = acl_file(record, rank=rank)
        self._home = home
        rendered = settings(tier.spec)
        lines = {**rendered.restart, **rendered.live}
        self._settings = {name: text for name, text in lines.items() if name not in NOT_HERE}
        self._tls = ca is not None
        if ca is not None:
            pair = ca.issue("localhost")
            files = {"cert-file": pair.certificate, "key-file": pair.key, "ca-cert-file": ca.pem}
            for name, text in files.items():
                (home / name).write_text(text)
                self._settings[f"tls-{name}"] = str(home / name)
            self._settings["tls-port"] = str(self.port)
        self._running = ExitStack()
        self._server: Server | None = None

    def start(self) -> None:
        self._server = self._running.enter_context(
            running_server(
                "9.1",
                directory=self._home,
                acl=self._acl,
                settings=self._settings,
                port=self.port,
                program=with_tls("9.1", "valkey-server") if self._tls else None,
            )
        )

    def kill(self) -> None:
        """At once, as by SIGKILL: connections are refused from now on."""
        self._running.close()
        self._server = None

    @contextmanager
    def hung(self) -> Iterator[None]:
        """It accepts connections and answers nothing."""
        assert self._server is not None
        os.kill(self._server.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._server.pid, signal.SIGCONT)

    @contextmanager
    def blackholed(self) -> Iterator[None]:
        """What is sent to it is lost without an answer, on open connections and on new ones."""
        rule = ("INPUT", "-i", "lo", "-p", "tcp", "--dport", str(self.port), "-j", "DROP")
        _iptables("-I", *rule)
        try:
            yield
        finally:
            _iptables("-D", *rule)

    def forbid(self) -> None:
        """The engine's user loses its keys, as when kvtier fences a generation."""
        with self._operator() as operator:
            operator.execute_command("ACL", "SETUSER", self._record.current.token, "resetkeys")

    def flush(self) -> None:
        with self._operator() as operator:
            operator.flushdb()

    def keys(self) -> list[str]:
        with self._operator() as operator:
            return sorted(key.decode() for key in operator.scan_iter(count=1000))

    def __enter__(self) -> "Rank":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _operator(self) -> "valkey.Valkey[bytes]":
        return valkey.Valkey(
            host="localhost" if self._tls else HOST,
            port=self.port,
            ssl=self._tls,
            ssl_ca_certs=self._settings.get("tls-ca-cert-file"),
            username=OPERATOR_USER,
            password=self._record.operator_token,
            lib_name=None,
            lib_version=None,
        )


HOW = ("killed", "hung", "blackholed")


def lost(rank: Rank, how: str) -> AbstractContextManager[None]:
    """One of HOW, until the context ends: then it is back."""
    return {"killed": _killed, "hung": Rank.hung, "blackholed": Rank.blackholed}[how](rank)


@contextmanager
def _killed(rank: Rank) -> Iterator[None]:
    """It comes back on the same address, empty."""
    rank.kill()
    try:
        yield
    finally:
        rank.start()


def record_of(tier: KVCacheTier) -> Record:
    return new_record(
        tier.spec, operator_token=new_token(), engine_token=new_token(), probe_token=None
    )


def _iptables(*arguments: str) -> None:
    subprocess.run(["iptables", "-w", *arguments], check=True, capture_output=True)


def at(adapter: Mapping[str, object], rank: Rank) -> dict[str, object]:
    """A stock adapter with the rank's address here, and all else as published."""
    return dict(adapter) | {"startup_nodes": f"{HOST}:{rank.port}"}
