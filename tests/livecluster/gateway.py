"""A real Envoy in front of the engines: the sample, with addresses of pods."""

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from socket import socket
from typing import Any, Final

import yaml

from programs import CHECKOUT, end

SAMPLE: Final = CHECKOUT / "deploy" / "samples" / "gateways" / "envoy-ext-authz.yaml"
LIMITER_PORT: Final = 8080
START_SECONDS: Final = 30.0


def _program() -> Path:
    return Path(str(resources.files("envoy") / "_bin" / "envoy"))


@dataclass(frozen=True, slots=True)
class Gateway:
    """``url`` is where clients ask, ``admin`` where Envoy tells of itself."""

    url: str
    admin: str
    endpoints: Path
    """Where Envoy reads which limiters there are, as it would from DNS."""

    def point(self, limiters: Sequence[str]) -> None:
        """Ask these from now on."""
        resource = {
            "@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
            "cluster_name": "kvtier-limiter",
            "endpoints": [
                {"lb_endpoints": _endpoints([(address, LIMITER_PORT) for address in limiters])}
            ],
        }
        fresh = self.endpoints.with_suffix(".new")
        fresh.write_text(json.dumps({"resources": [resource]}))
        fresh.rename(self.endpoints)

    def let_in_unasked(self) -> int:
        """Requests that were let in because no limiter answered in time."""
        with urllib.request.urlopen(f"{self.admin}/stats?filter=ext_authz", timeout=10) as reply:
            lines = reply.read().decode().splitlines()
        return sum(
            int(line.rpartition(" ")[2]) for line in lines if "failure_mode_allowed:" in line
        )


def _free_port() -> int:
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def gateway(
    directory: Path, *, tier: str, engines: Sequence[str], limiters: Sequence[str]
) -> Iterator[Gateway]:
    """Envoy on loopback until the block ends.

    ``tier`` is NAMESPACE/NAME, ``engines`` and ``limiters`` are addresses of pods. Requests go to
    the engine with the fewest, as the gateways of inference do.
    """
    port, admin = _free_port(), _free_port()
    file, log = directory / "envoy.yaml", directory / "envoy.log"
    found = Gateway(
        url=f"http://127.0.0.1:{port}",
        admin=f"http://127.0.0.1:{admin}",
        endpoints=directory / "limiters.json",
    )
    found.point(limiters)
    config = _config(port, tier=tier, engines=engines, endpoints=found.endpoints)
    config["admin"] = {"address": {"socket_address": {"address": "127.0.0.1", "port_value": admin}}}
    file.write_text(yaml.safe_dump(config))
    with log.open("w") as output:
        process = subprocess.Popen(
            [
                *(_program(), "-c", file, "--concurrency", "1", "--disable-hot-restart"),
                *("--log-level", "warning", "--service-node", "test", "--service-cluster", "test"),
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        _wait(process, port, log)
        yield found
    finally:
        end(process, seconds=10)


def _wait(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        assert process.poll() is None, f"Envoy ended: {log.read_text()[-2000:]}"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
                return
        except urllib.error.HTTPError:
            return
        except OSError:
            assert time.monotonic() < deadline, f"Envoy does not listen: {log.read_text()[-2000:]}"
            time.sleep(0.1)


def _config(port: int, *, tier: str, engines: Sequence[str], endpoints: Path) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load(SAMPLE.read_text())
    listener = config["static_resources"]["listeners"][0]
    listener["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": port}
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    asks = manager["http_filters"][0]["typed_config"]["http_service"]
    asks["path_prefix"] = f"/v1/admit/{tier}"
    to_engines, to_limiters = config["static_resources"]["clusters"]
    _to(to_engines, [(address, 8000) for address in engines])
    to_engines["lb_policy"] = "LEAST_REQUEST"
    # Requests wait in the engines here, as many as there are.
    to_engines["circuit_breakers"] = {
        "thresholds": [
            {"max_connections": 100_000, "max_pending_requests": 100_000, "max_requests": 100_000}
        ]
    }
    to_limiters["type"] = "EDS"
    del to_limiters["load_assignment"], to_limiters["dns_refresh_rate"]
    to_limiters["eds_cluster_config"] = {
        "eds_config": {"path_config_source": {"path": str(endpoints)}}
    }
    return config


def _to(cluster: dict[str, Any], addresses: Sequence[tuple[str, int]]) -> None:
    cluster["type"] = "STATIC"
    cluster["load_assignment"]["endpoints"][0]["lb_endpoints"] = _endpoints(addresses)


def _endpoints(addresses: Sequence[tuple[str, int]]) -> list[dict[str, Any]]:
    return [
        {"endpoint": {"address": {"socket_address": {"address": host, "port_value": port}}}}
        for host, port in addresses
    ]
