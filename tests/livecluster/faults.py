"""Breaking one instance of deploy/local/cluster on purpose, and mending it.

A machine is a set of namespaces: killing its first process is pulling its plug, stopping all of its
processes freezes it, and taking down its link cuts it off. ``cluster up`` starts what died.
"""

import fcntl
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from livecluster.cluster import LiveCluster, bring_up_again
from livecluster.waiting import eventually

NS_GET_PARENT = 0xB702
STOP_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Faults:
    """The processes and links of one running cluster."""

    cluster: LiveCluster

    # Components: kube-apiserver, etcd, kube-scheduler, kube-controller-manager, coredns,
    # kubelet-NODE, containerd-NODE, kube-proxy-NODE.

    def pid(self, component: str) -> int:
        """The component's process id on this host."""
        return int(self._facts()["components"][component]["process"]["pid"])

    def stop(self, component: str, *, by: signal.Signals = signal.SIGTERM) -> None:
        """End a component, by force if it takes too long, and wait until it is gone."""
        pid = self.pid(component)
        os.kill(pid, by)
        try:
            eventually(lambda: _is_gone(pid), seconds=STOP_SECONDS, what=f"{component} ends")
        except AssertionError:
            os.kill(pid, signal.SIGKILL)
            eventually(lambda: _is_gone(pid), seconds=STOP_SECONDS, what=f"{component} dies")

    def mend(self) -> None:
        """Start whatever died, and wait until the API server answers and all nodes are Ready.

        What is frozen or cut off must be thawed and joined before.
        """
        bring_up_again(self.cluster.facts["name"])

    def restart(self, component: str, *, by: signal.Signals = signal.SIGTERM) -> None:
        """End a component and start it again as the cluster does."""
        self.stop(component, by=by)
        self.mend()

    @contextmanager
    def stopped(self, component: str, *, by: signal.Signals = signal.SIGTERM) -> Iterator[None]:
        """The component is not there; afterwards everything is."""
        self.stop(component, by=by)
        try:
            yield
        finally:
            self.mend()

    @contextmanager
    def frozen(self, component: str) -> Iterator[None]:
        """The component's process hangs."""
        with stopped_processes([self.pid(component)]):
            yield

    # Nodes

    @contextmanager
    def frozen_node(self, node: str) -> Iterator[None]:
        """Every process of the machine hangs, pods included; its network still takes packets."""
        with _all_stopped(self._machine(node)):
            yield

    @contextmanager
    def cut_node(self, node: str) -> Iterator[None]:
        """The machine runs on, and no packet leaves or reaches it."""
        self._link(node, "down")
        try:
            yield
        finally:
            self._link(node, "up")

    def kill_node(self, node: str) -> None:
        """The machine loses power. Its Node object stays; ``mend`` starts the machine again."""
        pid = self._machine(node)
        os.kill(pid, signal.SIGKILL)
        # It is there until the last process of the machine has ended.
        eventually(lambda: _is_gone(pid), seconds=STOP_SECONDS, what=f"{node} is off")

    # Containers

    def container_pids(self, container: str) -> list[int]:
        """Processes of a container, by its id as pods show it (``containerd://...``)."""
        name = _id(container)
        return sorted(
            int(process.name)
            for process in Path("/proc").glob("[0-9]*")
            if name in _text(process / "cgroup")
        )

    def server_pid(self, container: str) -> int:
        """The container's Valkey: its probes run processes beside it for moments."""
        found = [
            pid
            for pid in self.container_pids(container)
            if _text(Path(f"/proc/{pid}/comm")).strip() == "valkey-server"
        ]
        assert len(found) == 1, f"{len(found)} servers in container {container}"
        return found[0]

    def rerun(self, node: str, container: str) -> None:
        """Kill a container's process and start it again as it was, mounts included.

        The node's containerd does it, which needs no kubelet: what is mounted stays what it was.
        ``end_rerun`` before a kubelet is there again, which would start another one beside it.
        """
        self._ctr(node, "kill", "--signal", "SIGKILL", _id(container))
        # The task has to be cleared away before.
        eventually(
            lambda: self._ctr(node, "start", "--detach", "--null-io", _id(container)),
            seconds=STOP_SECONDS,
            what=f"{container} runs again",
        )

    def end_rerun(self, node: str, container: str) -> None:
        self._ctr(node, "kill", "--signal", "SIGKILL", _id(container))
        eventually(
            lambda: not self.container_pids(container),
            seconds=STOP_SECONDS,
            what=f"{container} has ended",
        )
        self._ctr(node, "delete", _id(container))

    def _ctr(self, node: str, *arguments: str) -> bool:
        """Whether containerd did what was asked of the container's task."""
        facts = self._facts()
        (socket,) = (each["containerdSocket"] for each in facts["nodes"] if each["name"] == node)
        done = subprocess.run(
            [facts["tools"]["ctr"], "-a", socket, "-n", "k8s.io", "task", *arguments],
            capture_output=True,
            check=False,
        )
        return done.returncode == 0

    def memory_peak(self, container: str) -> int:
        """The most memory in bytes that the container has been charged for, caches included."""
        lines = _text(Path(f"/proc/{self.server_pid(container)}/cgroup")).splitlines()
        paths = {name: path for _, name, path in (line.split(":", 2) for line in lines)}
        if "memory" in paths:
            file = Path(f"/sys/fs/cgroup/memory{paths['memory']}/memory.max_usage_in_bytes")
        else:
            file = Path(f"/sys/fs/cgroup{paths['']}/memory.peak")
        return int(file.read_text())

    def _link(self, node: str, state: str) -> None:
        control_plane = self._facts()["controlPlane"]["machine"]["pid"]
        subprocess.run(
            [
                *("nsenter", f"--net=/proc/{control_plane}/ns/net", "--"),
                *("ip", "link", "set", node, state),
            ],
            check=True,
        )

    def _machine(self, node: str) -> int:
        nodes = {each["name"]: each for each in self._facts()["nodes"]}
        return int(nodes[node]["machine"]["pid"])

    def _facts(self) -> dict[str, Any]:
        """Process ids change with every repair: read them again."""
        path = Path(self.cluster.facts["state"]) / "cluster.json"
        facts: dict[str, Any] = json.loads(path.read_text())
        return facts


