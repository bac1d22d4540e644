"""The controller's replicas: who leads, and what becomes of one that is frozen or cut off."""

import os
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from livecluster.api import Object
from livecluster.faults import Faults
from livecluster.installation import NAMESPACE, RELEASE, Installation
from livecluster.waiting import eventually

API_PORT = 6443
TAKEOVER = 60.0
"""Seconds for a takeover: 15 s without a renewal and a second, threefold and more."""


@dataclass(frozen=True, slots=True)
class Replicas:
    """``kvtier``'s Deployment, scaled."""

    kvtier: Installation

    def scale(self, count: int) -> None:
        """Let so many run; returns once they do and one of them leads."""
        name = f"deployment/{RELEASE}"
        self.kvtier.cluster.kubectl("scale", name, f"--replicas={count}", "-n", NAMESPACE)
        eventually(
            lambda: len(self.running()) == len(self.kvtier.pods()) == count,
            seconds=90,
            what=f"{count} controllers run",
            detail=self.kvtier.pods,
        )
        eventually(
            lambda: self.leader() in self.running(),
            seconds=TAKEOVER,
            what="a running controller leads",
            detail=self.lease,
        )

    def running(self) -> dict[str, Object]:
        """Pods whose container runs, by name."""
        return {
            pod["metadata"]["name"]: pod
            for pod in self.kvtier.pods()
            if "deletionTimestamp" not in pod["metadata"]
            for status in pod.get("status", {}).get("containerStatuses", [])
            if "running" in status["state"]
        }

    def lease(self) -> Object:
        """Its spec; empty if there is none."""
        found = self.kvtier.cluster.api.get("leases", NAMESPACE, RELEASE)
        return (found or {}).get("spec", {})

    def leader(self) -> str:
        """Name of the pod that holds the Lease, empty if nobody does."""
        return str(self.lease().get("holderIdentity") or "").partition("_")[0]

    def wait_other(self, than: str, *, seconds: float = TAKEOVER) -> str:
        """The next leader."""
        return eventually(
            lambda: (name := self.leader()) != than and name,
            seconds=seconds,
            what=f"another leader than {than}",
            detail=self.lease,
        )

    def pid(self, pod: str) -> int:
        """Process id of its controller on this host."""
        return Faults(self.kvtier.cluster).container_pids(self._container(pod))[0]

    def restarts(self, pod: str) -> int:
        found = self.kvtier.cluster.api.get("pods", NAMESPACE, pod) or {}
        return sum(each["restartCount"] for each in found["status"]["containerStatuses"])

    def metric(self, name: str) -> float:
        """Sum of a metric's series in the leader; ``name`` may have labels, as a prefix."""
        address = self.running()[self.leader()]["status"]["podIP"]
        with urllib.request.urlopen(f"http://{address}:8080/metrics", timeout=10) as reply:
            text = reply.read().decode()
        found = re.findall(rf"^{re.escape(name)}[^ ]* ([0-9.e+-]+)$", text, flags=re.MULTILINE)
        assert found, f"no metric {name}"
        return sum(float(value) for value in found)

    @contextmanager
    def cut_off(self, pod: str) -> Iterator[None]:
        """Whatever the pod sends to the API server or gets from it is lost without a word."""
        pid = self.pid(pod)
        rules = (("OUTPUT", "--dport"), ("INPUT", "--sport"))
        ports = f"{API_PORT},443"
        for chain, side in rules:
            _iptables(pid, "-I", chain, "-p", "tcp", "-m", "multiport", side + "s", ports)
        try:
            yield
        finally:
            # The container may have been restarted: its network is the pod's and stays.
            pid = self.pid(pod)
            for chain, side in rules:
                _iptables(pid, "-D", chain, "-p", "tcp", "-m", "multiport", side + "s", ports)

    def kill(self, pod: str) -> None:
        """``kill -9``."""
        os.kill(self.pid(pod), 9)

    def _container(self, pod: str) -> str:
        statuses = self.running()[pod]["status"]["containerStatuses"]
        return str(statuses[0]["containerID"])


def _iptables(pid: int, *rule: str) -> None:
    command = ["nsenter", f"--net=/proc/{pid}/ns/net", "--", "iptables", "-w", *rule, "-j", "DROP"]
    subprocess.run(command, check=True, capture_output=True)


def scaled(kvtier: Installation) -> Iterator[Replicas]:
    """The body of a fixture: as many controllers as a test wants, and one after it."""
    found = Replicas(kvtier)
    yield found
    found.scale(1)
    kvtier.pod()
