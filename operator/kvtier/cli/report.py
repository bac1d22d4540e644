"""``kvtier report``: what is known of a tier, in one file that can be given to others.

Exits 0 with the file written, also where some of it could not be read, 2 without a file.
"""

import argparse
import contextlib
import io
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import yaml

from kvtier import __version__
from kvtier.breakeven.words import counted, size
from kvtier.cli import figures, flags, live, output, plan, status, terminal
from kvtier.cli.errors import BadInput
from kvtier.cli.report_bundle import Bundle
from kvtier.cli.report_collect import Collector
from kvtier.cluster.client import AioCluster
from kvtier.cluster.protocol import ApiError

LINES: Final = 2000
MOST_LINES: Final = 100_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags.add_name(parser)
    flags.add_cluster(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE.tar.gz",
        help="where to write it (default: kvtier-report-NAMESPACE-NAME-TIME.tar.gz, here)",
    )
    parser.add_argument(
        "--lines",
        type=figures.count(0, MOST_LINES),
        default=LINES,
        metavar="N",
        help=f"last lines of each log ({LINES})",
    )
    parser.epilog = (
        "No Secret is read. Tokens, keys and passwords in what is read are taken out; names,\n"
        "addresses and the spec stay: look through it before you give it away.\n\n"
        "exit codes: 0 it is written, even if this person may not read all of it, 2 it is not"
    )


def run(arguments: argparse.Namespace) -> int:
    at = datetime.now(UTC)

    async def work(cluster: AioCluster, namespace: str) -> Collector:
        view = await status.look(cluster, namespace, arguments.name)
        name = f"kvtier-report-{namespace}-{arguments.name}-{at.strftime('%Y%m%dT%H%M%SZ')}"
        collector = Collector(
            cluster=cluster,
            bundle=Bundle(name),
            view=view,
            namespace=namespace,
            tier=arguments.name,
            lines=arguments.lines,
        )
        steps = collector.steps()
        with terminal.bar("reads", total=len(steps)) as bar:
            for done, (what, step) in enumerate(steps):
                bar.at(done, what)
                try:
                    await step()
                except ApiError as error:
                    collector.bundle.lacks(what, str(error))
        return collector

    collector = live.ask(arguments, work)
    bundle = collector.bundle
    bundle.add("plan.txt", _plan(collector, arguments))
    path = Path(arguments.output or f"{bundle.directory}.tar.gz")
    which = f"{collector.namespace}/{collector.tier}"
    written = bundle.write(path, tier=which, version=__version__, at=at)
    for line in bundle.missing:
        output.say(f"not in it: {line}")
    print(f"{path}: {counted(len(bundle.files), 'file')}, {size(written)}")
    return 0


def _plan(collector: Collector, arguments: argparse.Namespace) -> str:
    """What ``kvtier plan`` says of the tier, by its cluster where that may be read."""
    body = collector.view.body
    content: dict[str, Any] = {
        "apiVersion": body["apiVersion"],
        "kind": body["kind"],
        "metadata": {name: body["metadata"][name] for name in ("name", "namespace")},
        "spec": body.get("spec") or {},
    }
    parser = argparse.ArgumentParser()
    plan.add_arguments(parser)
    with tempfile.TemporaryDirectory(prefix="kvtier-report-") as directory:
        file = Path(directory) / "tier.yaml"
        file.write_text(yaml.safe_dump(content), encoding="utf-8")
        where = [] if not collector.nodes_known else _live(arguments)
        written = io.StringIO()
        try:
            with contextlib.redirect_stdout(written):
                plan.run(parser.parse_args(["-f", str(file), *where]))
        except BadInput as error:
            return "".join(f"{line}\n" for line in error.lines)
    return written.getvalue()


def _live(arguments: argparse.Namespace) -> list[str]:
    named = {"--context": arguments.context, "--kubeconfig": arguments.kubeconfig}
    return ["--live", *(word for flag, value in named.items() if value for word in (flag, value))]
