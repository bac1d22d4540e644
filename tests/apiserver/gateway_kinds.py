"""The kinds of Envoy Gateway and of the Gateway API, from those projects' own CRDs."""

import re
from pathlib import Path

from apiserver_process import ApiServer

from programs import go_module

ENVOY_GATEWAY = "github.com/envoyproxy/gateway@v1.9.1"
ENVOY_GATEWAY_SUM = "h1:vAVp6/AlBXJ1aOhp1mxL7fNEzVEfjADUguUhm2wzxQY="
GATEWAY_API = "sigs.k8s.io/gateway-api"
GENERATED = "charts/gateway-helm/charts/crds/crds/generated"
CRDS = {
    "backendtrafficpolicies.gateway.envoyproxy.io": GENERATED,
    "clienttrafficpolicies.gateway.envoyproxy.io": GENERATED,
    "securitypolicies.gateway.envoyproxy.io": GENERATED,
    "gateways.gateway.networking.k8s.io": "config/crd/standard",
    "httproutes.gateway.networking.k8s.io": "config/crd/standard",
    "referencegrants.gateway.networking.k8s.io": "config/crd/standard",
}


def teach(apiserver: ApiServer) -> None:
    """Make the server know these kinds, for as long as it runs.

    Raises CannotStart, in one line, when the files cannot be fetched.
    """
    for path in _crd_files():
        made = apiserver.kubectl("create", "-f", str(path))
        assert made.code == 0, made.message
    waited = apiserver.kubectl(
        "wait",
        "--for=condition=Established",
        "--timeout=50s",
        *(f"crd/{name}" for name in CRDS),
    )
    assert waited.code == 0, waited.message


def gateway_api() -> Path:
    """The module of the Gateway API that Envoy Gateway's go.mod names."""
    envoy_gateway = go_module(ENVOY_GATEWAY, checksum=ENVOY_GATEWAY_SUM)
    named = re.search(rf"^\s{GATEWAY_API} (\S+)", (envoy_gateway / "go.mod").read_text(), re.M)
    assert named
    pattern = rf"^{GATEWAY_API} {re.escape(named[1])} (\S+)$"
    checksum = re.search(pattern, (envoy_gateway / "go.sum").read_text(), re.M)
    assert checksum
    return go_module(f"{GATEWAY_API}@{named[1]}", checksum=checksum[1])


def _crd_files() -> list[Path]:
    """The CRDs of both."""
    envoy_gateway = go_module(ENVOY_GATEWAY, checksum=ENVOY_GATEWAY_SUM)
    found = []
    for name, folder in CRDS.items():
        plural, group = name.split(".", 1)
        module = envoy_gateway if folder == GENERATED else gateway_api()
        found.append(module / folder / f"{group}_{plural}.yaml")
    return found
