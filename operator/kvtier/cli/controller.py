"""``kvtier controller``: run the operator's process."""

import argparse
import asyncio
import os

import kopf

from kvtier.api.scalars import parse_duration
from kvtier.api.types import StoreVersion
from kvtier.cli.errors import BadInput
from kvtier.cli.flags import LOG_FORMATS, LOG_LEVELS, address
from kvtier.cluster.connect import NoCluster
from kvtier.process import Options, run_controller


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags. The chart sets all of them."""
    parser.add_argument(
        "--namespace",
        action="append",
        default=[],
        help="watch only this namespace (may be repeated; all namespaces without it)",
    )
    parser.add_argument(
        "--lease-namespace",
        default=os.environ.get("POD_NAMESPACE", "default"),
        help="namespace of the Lease that one active controller holds",
    )
    parser.add_argument("--lease-name", default="kvtier", help="name of that Lease")
    parser.add_argument(
        "--resync",
        default="5m",
        help="how often a tier is read in full, as a duration such as 5m",
    )
    parser.add_argument(
        "--listen", default="127.0.0.1:8080", help="address of /metrics, /healthz and /readyz"
    )
    parser.add_argument(
        "--valkey-image",
        action="append",
        default=[],
        metavar="SERIES=IMAGE",
        help="image of a Valkey series, for tiers that name none (may be repeated)",
    )
    parser.add_argument(
        "--probe-image", metavar="IMAGE", help="image of kvtier, for probes (without it: none)"
    )
    parser.add_argument(
        "--observe-engines",
        choices=("true", "false"),
        default="true",
        help="read the engines' metrics once a minute (default: true)",
    )
    parser.add_argument(
        "--limiter-service",
        metavar="HOST:PORT",
        help="headless Service of the limiters, such as kvtier-peers.kvtier-system.svc:8080"
        " (without it nobody is asked, and planned work waits for nobody)",
    )
    parser.add_argument(
        "--envoy-gateway",
        action="store_true",
        help="write BackendTrafficPolicies of Envoy Gateway for tiers that ask for them",
    )
    parser.add_argument("--log-format", choices=LOG_FORMATS, default="text")
    parser.add_argument("--log-level", choices=LOG_LEVELS, default="info")


def run(arguments: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT (exit code 0), or until the Lease is lost (1)."""
    options = Options(
        namespaces=tuple(arguments.namespace),
        lease_namespace=arguments.lease_namespace,
        lease_name=arguments.lease_name,
        identity=os.environ.get("POD_NAME") or os.uname().nodename,
        pod_uid=os.environ.get("POD_UID", ""),
        resync=_seconds("--resync", arguments.resync),
        listen=address("--listen", arguments.listen),
        valkey_images=dict(_image(text) for text in arguments.valkey_image),
        probe_image=arguments.probe_image,
        observe_engines=arguments.observe_engines == "true",
        limiters=_limiters(arguments.limiter_service),
        envoy_gateway=arguments.envoy_gateway,
    )
    kopf.configure(
        debug=arguments.log_level == "debug",
        quiet=arguments.log_level == "warning",
        log_format=kopf.LogFormat.JSON if arguments.log_format == "json" else kopf.LogFormat.FULL,
    )
    try:
        return asyncio.run(run_controller(options))
    except NoCluster as error:
        raise BadInput(str(error)) from None


def _seconds(flag: str, text: str) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise BadInput(f"{flag}: {error}") from None
    if seconds < 1:
        raise BadInput(f"{flag}: {text} is below 1s; a resync reads every tier in full")
    return seconds


def _limiters(text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    host, _, port = address("--limiter-service", text).rpartition(":")
    if not host or not int(port):
        raise BadInput(
            f"--limiter-service: {text!r} names no host and port; write one such as"
            " kvtier-peers.kvtier-system.svc:8080"
        )
    return host, int(port)


def _image(text: str) -> tuple[str, str]:
    series, equals, image = text.partition("=")
    known = [version.value for version in StoreVersion]
    if not equals or not image or series not in known:
        raise BadInput(
            f"--valkey-image: {text!r} is not SERIES=IMAGE; series are {', '.join(known)}"
        )
    return series, image
