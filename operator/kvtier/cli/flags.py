"""Flags that several commands have."""

import argparse
from collections.abc import Callable

from kvtier.api.scalars import parse_duration
from kvtier.cli.errors import BadInput

LOG_FORMATS = ("text", "json")
LOG_LEVELS = ("debug", "info", "warning")


def add_cluster(parser: argparse._ActionsContainer, *, everywhere: bool = False) -> None:
    """Where the cluster is, and the tier in it; ``everywhere``: or all tiers of the cluster."""
    parser.add_argument("-n", "--namespace", help="its namespace (default: the context's)")
    if everywhere:
        parser.add_argument("-A", "--all-namespaces", action="store_true", help="all namespaces")
    parser.add_argument("--context", help="context of the kubeconfig (default: the current one)")
    parser.add_argument("--kubeconfig", help="file (default: $KUBECONFIG, then ~/.kube/config)")


def add_name(parser: argparse.ArgumentParser, *, everything: str = "") -> None:
    """Which tier; it may be left out where ``everything`` says what is meant then."""
    parser.add_argument(
        "name",
        metavar="NAME",
        type=_name,
        nargs="?" if everything else None,
        help=f"name of the tier{f' (default: {everything})' if everything else ''}",
    )


def _name(text: str) -> str:
    if not text:
        # Such as a variable of a script that is not set.
        raise argparse.ArgumentTypeError("it is empty; name a tier")
    return text


def add_request(parser: argparse.ArgumentParser, *, timeout: str, longest: str) -> None:
    """What asks the operator for something and waits for it: which tier, and for how long."""
    add_name(parser)
    add_cluster(parser)
    parser.add_argument("-o", "--output", choices=("table", "json", "yaml"), default="table")
    parser.add_argument(
        "--timeout",
        type=_seconds_to(longest),
        default=timeout,
        metavar="TIME",
        help=f"how long to wait, from 1s to {longest} ({timeout})",
    )
    parser.add_argument("--no-wait", action="store_true", help="ask for it, and do not wait")


def _seconds_to(longest: str) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            seconds = parse_duration(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        if not 1 <= seconds <= parse_duration(longest):
            raise argparse.ArgumentTypeError(f"{text} is not from 1s to {longest}")
        return seconds

    return parse


def address(flag: str, text: str) -> str:
    """``text`` if it is HOST:PORT. Raises BadInput."""
    _, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise BadInput(f"{flag}: {text!r} is not HOST:PORT; write one such as 0.0.0.0:8080")
    return text