@contextmanager
def stopped_processes(pids: list[int]) -> Iterator[None]:
    """SIGSTOP these processes, and SIGCONT them at the end."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@contextmanager
def _all_stopped(machine: int) -> Iterator[None]:
    stopped: set[int] = set()
    try:
        # A process may have started another one before it was stopped.
        while fresh := _processes_of(machine) - stopped:
            for pid in fresh:
                stopped.add(pid)
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def _processes_of(machine: int) -> set[int]:
    """Every process in the machine's namespace of process ids, or in one within it."""
    wanted = Path(f"/proc/{machine}/ns/pid").stat().st_ino
    return {
        int(process.name)
        for process in Path("/proc").glob("[0-9]*")
        if wanted in _pid_namespaces(process / "ns" / "pid")
    }


def _pid_namespaces(link: Path) -> set[int]:
    """Inode numbers of a namespace of process ids and of all around it."""
    found: set[int] = set()
    try:
        fd = os.open(link, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return found
    while True:
        found.add(os.fstat(fd).st_ino)
        try:
            parent = fcntl.ioctl(fd, NS_GET_PARENT)
        except OSError:
            # Around it is one that this process may not see: its own is the outermost.
            return found
        finally:
            os.close(fd)
        fd = parent


def _id(container: str) -> str:
    return container.rpartition("//")[2]


def _is_gone(pid: int) -> bool:
    """Whether the process has ended; nobody has to wait for it."""
    stat = _text(Path(f"/proc/{pid}/stat"))
    return not stat or stat.rpartition(")")[2].split()[0] in "ZX"


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
