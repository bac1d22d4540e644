"""kvtier in the cluster, by Helm as a user installs it, and its controller's process."""

import re
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from livecluster.api import Object, is_ready
from livecluster.audit import Mark, Request
from livecluster.cluster import LiveCluster
from livecluster.waiting import eventually
from programs import CHECKOUT

CHART = CHECKOUT / "charts" / "kvtier"
NAMESPACE = "kvtier-system"
RELEASE = "kvtier"
USER = f"system:serviceaccount:{NAMESPACE}:{RELEASE}"
RESYNC = 3.0
"""Seconds, where a test waits for it; a deleted or edited Secret is seen a tenth later at most."""
MIB = 1 << 20


@dataclass(slots=True)
class Installation:
    """The chart's release in a cluster. ``values`` are those that every install sets.

    ``spans`` are the parts of the audit log in which the release was there as a whole: not those in
    which an uninstall takes the controller's roles away under it.
    """

    cluster: LiveCluster
    values: dict[str, str]
    spans: list[tuple[Mark, Mark]] = field(default_factory=list)
    helm: str = ""
    begun: Mark | None = None

    def install(self, *options: str, helm: str = "helm") -> None:
        """``helm upgrade --install --wait``; returns once the controller is ready."""
        assert self.helm in ("", helm), f"the release is one of {self.helm}"
        self.begun = self.begun or self.cluster.audit.mark()
        self._make_namespace()
        values = [f"--set={name}={value}" for name, value in self.values.items()]
        self.cluster.run(
            helm,
            *("upgrade", RELEASE, str(CHART), "--install", "--namespace", NAMESPACE),
            *("--wait", "--timeout=90s", *values, *options),
        )
        self.helm = helm

    def _make_namespace(self) -> None:
        """One that refuses any pod that is not restricted, the controller's too."""
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        metadata = {"name": NAMESPACE, "labels": labels}
        self.cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})

    def uninstall(self) -> None:
        """By the Helm that installed it; returns once the controller's process has ended."""
        assert self.begun, "not installed"
        self.spans.append((self.begun, self.cluster.audit.mark()))
        self.cluster.run(self.helm, "uninstall", RELEASE, "--namespace", NAMESPACE, "--wait")
        eventually(lambda: not self.pods(), seconds=40, what="the controller's pod is gone")
        self.helm, self.begun = "", None

    def pods(self) -> list[Object]:
        selector = f"app.kubernetes.io/instance={RELEASE},app.kubernetes.io/component=controller"
        return self.cluster.api.list("pods", NAMESPACE, selector=selector)

    def pod(self) -> Object:
        """The controller's pod, once it is ready and alone."""

        def found() -> Object | None:
            pods = self.pods()
            return pods[0] if len(pods) == 1 and is_ready(pods[0]) else None

        return eventually(found, seconds=60, what="one ready controller pod", detail=self.pods)

    def requests(self, begin: Mark, end: Mark | None = None) -> list[Request]:
        """What the controller asked the API server for, until now if no end is given."""
        audit = self.cluster.audit
        return audit.between(begin, end or audit.mark(), user=USER)

    def requests_while_installed(self) -> list[Request]:
        """All its requests since the first install, but those under an uninstall."""
        spans = [*self.spans, (self.begun, self.cluster.audit.mark())]
        return [each for begin, end in spans if begin for each in self.requests(begin, end)]

    def metrics(self) -> str:
        """What Prometheus reads."""
        address = self.pod()["status"]["podIP"]
        with urllib.request.urlopen(f"http://{address}:8080/metrics", timeout=10) as reply:
            text: str = reply.read().decode()
        return text

    def resident_bytes(self) -> int:
        """Resident memory of the controller's Python process, as the kernel counts it now."""
        status = self.pod()["status"]["containerStatuses"][0]
        container = status["containerID"].rpartition("//")[2]
        sizes = [
            _resident(process)
            for process in Path("/proc").glob("[0-9]*")
            if container in _text(process / "cgroup")
        ]
        assert sizes, f"no process of container {container} on this machine"
        return max(sizes)

    def log(self) -> str:
        """The end of the controller's log, for the message of a failing test."""
        name = self.pod()["metadata"]["name"]
        return self.cluster.kubectl("logs", "-n", NAMESPACE, name, "--tail=40")


def _resident(process: Path) -> int:
    found = re.search(r"^VmRSS:\s+(\d+) kB", _text(process / "status"), flags=re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        # The process has ended meanwhile.
        return ""
