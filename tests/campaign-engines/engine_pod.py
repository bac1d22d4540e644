"""Containers of one engine's pod: programs of the engines' environment that have the published
Secret at /kvtier, and nothing else of kvtier.

Each is a process with namespaces of its own for mounts and processes, in the network of a node of
the cluster and with the cluster's DNS; all of a pod share /dev/shm, as pods do that mount a volume
there. It ends with all that it started when its ``unshare`` is killed, and when the tests are.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvtier.redact import redact
from livecluster.cluster import LiveCluster
from livecluster.shaping import Links

NODE = "node-3"
MOUNT = Path("/kvtier")
FETCH = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=20).read().decode())"
CONTAINER = """set -e
while [ "$1" != -- ]; do mount --bind "$1" "$2"; shift 2; done
mount -o remount,bind,ro /kvtier
shift
exec "$@"
"""
ENVIRONMENT = {
    # Nobody is told of these runs, and nothing is asked for.
    "LMCACHE_TRACK_USAGE": "false",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "PYTHONUNBUFFERED": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    # Threads that spin while they wait would take the other worker's core.
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # The server moves KV, as it does for GPUs; for CPUs LMCache's default is the other way.
    "LMCACHE_MP_TRANSFER_MODE": "lmcache_driven",
}


@dataclass(frozen=True, slots=True)
class Container:
    """One running program of the engine, and what it has said so far."""

    name: str
    process: "subprocess.Popen[bytes]"
    log: Path

    def said(self) -> str:
        return redact(self.log.read_text(errors="replace"))

    def runs(self) -> bool:
        return self.process.poll() is None

    def end(self) -> None:
        """With all that it started: they are in its namespace of processes."""
        self.process.kill()
        self.process.wait()


@dataclass(frozen=True, slots=True)
class Node:
    """Where engines run. ``python`` is the environment's that has vLLM and LMCache."""

    python: str
    inside: tuple[str, ...]
    address: str
    dns: str
    home: Path

    @classmethod
    def of(cls, cluster: LiveCluster, *, python: str, home: Path) -> "Node":
        (node,) = (each for each in cluster.facts["nodes"] if each["name"] == NODE)
        return cls(
            python=python,
            inside=Links(cluster).inside(NODE),
            address=node["address"],
            dns=cluster.facts["dns"],
            home=home,
        )

    @property
    def kept(self) -> str:
        """The home of engines, beside their environment."""
        return str(Path(self.python).parents[1] / "home")

    def fetch(self, url: str) -> str:
        """What answers there, also on the node's loopback."""
        done = subprocess.run(
            [*self.inside, sys.executable, "-c", FETCH, url],
            env={},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout


@dataclass(frozen=True, slots=True)
class Pod:
    """``mounts`` are directories and files of this machine by where containers see them."""

    node: Node
    home: Path
    mounts: Mapping[str, Path]

    def command(self, script: str) -> list[str]:
        """A container that runs this, as docs/engines.md has it: with the Secret's environment."""
        binds = [str(each) for at, path in self.mounts.items() for each in (path, at)]
        return [
            *("setpriv", "--pdeathsig", "KILL", *self.node.inside),
            *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"),
            *("sh", "-c", CONTAINER, "sh", *binds, "--"),
            *("sh", "-c", f"set -a; . {MOUNT}/env; {script}"),
        ]

    @property
    def environment(self) -> dict[str, str]:
        # What vLLM keeps there of a model's class saves the next one half a minute.
        return {"PATH": os.environ["PATH"], "HOME": self.node.kept} | ENVIRONMENT

    @contextmanager
    def running(self, name: str, script: str) -> Iterator[Container]:
        log = self.home / f"{name}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                self.command(script),
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        container = Container(name=name, process=process, log=log)
        try:
            yield container
        finally:
            container.end()


@contextmanager
def pod(
    node: Node,
    *,
    name: str,
    files: Mapping[str, bytes],
    mounts: Mapping[str, Path] | None = None,
) -> Iterator[Pod]:
    """Nothing runs in it yet. ``files`` are the Secret's; ``mounts`` come on top of it."""
    home = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=node.home))
    shared = Path(tempfile.mkdtemp(prefix="kvtier-engine-", dir="/dev/shm"))
    MOUNT.mkdir(exist_ok=True)
    (home / "kvtier").mkdir()
    for key, value in files.items():
        (home / "kvtier" / key).write_bytes(value)
    (home / "resolv.conf").write_text(
        f"nameserver {node.dns}\nsearch svc.cluster.local cluster.local\noptions ndots:5\n"
    )
    own = {
        str(MOUNT): home / "kvtier",
        "/dev/shm": shared,
        "/etc/resolv.conf": home / "resolv.conf",
    }
    try:
        yield Pod(node=node, home=home, mounts={**own, **(mounts or {})})
    finally:
        shutil.rmtree(shared)
