"""A real kube-apiserver with a real etcd, without controllers, for the length of a test run."""

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from programs import CannotStart, local_binaries

START_SECONDS = 100.0
STOP_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What kubectl said."""

    code: int
    out: str
    err: str

    @property
    def message(self) -> str:
        """What a person reads, on one line."""
        return " ".join(self.err.split())


@dataclass(frozen=True, slots=True)
class ApiServer:
    """A running API server.

    ``url`` is its address, ``token`` a bearer token of group system:masters, ``ca`` the file that
    certifies it, ``kubeconfig`` a file that holds all three.
    """

    url: str
    token: str
    ca: Path
    kubeconfig: Path
    kubectl_path: Path

    def kubectl(self, *arguments: str, stdin: str | None = None) -> Answer:
        """Run the real kubectl, as a person does."""
        done = subprocess.run(
            [self.kubectl_path, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={
                "KUBECONFIG": str(self.kubeconfig),
                "HOME": str(self.kubeconfig.parent),
                "PATH": os.environ.get("PATH", ""),
            },
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    def apply(self, document: dict[str, Any] | str, *options: str) -> Answer:
        """``kubectl apply -f -`` of a manifest."""
        text = document if isinstance(document, str) else json.dumps(document)
        return self.kubectl("apply", *options, "-f", "-", stdin=text)


@contextlib.contextmanager
def running() -> Iterator[ApiServer]:
    """Start etcd and kube-apiserver on free ports; stop both and leave nothing behind.

    Raises CannotStart when the machine lacks something.
    """
    binaries = _binaries()
    directory = Path(tempfile.mkdtemp(prefix="kvtier-apiserver-"))
    processes: list[subprocess.Popen[bytes]] = []
    try:
        yield _start(directory, binaries=binaries, processes=processes)
    finally:
        for process in reversed(processes):
            _stop(process)
        shutil.rmtree(directory)


def kubectl_path() -> Path:
    """The real kubectl. Raises CannotStart while it is not built."""
    return _binaries()["kubectl"]


def _binaries() -> dict[str, Path]:
    known = local_binaries()
    found = {name: known[name] for name in ("etcd", "kube-apiserver", "kubectl")}
    missing = sorted(name for name, path in found.items() if not path.exists())
    if missing:
        raise CannotStart(
            f"{', '.join(missing)} not built: run `deploy/local/cluster build` once (about 20"
            " minutes, cached)"
        )
    if shutil.which("openssl") is None:
        raise CannotStart("openssl is not on PATH: install the package openssl")
    return found


def _start(
    directory: Path, *, binaries: dict[str, Path], processes: list[subprocess.Popen[bytes]]
) -> ApiServer:
    etcd, peer, port = _free_ports(3)
    _spawn(
        "etcd",
        [
            str(binaries["etcd"]),
            f"--data-dir={directory / 'etcd'}",
            f"--listen-client-urls=http://127.0.0.1:{etcd}",
            f"--advertise-client-urls=http://127.0.0.1:{etcd}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-cluster=default=http://127.0.0.1:{peer}",
            "--unsafe-no-fsync",
        ],
        directory=directory,
        processes=processes,
    )
    _make_certificate(directory)
    token = secrets.token_hex(16)
    (directory / "tokens.csv").write_text(f'{token},test,test,"system:masters"\n')
    _spawn(
        "kube-apiserver",
        [
            str(binaries["kube-apiserver"]),
            f"--etcd-servers=http://127.0.0.1:{etcd}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--tls-cert-file={directory / 'server.crt'}",
            f"--tls-private-key-file={directory / 'server.key'}",
            f"--token-auth-file={directory / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={directory / 'server.key'}",
            f"--service-account-signing-key-file={directory / 'server.key'}",
            "--service-cluster-ip-range=10.0.0.0/24",
            # Without controllers nothing makes the default ServiceAccount that pods ask for.
            "--disable-admission-plugins=ServiceAccount",
        ],
        directory=directory,
        processes=processes,
    )
    server = ApiServer(
        url=f"https://127.0.0.1:{port}",
        token=token,
        ca=directory / "server.crt",
        kubeconfig=directory / "kubeconfig",
        kubectl_path=binaries["kubectl"],
    )
    _write_kubeconfig(server)
    _await_ready(server, processes=processes, directory=directory)
    return server


def _spawn(
    name: str,
    command: list[str],
    *,
    directory: Path,
    processes: list[subprocess.Popen[bytes]],
) -> None:
    with (directory / f"{name}.log").open("wb") as log:
        processes.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=directory))


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _make_certificate(directory: Path) -> None:
    # Its own CA, with the extensions that Python's strict verification asks for.
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-nodes", "-newkey", "rsa:2048", "-days", "2"),
            *("-keyout", "server.key", "-out", "server.crt", "-subj", "/CN=kvtier-test"),
            *("-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"),
            *("-addext", "keyUsage=critical,digitalSignature,keyEncipherment,keyCertSign"),
        ],
        cwd=directory,
        check=True,
        capture_output=True,
    )


def _write_kubeconfig(server: ApiServer) -> None:
    server.kubeconfig.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [
                    {
                        "name": "test",
                        "cluster": {"server": server.url, "certificate-authority": str(server.ca)},
                    }
                ],
                "users": [{"name": "test", "user": {"token": server.token}}],
                "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
                "current-context": "test",
            }
        )
    )


def _await_ready(
    server: ApiServer, *, processes: list[subprocess.Popen[bytes]], directory: Path
) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        ended = next((each for each in processes if each.poll() is not None), None)
        if ended is not None or time.monotonic() > deadline:
            raise CannotStart(f"the API server did not start: {_last_error(directory)}")
        if server.kubectl("get", "--raw", "/readyz").code == 0:
            namespaces = server.kubectl("get", "namespace", "default")
            if namespaces.code == 0:
                return
        time.sleep(0.1)


def _last_error(directory: Path) -> str:
    lines = [
        line
        for name in ("kube-apiserver", "etcd")
        if (log := directory / f"{name}.log").exists()
        for line in log.read_text(errors="replace").splitlines()
        if re.match(r"[EF]\d{4}|Error|error|panic", line)
    ]
    return lines[-1] if lines else "no error in its log; the machine may be too slow"


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
