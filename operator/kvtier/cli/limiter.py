"""``kvtier limiter``: answer gateways whether a request may go to the engines now."""

import argparse
import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from kvtier.cli import logs
from kvtier.cli.errors import BadInput
from kvtier.cli.flags import LOG_FORMATS, LOG_LEVELS, address
from kvtier.cluster.connect import NoCluster, connect
from kvtier.limiter.observe import Observer
from kvtier.limiter.run import Options, run_limiter
from kvtier.reconcile.clock import Clock


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags. The chart sets all of them."""
    parser.add_argument(
        "--listen",
        default="0.0.0.0:8080",
        help="address of /v1/admit, /state, /peers, /metrics, /healthz and /readyz",
    )
    parser.add_argument(
        "--peers-service",
        metavar="NAME:PORT",
        help="headless Service of all replicas, and their port (without it: no other replica)",
    )
    parser.add_argument(
        "--namespaces",
        action="append",
        default=[],
        metavar="NAMESPACE",
        help="know only the tiers of this namespace (may be repeated; all namespaces without it)",
    )
    parser.add_argument(
        "--prometheus",
        metavar="URL",
        help="ask it for the engines' figures (without it: the engines themselves)",
    )
    parser.add_argument(
        "--replica-name",
        default=os.environ.get("POD_NAME") or os.uname().nodename,
        help="name in /state and logs (default: $POD_NAME, then the host's)",
    )
    parser.add_argument("--log-format", choices=LOG_FORMATS, default="text")
    parser.add_argument("--log-level", choices=LOG_LEVELS, default="info")


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT (exit code 0)."""
    options = Options(
        listen=address("--listen", arguments.listen),
        replica=arguments.replica_name,
        peers=_peers(arguments.peers_service),
        namespaces=tuple(arguments.namespaces),
        prometheus=_url(arguments.prometheus),
    )
    logs.configure(form=arguments.log_format, level=arguments.log_level)
    try:
        return asyncio.run(run_limiter(options, observe=_observing))
    except NoCluster as error:
        raise BadInput(str(error)) from None
    except OSError as error:
        raise BadInput(f"cannot listen: {error.strerror}; choose another address") from None


@asynccontextmanager
async def _observing(options: Options, clock: Clock) -> AsyncIterator[Observer]:
    async with connect() as cluster:
        yield Observer(
            cluster, namespaces=options.namespaces, prometheus=options.prometheus, clock=clock
        )


def _peers(text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    name, _, port = address("--peers-service", text).rpartition(":")
    if not name:
        raise BadInput(f"--peers-service: {text!r} has no name; write NAME:PORT")
    return name, int(port)


def _url(text: str | None) -> str | None:
    if text is None:
        return None
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadInput(
            f"--prometheus: {text!r} is no URL; write one such as http://prometheus:9090"
        )
    return text
