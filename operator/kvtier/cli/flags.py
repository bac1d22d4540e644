"""Flags that several commands have."""

import argparse

from kvtier.cli.errors import BadInput

LOG_FORMATS = ("text", "json")
LOG_LEVELS = ("debug", "info", "warning")


def add_cluster(parser: argparse._ActionsContainer) -> None:
    """Where the cluster is, and the tier in it."""
    parser.add_argument("-n", "--namespace", help="its namespace (default: the context's)")
    parser.add_argument("--context", help="context of the kubeconfig (default: the current one)")
    parser.add_argument("--kubeconfig", help="file (default: $KUBECONFIG, then ~/.kube/config)")


def address(flag: str, text: str) -> str:
    """``text`` if it is HOST:PORT. Raises BadInput."""
    _, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise BadInput(f"{flag}: {text!r} is not HOST:PORT; write one such as 0.0.0.0:8080")
    return text
