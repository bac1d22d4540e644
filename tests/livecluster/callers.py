"""Pods that try to connect somewhere, to see what a network policy lets through."""

from collections.abc import Mapping
from dataclasses import dataclass

from livecluster import restricted
from livecluster.api import is_ready
from livecluster.cluster import LiveCluster
from livecluster.waiting import eventually

IMAGE = "docker.io/kvtier/kvtier:0.1.0"
PORT = 8000
LISTEN = """
import socket
with socket.create_server(("0.0.0.0", 8000)) as server:
    while True:
        server.accept()[0].close()
"""
CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 3).close()
except OSError as error:
    print(type(error).__name__)
else:
    print("connected")
"""


@dataclass(frozen=True, slots=True)
class Caller:
    """One pod, which also listens on PORT."""

    cluster: LiveCluster
    namespace: str
    name: str

    def start(self, *, labels: Mapping[str, str] | None = None, node: str = "") -> None:
        """Make it, on this node if one is named, and wait until it listens.

        It meets the Pod Security Standard `restricted`.
        """
        container = {
            "name": "caller",
            "image": IMAGE,
            "imagePullPolicy": "IfNotPresent",
            "command": ["python3", "-c", LISTEN],
            "resources": {
                "requests": {"cpu": "10m", "memory": "32Mi"},
                "limits": {"cpu": "500m", "memory": "64Mi"},
            },
            "securityContext": restricted.CONTAINER,
        }
        spec = {
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "securityContext": restricted.POD,
            "containers": [container],
            **({"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}),
        }
        metadata = {"name": self.name, "namespace": self.namespace, "labels": dict(labels or {})}
        self.cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

        def up() -> bool:
            pod = self.cluster.api.get("pods", self.namespace, self.name)
            return pod is not None and is_ready(pod)

        eventually(up, seconds=60, what=f"pod {self.name} is ready")

    @property
    def address(self) -> str:
        pod = self.cluster.api.get("pods", self.namespace, self.name)
        assert pod is not None
        return str(pod["status"]["podIP"])

    def reaches(self, host: str, port: int) -> bool:
        """Whether a connection opens; no name, no route and no answer within 3 s are one."""
        return self.said(host, port) == "connected"

    def said(self, host: str, port: int) -> str:
        """What came of it: connected, or the name of the error."""
        return connect(self.cluster, namespace=self.namespace, pod=self.name, host=host, port=port)


def connect(cluster: LiveCluster, *, namespace: str, pod: str, host: str, port: int) -> str:
    """Try it from a pod that has Python."""
    return cluster.kubectl(
        *("exec", "-n", namespace, pod, "--"), "python3", "-c", CONNECT, host, str(port)
    ).strip()
