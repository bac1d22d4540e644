"""``kvtier webhook``: judge tiers at apply time, and inject pods, for the API server."""

import argparse
import asyncio
import os
from pathlib import Path

from kvtier.cli import logs
from kvtier.cli.errors import BadInput
from kvtier.cli.flags import LOG_FORMATS, LOG_LEVELS, address
from kvtier.webhook.run import NoApiServer, Options, run_webhook


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags. The chart sets all of them."""
    parser.add_argument("--listen", default="127.0.0.1:8443", help="address of /validate, by HTTPS")
    parser.add_argument(
        "--metrics-listen",
        default="127.0.0.1:8080",
        help="address of /metrics, /healthz and /readyz, by HTTP",
    )
    parser.add_argument(
        "--tls-certificate",
        required=True,
        metavar="FILE",
        help="certificate chain in PEM; read again when it changes",
    )
    parser.add_argument(
        "--tls-key", required=True, metavar="FILE", help="its private key in PEM, without password"
    )
    parser.add_argument(
        "--inject",
        choices=("true", "false"),
        default="false",
        help="serve /inject too, which gives pods what they need of their tier (default: false)",
    )
    parser.add_argument("--log-format", choices=LOG_FORMATS, default="text")
    parser.add_argument("--log-level", choices=LOG_LEVELS, default="info")


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT (exit code 0)."""
    options = Options(
        listen=address("--listen", arguments.listen),
        metrics_listen=address("--metrics-listen", arguments.metrics_listen),
        certificate=Path(arguments.tls_certificate),
        key=Path(arguments.tls_key),
        inject=arguments.inject == "true",
        instance=os.environ.get("POD_NAME") or os.uname().nodename,
    )
    logs.configure(form=arguments.log_format, level=arguments.log_level)
    try:
        return asyncio.run(run_webhook(options))
    except NoApiServer as error:
        raise BadInput(str(error)) from None
    except OSError as error:
        raise BadInput(f"cannot listen: {error.strerror}; choose another address") from None
