"""Envoy Gateway's own controller with a real Envoy on this machine, against a real API server.

Its resources come from the API server and its Envoys are processes here: provider Custom, resource
Kubernetes, infrastructure Host. It listens on ports of its own choice (18000 and 19000 and a few
after them), so one can run at a time.
"""

import contextlib
import importlib.util
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import urllib3
import yaml

sys.path.insert(0, str(Path(__file__).parents[1] / "apiserver"))

from apiserver_process import ApiServer
from gateway_kinds import ENVOY_GATEWAY, ENVOY_GATEWAY_SUM, GENERATED, gateway_api

from programs import end, go_module, go_program

BINARY = "KVTIER_ENVOY_GATEWAY"
"""Environment variable: a built envoy-gateway. Without it one is built into the cache, once."""
ENVOY = "1.40.0"
IN_ROOT = """
set -e
mkdir "$NEW_ROOT"
mount -t tmpfs tmpfs "$NEW_ROOT"
for each in /*; do
  here="$NEW_ROOT$each"
  if [ -L "$each" ]; then cp -P "$each" "$here"
  elif [ -d "$each" ]; then mkdir "$here"; mount --rbind "$each" "$here"
  fi
done
mkdir "$NEW_ROOT/certs"
mount --bind "$CERTS" "$NEW_ROOT/certs"
exec chroot "$NEW_ROOT" "$@"
"""
"""With resources from an API server it reads its certificates in /certs, whatever it is told: it
gets a root of its own, with all that is in the machine's and that directory. Needs to be root."""
NAMESPACE = "prod"
OBJECTS = """
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: envoy}
spec:
  controllerName: gateway.envoyproxy.io/gatewayclass-controller
  parametersRef: {group: gateway.envoyproxy.io, kind: EnvoyProxy, name: here, namespace: prod}
---
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: EnvoyProxy
metadata: {name: here, namespace: prod}
spec:
  provider: {type: Host, host: {envoyVersion: 1.40.0}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: prod}
spec:
  gatewayClassName: envoy
  listeners: [{name: http, port: LISTEN, protocol: HTTP}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: chat, namespace: prod}
spec:
  parentRefs: [{name: edge}]
  rules:
    - backendRefs: [{group: gateway.envoyproxy.io, kind: Backend, name: engines}]
---
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: Backend
metadata: {name: engines, namespace: prod}
spec:
  endpoints: [{ip: {address: 127.0.0.1, port: ENGINES}}]
"""


def binary() -> Path:
    """The envoy-gateway to run. Raises CannotStart, in one line, when there is none to be had."""
    return go_program(
        "envoy-gateway", module=ENVOY_GATEWAY, checksum=ENVOY_GATEWAY_SUM, given=BINARY
    )


def teach(server: ApiServer) -> None:
    """Make the server know all kinds of Envoy Gateway and of the Gateway API."""
    envoy_gateway = go_module(ENVOY_GATEWAY, checksum=ENVOY_GATEWAY_SUM)
    for folder in (envoy_gateway / GENERATED, gateway_api() / "config/crd/standard"):
        for path in sorted(folder.glob("*_*.yaml")):
            made = server.kubectl("create", "-f", str(path))
            assert made.code == 0, made.message
    waited = server.kubectl("wait", "--for=condition=Established", "--timeout=50s", "crd", "--all")
    assert waited.code == 0, waited.message


@contextlib.contextmanager
def envoy_gateway(server: ApiServer, directory: Path) -> Iterator[Path]:
    """Run it until the end of the block; yields its log."""
    homes = {name: directory / name for name in ("config", "data", "state", "run")}
    made = subprocess.run(
        [str(binary()), "certgen", "--local", "--config-home", str(homes["config"])],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    # Where it looks before it would fetch one.
    found = importlib.util.find_spec("envoy")
    assert found is not None
    assert found.origin is not None
    envoy = homes["data"] / "envoy-versions" / ENVOY / "bin" / "envoy"
    envoy.parent.mkdir(parents=True)
    envoy.symlink_to(Path(found.origin).parent / "_bin" / "envoy")
    config = {
        "apiVersion": "gateway.envoyproxy.io/v1alpha1",
        "kind": "EnvoyGateway",
        "gateway": {"controllerName": "gateway.envoyproxy.io/gatewayclass-controller"},
        "provider": {
            "type": "Custom",
            "custom": {
                "resource": {
                    "type": "Kubernetes",
                    "kubernetes": {"leaderElection": {"disable": True}},
                },
                "infrastructure": {
                    "type": "Host",
                    "host": {
                        "configHome": str(homes["config"]),
                        "dataHome": str(homes["data"]),
                        "stateHome": str(homes["state"]),
                        "runtimeDir": str(homes["run"]),
                    },
                },
            },
        },
        "extensionApis": {"enableBackend": True},
    }
    path, log = directory / "envoy-gateway.yaml", directory / "envoy-gateway.log"
    path.write_text(yaml.safe_dump(config))
    with log.open("w") as output:
        process = subprocess.Popen(
            [
                *("unshare", "--mount", "sh", "-c", IN_ROOT, "sh"),
                *(str(binary()), "server", "--config-path", str(path)),
            ],
            env={
                **os.environ,
                "KUBECONFIG": str(server.kubeconfig),
                "NEW_ROOT": str(directory / "root"),
                "CERTS": str(homes["config"] / "certs" / "envoy-gateway"),
            },
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield log
    finally:
        end(process)


class Server:
    """A small HTTP server on a port of its own; ``answer`` is the body of every GET."""

    def __init__(self, answer: str = "ok") -> None:
        self.answer = answer
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                body = outer.answer.encode()
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Not a word."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> "Server":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Client:
    """Asks the Gateway, so many times a second."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/"
        self._pool = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(5))

    def ask(self) -> int:
        """The status, 0 without an answer."""
        try:
            return int(self._pool.request("GET", self._url).status)
        except urllib3.exceptions.HTTPError:
            return 0

    def run(self, *, rate: float, seconds: float) -> Counter[int]:
        """Answers by status."""
        began, found = time.monotonic(), Counter[int]()
        for number in range(int(rate * seconds)):
            time.sleep(max(0.0, began + number / rate - time.monotonic()))
            found[self.ask()] += 1
        return found

    def until(self, wanted: int, *, rate: float, seconds: float, in_a_row: int = 1) -> float:
        """Seconds until so many answers in a row were ``wanted``; of the first of them."""
        began, count, since = time.monotonic(), 0, 0.0
        while time.monotonic() - began < seconds:
            now = time.monotonic()
            count = count + 1 if self.ask() == wanted else 0
            since = now if count == 1 else since
            if count == in_a_row:
                return since - began
            time.sleep(max(0.0, now + 1 / rate - time.monotonic()))
        raise AssertionError(f"not {in_a_row} times {wanted} in a row within {seconds} s")
