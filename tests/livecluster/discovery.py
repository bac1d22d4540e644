"""How a Prometheus finds the pods of a namespace: by kubernetes_sd, or told as by it.

Debian builds its Prometheus without kubernetes_sd. What it would find, one target for each port of
each container with ``__meta_kubernetes_*`` labels, is told here to its http_sd, so that relabeling
is written, and tried, as for a cluster.
"""

import json
import re
import ssl
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from livecluster.api import Object, is_ready
from livecluster.serving import Quiet, serving

SECONDS = 10.0
ASKS = "5s"
"""Between two questions of Prometheus; each must be answered within it, on a busy machine too."""
Find = Callable[[str], dict[str, Any]]
"""How Prometheus finds the pods of a namespace, as a part of a scrape's configuration."""


@dataclass(frozen=True, slots=True)
class Account:
    """Who asks: a bearer token, and the CA of the server at ``url``."""

    url: str
    ca: Path
    token: str

    def pods(self, namespace: str) -> list[Object]:
        """Raises OSError where the server does not answer, or not with the pods."""
        request = urllib.request.Request(
            f"{self.url}/api/v1/namespaces/{namespace}/pods",
            headers={"Authorization": f"Bearer {self.token}"},
        )
        tls = ssl.create_default_context(cafile=str(self.ca))
        with urllib.request.urlopen(request, timeout=SECONDS, context=tls) as reply:
            found: list[Object] = json.load(reply)["items"]
        return found


def targets(pods: list[Object]) -> list[dict[str, Any]]:
    """http_sd's target groups. A pod without an address is none yet."""
    return [
        {
            "targets": [f"{pod['status']['podIP']}:{port['containerPort']}"],
            "labels": _labels(pod, container, port),
        }
        for pod in pods
        if pod["status"].get("podIP")
        for container in pod["spec"]["containers"]
        for port in container.get("ports", ())
    ]


def _labels(pod: Object, container: Object, port: Mapping[str, Any]) -> dict[str, str]:
    metadata = pod["metadata"]
    found = {
        "namespace": metadata["namespace"],
        "pod_name": metadata["name"],
        "pod_phase": pod["status"]["phase"],
        "pod_ready": str(is_ready(pod)).lower(),
        "pod_node_name": pod["spec"].get("nodeName", ""),
        "pod_container_name": container["name"],
        "pod_container_port_name": port.get("name", ""),
        "pod_container_port_number": str(port["containerPort"]),
    }
    found |= {f"pod_label_{name_of(key)}": value for key, value in metadata["labels"].items()}
    return {f"__meta_kubernetes_{key}": value for key, value in found.items()}


def name_of(key: str) -> str:
    """A label's key as a part of a Prometheus label's name."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", key)


@contextmanager
def http_sd(account: Account) -> Iterator[Find]:
    """Answer on loopback until the block ends.

    While the API server does not answer it says so: Prometheus keeps the targets that it has.
    """

    class Handler(Quiet, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            try:
                body = json.dumps(targets(account.pods(self.path.strip("/")))).encode()
            except OSError as error:
                self.send_error(502, explain=str(error))
                return
            # Who asked may have given up.
            with suppress(BrokenPipeError):
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(body)

    with serving(Handler) as address:
        yield lambda namespace: {
            "http_sd_configs": [{"url": f"{address}{namespace}", "refresh_interval": ASKS}]
        }


@contextmanager
def kubernetes_sd(account: Account, directory: Path) -> Iterator[Find]:
    """Prometheus' own; the account's token is in a file of ``directory``."""
    token = directory / "token"
    token.touch(0o600)
    token.write_text(account.token)
    yield lambda namespace: {
        "kubernetes_sd_configs": [
            {
                "role": "pod",
                "namespaces": {"names": [namespace]},
                "api_server": account.url,
                "authorization": {"credentials_file": str(token)},
                "tls_config": {"ca_file": str(account.ca)},
            }
        ]
    }
