"""Reading the API server in raw JSON, cheap enough to poll on a small machine.

Whatever a person would do goes through kubectl; this only looks.
"""

import http.client
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import urllib3
import yaml

Object = dict[str, Any]

_PREFIXES = {
    "kvcachetiers": "/apis/kvtier.dev/v1alpha1",
    "statefulsets": "/apis/apps/v1",
    "deployments": "/apis/apps/v1",
    "leases": "/apis/coordination.k8s.io/v1",
    "controllerrevisions": "/apis/apps/v1",
    "endpointslices": "/apis/discovery.k8s.io/v1",
    "customresourcedefinitions": "/apis/apiextensions.k8s.io/v1",
}


class Api:
    """The cluster's administrator, by the certificates of a kubeconfig."""

    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self._server = cluster["server"]
        self._tls = ssl.create_default_context(cafile=cluster["certificate-authority"])
        self._tls.load_cert_chain(user["client-certificate"], user["client-key"])
        self._pool = urllib3.PoolManager(
            maxsize=8,
            ssl_context=self._tls,
            timeout=urllib3.Timeout(connect=5, read=30),
        )

    def close(self) -> None:
        self._pool.clear()

    def get(self, plural: str, namespace: str, name: str) -> Object | None:
        """One object, None if there is none."""
        reply = self._pool.request("GET", self._url(plural, namespace, name))
        if reply.status == 404:
            return None
        return self._body(reply)

    def list(self, plural: str, namespace: str = "", *, selector: str = "") -> list[Object]:
        """Objects of one kind; of all namespaces if none is named."""
        url = self._url(plural, namespace)
        reply = self._pool.request("GET", url, fields={"labelSelector": selector})
        items: list[Object] = self._body(reply)["items"]
        return items

    def patch(self, plural: str, namespace: str, name: str, patch: Object) -> None:
        """Merge-patch one object; ``name`` may go on with a slash and a subresource."""
        reply = self._pool.request(
            "PATCH",
            self._url(plural, namespace, name),
            body=json.dumps(patch),
            headers={"Content-Type": "application/merge-patch+json"},
        )
        self._body(reply)

    def log(self, namespace: str, pod: str) -> str:
        """What the pod's only container has said so far."""
        reply = self._pool.request("GET", self._url("pods", namespace, f"{pod}/log"))
        text = reply.data.decode()
        assert reply.status == 200, f"{reply.status}: {text}"
        return text

    @contextmanager
    def watch(
        self, plural: str, namespace: str, *, seen: Callable[[Object], None]
    ) -> Iterator[None]:
        """Call ``seen`` with each object of the namespace that comes or changes meanwhile."""
        start = self._body(self._pool.request("GET", self._url(plural, namespace)))
        version = start["metadata"]["resourceVersion"]
        path = self._url(plural, namespace).removeprefix(self._server)
        connection = http.client.HTTPSConnection(
            self._server.removeprefix("https://"), context=self._tls
        )
        connection.request("GET", f"{path}?watch=1&resourceVersion={version}")
        link = connection.sock
        reply = connection.getresponse()

        def run() -> None:
            with suppress(OSError, http.client.HTTPException):
                for line in reply:
                    seen(json.loads(line)["object"])

        thread = threading.Thread(target=run, name=f"watch-{plural}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            # What ends a read that waits for the next event.
            link.shutdown(socket.SHUT_RDWR)
            thread.join(timeout=10)
            connection.close()

    def _url(self, plural: str, namespace: str = "", name: str = "") -> str:
        within = f"/namespaces/{namespace}" if namespace else ""
        below = f"/{name}" if name else ""
        return f"{self._server}{_PREFIXES.get(plural, '/api/v1')}{within}/{plural}{below}"

    @staticmethod
    def _body(reply: urllib3.BaseHTTPResponse) -> Object:
        body: Object = json.loads(reply.data)
        assert reply.status == 200, f"{reply.status}: {body.get('message')}"
        return body


def condition(obj: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """One condition of an object's status, empty if it has none of this type."""
    conditions = (obj.get("status") or {}).get("conditions", [])
    return next((each for each in conditions if each["type"] == kind), {})


def is_ready(obj: Mapping[str, Any]) -> bool:
    return condition(obj, "Ready").get("status") == "True"
