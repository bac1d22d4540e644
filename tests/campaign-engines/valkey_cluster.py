"""Three primaries of a Valkey Cluster on loopback, for what LMCache's cluster mode costs."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "store"))
from valkey_servers import CLI, Server, free_port, running_server

SLOTS = 16384
FORMED_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Cluster:
    nodes: tuple[Server, ...]

    @property
    def startup_nodes(self) -> str:
        return ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def kill(self, node: int) -> None:
        os.kill(self.nodes[node].pid, signal.SIGKILL)


@contextmanager
def running(*, home: Path, user: str, full_coverage: bool) -> Iterator[Cluster]:
    """``user`` is the ACL rule of the one besides ``default``, who may do anything here."""
    acl = f"user default reset on nopass ~* &* +@all\n{user}\n"
    with ExitStack() as stack:
        nodes = []
        for number in range(3):
            directory = home / f"node{number}"
            directory.mkdir()
            settings = {
                "cluster-enabled": "yes",
                "cluster-port": str(free_port()),
                "cluster-require-full-coverage": "yes" if full_coverage else "no",
                "cluster-node-timeout": "5000",
            }
            nodes.append(
                stack.enter_context(
                    running_server("9.1", directory=directory, acl=acl, settings=settings)
                )
            )
        _cli("--cluster", "create", *(f"127.0.0.1:{node.port}" for node in nodes), "--cluster-yes")
        deadline = monotonic() + FORMED_SECONDS
        while not all(_formed(node) for node in nodes):
            assert monotonic() < deadline, "the cluster did not form"
            sleep(0.1)
        yield Cluster(tuple(nodes))


def _formed(node: Server) -> bool:
    said = _cli("-p", str(node.port), "cluster", "info")
    return "cluster_state:ok" in said and f"cluster_slots_ok:{SLOTS}" in said


def _cli(*arguments: str) -> str:
    done = subprocess.run(
        [str(CLI), *arguments], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


def allow(node: Server, user: str, rule: str) -> None:
    _cli("-p", str(node.port), "acl", "setuser", user, rule)


def wait_failed(node: Server) -> None:
    """Until this node knows that another one is gone for good."""
    deadline = monotonic() + FORMED_SECONDS
    while not any("fail" in flags for flags in _flags(node)):
        assert monotonic() < deadline, "no node was found to have failed"
        sleep(0.1)


def _flags(node: Server) -> list[list[str]]:
    lines = _cli("-p", str(node.port), "cluster", "nodes").splitlines()
    return [line.split()[2].split(",") for line in lines]
