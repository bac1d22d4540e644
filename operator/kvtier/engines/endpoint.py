"""Pure: where an engine shows its metrics, by what its pod says."""

import ipaddress
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

DEFAULT_PORT: Final = 8000
"""Of ``vllm serve``."""
DEFAULT_PATH: Final = "/metrics"
PORT_NAMES: Final = ("metrics", "http-metrics", "prometheus", "http")
"""Names of container ports that are taken, the first of these first."""
LONGEST_PATH: Final = 128
_PREFIX: Final = "prometheus.io/"
_IN_PATHS: Final = frozenset(string.ascii_letters + string.digits + "/._-~")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Plain HTTP, at the pod itself."""

    host: str
    port: int
    path: str = DEFAULT_PATH


def endpoint_of(pod: Mapping[str, Any]) -> Endpoint | None:
    """Where to ask; None for a pod that has no address, or that does not want to be asked so.

    Annotations ``prometheus.io/scrape``, ``scheme``, ``port`` and ``path`` count first, then a
    container port of a known name, then port 8000 and /metrics. A pod can name no host but itself.
    """
    told = pod["metadata"].get("annotations") or {}
    host = _address(pod.get("status", {}).get("podIP"))
    wanted = told.get(f"{_PREFIX}scrape", "true") == "true"
    if host is None or not wanted or told.get(f"{_PREFIX}scheme", "http") != "http":
        return None
    path = told.get(f"{_PREFIX}path", DEFAULT_PATH)
    if not path.startswith("/") or len(path) > LONGEST_PATH or not _IN_PATHS.issuperset(path):
        path = DEFAULT_PATH
    port = _port(told.get(f"{_PREFIX}port")) or _named_port(pod) or DEFAULT_PORT
    return Endpoint(host=host, port=port, path=path)


def _address(text: object) -> str | None:
    try:
        found = ipaddress.ip_address(str(text))
    except ValueError:
        return None
    elsewhere = found.is_loopback or found.is_link_local or found.is_unspecified
    return None if elsewhere or found.is_multicast else str(found)


def _named_port(pod: Mapping[str, Any]) -> int | None:
    ports = {
        each.get("name"): each.get("containerPort")
        for container in pod.get("spec", {}).get("containers", ())
        for each in container.get("ports") or ()
    }
    found = (_port(ports.get(name)) for name in PORT_NAMES)
    return next((port for port in found if port), None)


def _port(value: object) -> int | None:
    text = str(value)
    if not text.isascii() or not text.isdigit() or len(text) > 5:
        return None
    return int(text) if 0 < int(text) < 65536 else None
