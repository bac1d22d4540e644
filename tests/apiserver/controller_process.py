"""``kvtier controller`` as a process of its own, and small helpers around it."""

import json
import re
import signal
import socket
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

import yaml
from apiserver_process import ApiServer

SPEC = {
    "model": {
        "name": "tiny",
        "revision": "r1",
        "kvCacheDtype": "bfloat16",
        "layout": {"gqa": {"layers": 2, "kvHeads": 2, "headDim": 64}},
    },
    "pool": {"ranks": 2, "prefillRate": [{"tokensPerSecond": 5000}]},
    "store": {"memoryPerRank": "64Mi", "cpu": "20m"},
}


@dataclass(frozen=True, slots=True)
class Controller:
    process: subprocess.Popen[str]
    port: int
    log: Path

    def answers(self, path: str) -> int:
        """HTTP status of a path, 0 without an answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=2) as reply:
                return int(reply.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def metric(self, name: str) -> float:
        """Sum of a metric's series now; ``name`` may have labels, as a prefix."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as reply:
            text = reply.read().decode()
        found = re.findall(rf"^{re.escape(name)}[^ ]* ([0-9.e+-]+)$", text, flags=re.MULTILINE)
        return sum(float(value) for value in found)

    def stop(self) -> int:
        """SIGTERM, and the exit code that it brings."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)


@contextmanager
def controller(
    server: ApiServer,
    tmp_path: Path,
    *arguments: str,
    lease: str = "kvtier",
    kubeconfig: Path | None = None,
) -> Iterator[Controller]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path / f"controller-{port}.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [
                Path(sys.executable).with_name("kvtier"),
                "controller",
                f"--listen=127.0.0.1:{port}",
                "--lease-namespace=default",
                f"--lease-name={lease}",
                *arguments,
            ],
            env={"KUBECONFIG": str(kubeconfig or server.kubeconfig), "PATH": "/usr/bin:/bin"},
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )
    try:
        yield Controller(process=process, port=port, log=log)
    finally:
        process.kill()
        process.wait()


def wait_for(what: Callable[[], Any], *, seconds: float = 60) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := what():
            return found
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds} s: {what}")


def get(server: ApiServer, *what: str) -> Any:
    answer = server.kubectl("get", *what, "-o", "json", "--ignore-not-found")
    # kubectl prints nothing for an absent object, nor for an empty list.
    return json.loads(answer.out) if answer.out else {"items": []}


def apply_tier(server: ApiServer, namespace: str, name: str = "demo") -> None:
    tier = {
        "apiVersion": "kvtier.dev/v1alpha1",
        "kind": "KVCacheTier",
        "metadata": {"name": name, "namespace": namespace},
        "spec": SPEC,
    }
    answer = server.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(tier))
    assert answer.code == 0, answer.message
