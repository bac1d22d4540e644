"""A tier file that pays when long, with changes of it; a server that has one tier."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import yaml
from status_bodies import lease

Body = dict[str, Any]
NewConfig = Callable[..., Path]

TIER: Mapping[str, Any] = {
    "apiVersion": "kvtier.dev/v1alpha1",
    "kind": "KVCacheTier",
    "metadata": {"name": "llama-prefill", "namespace": "models"},
    "spec": {
        "model": {
            "name": "meta-llama/Llama-3.1-70B-Instruct",
            "revision": "1605565b47bb9346c5515c34102e054115b4f98b",
            "kvCacheDtype": "bfloat16",
            "layout": {"gqa": {"layers": 80, "kvHeads": 8, "headDim": 128}},
        },
        "pool": {
            "ranks": 8,
            "striping": "Shard",
            "prefillRate": [{"tokensPerSecond": 5000}],
            "hitLatency": "300ms",
            "hitEngineTime": "30ms",
        },
        "placement": {"links": [{"domain": "zone", "bitsPerSecond": "25G", "roundTrip": "50us"}]},
        "store": {"memoryPerRank": "64Gi"},
    },
}


@pytest.fixture
def tier_file(tmp_path: Path) -> Callable[..., Path]:
    def write(changes: Mapping[str, Any] | None = None) -> Path:
        """The file with values at dotted paths of the spec; None takes a field out."""
        document = deepcopy(dict(TIER))
        for path, value in (changes or {}).items():
            *parents, last = path.split(".")
            node = document["spec"]
            for parent in parents:
                node = node[parent]
            if value is None:
                del node[last]
            else:
                node[last] = value
        file = tmp_path / "tier.yaml"
        file.write_text(yaml.safe_dump(document))
        return file

    return write


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[NewConfig]:
    """Writes the kubeconfig of a server that has this tier in namespace ``serving``, or none.

    ``leases`` are those of controllers; ``where`` is where they may be read. Without ``pods``
    nobody may list any.
    """
    running: list[ThreadingHTTPServer] = []

    def serve(
        body: Body | None,
        leases: list[Body] | None = None,
        where: str = "/leases",
        pods: list[Body] | None = None,
        config_maps: Mapping[str, Body] | None = None,
        events: list[Body] | None = None,
        tiers: list[Body] | None = None,
    ) -> Path:
        held = [lease()] if leases is None else leases

        def answer(path: str) -> tuple[int, Body]:
            path, _, query = path.partition("?")
            if path.endswith("/leases"):
                assert "labelSelector=app.kubernetes.io" in query
                if where and path.endswith(where):
                    return 200, {"kind": "LeaseList", "metadata": {}, "items": held}
                return 403, {"kind": "Status", "reason": "Forbidden", "message": "no"}
            if body is not None and path.endswith("/namespaces/serving/kvcachetiers/chat"):
                return 200, body
            if path.endswith("/namespaces/serving/events"):
                if events is None:
                    return 403, {"kind": "Status", "reason": "Forbidden", "message": "no"}
                assert "involvedObject.name=chat" in unquote(query)
                return 200, {"kind": "EventList", "metadata": {}, "items": events}
            if tiers is not None and path.endswith("/kvcachetiers"):
                asked = [each for each in tiers if each["metadata"]["namespace"] in path]
                found = asked if "/namespaces/" in path else tiers
                return 200, {"kind": "KVCacheTierList", "metadata": {}, "items": found}
            if pods is not None and path.endswith("/namespaces/serving/pods"):
                assert "labelSelector=kvtier.dev/tier=chat" in unquote(query)
                return 200, {"kind": "PodList", "metadata": {}, "items": pods}
            if (name := path.rpartition("/configmaps/")[2]) in (config_maps or {}):
                return 200, {"metadata": {"name": name}, "data": (config_maps or {})[name]}
            if path.endswith("/pods"):
                return 403, {"kind": "Status", "reason": "Forbidden", "message": "no"}
            missing = {"kind": "Status", "reason": "NotFound", "message": "no such tier"}
            if name := path.partition("/kvcachetiers/")[2]:
                # Without it a server says that it does not have the kind.
                missing["details"] = {"name": name}
            return 404, missing

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                code, found = answer(self.path)
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(json.dumps(found).encode())

            def log_message(self, *_: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        running.append(server)
        config = tmp_path / "kubeconfig"
        config.write_text(
            "apiVersion: v1\nkind: Config\ncurrent-context: here\n"
            "contexts: [{name: here, context: {cluster: c, user: u, namespace: serving}},"
            " {name: bare, context: {cluster: c, user: u}}]\n"
            f"clusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:{server.server_port}'}}}}]"
            "\nusers: [{name: u, user: {token: t}}]\n"
        )
        return config

    yield serve
    for server in running:
        server.shutdown()
        server.server_close()
