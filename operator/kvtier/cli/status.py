"""``kvtier status``: one tier as its operator sees it on one screen, or all of them, a line each.

Exits 0 for a tier that is Ready, 1 for one that is not (of several: if one is not), 2 when the
cluster cannot be asked.
"""

import argparse
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from kvtier.cli import colour, flags, live, output, status_list, status_report, terminal
from kvtier.cli.active import Controller, controller
from kvtier.cli.changes import History
from kvtier.cli.errors import BadInput
from kvtier.cli.live_events import read_events
from kvtier.cli.live_pool import read_pool
from kvtier.cli.screen import WIDTH
from kvtier.cli.status_generations import Pool
from kvtier.cluster.protocol import Cluster, Object

NOT_READY: Final = 1
RUNBOOKS: Final = "KVTIER_RUNBOOKS"
"""The variable with the URL under which an organisation serves the runbooks."""


@dataclass(frozen=True, slots=True)
class View:
    """A tier and what is known around it."""

    body: Object
    runs: Controller
    pool: Pool
    history: History


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags.add_name(parser, everything="all, a line each")
    flags.add_cluster(parser, everywhere=True)
    parser.add_argument("-o", "--output", choices=("table", "json", "yaml"), default="table")
    parser.epilog = (
        "exit codes: 0 Ready, 1 not Ready (of several: one of them), 2 it cannot be asked\n"
        f"{RUNBOOKS} may hold the URL under which you serve docs/runbooks.md. Colours are for\n"
        "terminals; NO_COLOR=1 turns them off."
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.name is None:
        return _all(arguments)
    if arguments.all_namespaces:
        raise BadInput("-A: and a name too; leave out one of them")

    async def read(cluster: Cluster, namespace: str) -> View:
        return await look(cluster, namespace, arguments.name)

    view = live.ask(arguments, read)
    show(view, form=arguments.output)
    return 0 if status_report.is_ready(view.body) else NOT_READY


async def look(cluster: Cluster, namespace: str, name: str) -> View:
    """What the screen shows. Raises BadInput without the tier, Unavailable without an answer."""
    body = await live.read_tier(cluster, namespace, name)
    pool = await read_pool(cluster, namespace, name)
    history = await read_events(cluster, namespace, name)
    return View(body, await controller(cluster, now=datetime.now(UTC)), pool, history)


def show(view: View, *, form: str) -> None:
    """Print the tier as ``table``, ``json`` or ``yaml``."""
    _print(render(view, form=form, width=terminal.width()), form=form)


def render(view: View, *, form: str, width: int | None = None) -> str:
    """The same as text, without colours; ``width`` is that of a terminal."""
    runbooks = os.environ.get(RUNBOOKS, "")
    if form == "table":
        return status_report.text(
            view.body,
            now=datetime.now(UTC),
            runs=view.runs,
            pool=view.pool,
            history=view.history,
            runbooks=runbooks,
            width=width,
        )
    content = status_report.document(
        view.body, runs=view.runs, pool=view.pool, history=view.history, runbooks=runbooks
    )
    return output.document(content, form)


def _all(arguments: argparse.Namespace) -> int:
    async def read(cluster: Cluster, namespace: str) -> tuple[list[Object], Controller, str]:
        where = "" if arguments.all_namespaces else namespace
        bodies = await live.read_tiers(cluster, where)
        return bodies, await controller(cluster, now=datetime.now(UTC)), where

    bodies, runs, where = live.ask(arguments, read)
    if arguments.output != "table":
        nobody = Pool(None)
        contents = [
            status_report.document(body, runs=runs, pool=nobody, history=History(None))
            for body in status_list.ordered(bodies)
        ]
        print(output.documents(contents, arguments.output), end="")
    else:
        if runs.hint:
            output.say(f"{runs.hint}{'. All of this is old' if runs.active is False else ''}")
        if not bodies:
            place = f"namespace {where}" if where else "the cluster"
            output.say(f"no KVCacheTier in {place}; -A shows those of all namespaces")
            return 0
        width = terminal.width()
        text = status_list.text(
            bodies,
            everywhere=arguments.all_namespaces,
            width=width or WIDTH,
            clip=width is not None,
        )
        _print(text, form="table")
    return 0 if all(map(status_report.is_ready, bodies)) else NOT_READY


def _print(text: str, *, form: str) -> None:
    if form == "table":
        text = terminal.plain(text)
        text = colour.coloured(text) if terminal.colours() else text
    print(text, end="")
