"""``kvtier probe-worker``: measure a tier's ranks from this node. The operator's Job runs it.

Exits 0 with figures, 1 without: the result says why. It writes nothing but the result.
"""

import argparse
import signal
import ssl
import sys
import threading
from pathlib import Path
from typing import Final

from kvtier.cli.errors import BadInput
from kvtier.probe.config import CONFIG_FILE, BadConfig, ProbeConfig, parse
from kvtier.probe.result import to_json
from kvtier.probe.worker import run_probe
from kvtier.redact import redact
from kvtier.render.names import CA_KEY, TOKEN_KEY
from kvtier.store.tls import client_context

NO_FIGURES: Final = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--secret-dir",
        required=True,
        type=Path,
        metavar="DIR",
        help=f"where the probe's Secret is mounted: {CONFIG_FILE}, {TOKEN_KEY}, {CA_KEY}",
    )
    parser.add_argument("--node", default="", metavar="NAME", help="the node that this runs on")
    parser.add_argument(
        "--result",
        type=Path,
        metavar="FILE",
        help="write the result there, such as to /dev/termination-log (standard output)",
    )
    parser.epilog = "exit codes: 0 measured, 1 not measured (the result says why), 2 bad input"


def run(arguments: argparse.Namespace) -> int:
    config = _config(arguments.secret_dir, node=arguments.node)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    result = run_probe(config, stop=stop)
    text = redact(to_json(result), config.password)
    if arguments.result is None:
        print(text)
    else:
        arguments.result.write_text(text, "ascii")
    for trouble in result.troubles:
        ranks = ", ".join(map(str, trouble.ranks))
        print(redact(f"kvtier: rank {ranks}: {trouble.text}", config.password), file=sys.stderr)
    return NO_FIGURES if result.troubles else 0


def _config(directory: Path, *, node: str) -> ProbeConfig:
    ca = directory / CA_KEY
    try:
        config = parse(
            (directory / CONFIG_FILE).read_text("utf-8"),
            token=(directory / TOKEN_KEY).read_text("utf-8"),
            ca=ca.read_text("ascii") if ca.exists() else None,
            node=node,
        )
        if config.ca is not None:
            client_context(config.ca)
    except BadConfig as error:
        raise BadInput(str(error)) from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{directory}: not text ({error.reason})") from None
    except (ssl.SSLError, ValueError) as error:
        raise BadInput(f"{CA_KEY}: not usable ({error}); mount the whole Secret") from None
    return config
