"""``kvtier status``: one tier as its operator sees it, on one screen.

Exits 0 for a tier that is Ready, 1 for one that is not, 2 when it cannot be asked.
"""

import argparse
from datetime import UTC, datetime
from typing import Final

from kvtier.cli import flags, live, output, status_report
from kvtier.cli.active import Controller, controller
from kvtier.cli.live_pool import read_pool
from kvtier.cli.status_generations import Pool
from kvtier.cluster.protocol import Cluster, Object

NOT_READY: Final = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the tier")
    flags.add_cluster(parser)
    parser.add_argument("-o", "--output", choices=("table", "json", "yaml"), default="table")
    parser.epilog = "exit codes: 0 Ready, 1 not Ready, 2 it cannot be asked"


def run(arguments: argparse.Namespace) -> int:
    async def read(cluster: Cluster, namespace: str) -> tuple[Object, Controller, Pool]:
        body = await live.read_tier(cluster, namespace, arguments.name)
        pool = await read_pool(cluster, namespace, arguments.name)
        return body, await controller(cluster, now=datetime.now(UTC)), pool

    body, runs, pool = live.ask(arguments, read)
    show(body, form=arguments.output, runs=runs, pool=pool)
    return 0 if status_report.is_ready(body) else NOT_READY


def show(body: Object, *, form: str, runs: Controller, pool: Pool) -> None:
    """Print the tier as ``table``, ``json`` or ``yaml``."""
    if form == "table":
        text = status_report.text(body, now=datetime.now(UTC), runs=runs, pool=pool)
    else:
        text = output.document(status_report.document(body, runs=runs, pool=pool), form)
    print(text, end="")
