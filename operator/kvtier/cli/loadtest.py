"""``kvtier loadtest``: load a tier as its engines would, from the engine Secret alone.

Exits 0, or 1 if a byte was wrong, nothing could be reached at all, or an engine did not end.
"""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

from kvtier.api.scalars import parse_duration, parse_quantity
from kvtier.cli import figures, output, terminal
from kvtier.cli.errors import BadInput
from kvtier.loadtest import report
from kvtier.loadtest.connection import BadSecret, Connection, load
from kvtier.loadtest.run import EngineDied, Plan
from kvtier.loadtest.run import run as run_load
from kvtier.loadtest.striping import Striping
from kvtier.loadtest.workload import Workload
from kvtier.redact import redact

MOST_ENGINES: Final = 64
MOST_TOKENS: Final = 4_000_000
MOST_PREFIXES: Final = 1_000_000
PREFIXES: Final = 8
NOT_RIGHT: Final = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--secret-dir", required=True, metavar="DIR", help="where the engine Secret is mounted"
    )
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    parser.add_argument(
        "--progress", action="store_true", help="a line of JSON each second on standard error"
    )
    load_ = parser.add_argument_group("load")
    load_.add_argument(
        "--engines",
        type=figures.count(1, MOST_ENGINES),
        default=1,
        metavar="N",
        help=f"how many engines load the tier at once, at most {MOST_ENGINES} (1)",
    )
    load_.add_argument(
        "--rate",
        type=figures.figure(1e-3, 1e5),
        default=1.0,
        metavar="X",
        help="requests/s of each engine, at random moments whatever becomes of them (1)",
    )
    load_.add_argument(
        "--prompt-tokens",
        type=figures.count(1, MOST_TOKENS),
        default=4096,
        metavar="N",
        help="(4096)",
    )
    load_.add_argument(
        "--prefixes",
        type=figures.count(1, MOST_PREFIXES),
        metavar="N",
        help="how many beginnings prompts share (8, or what half the store holds)",
    )
    load_.add_argument(
        "--prefix-tokens",
        type=figures.count(0, MOST_TOKENS),
        metavar="N",
        help="tokens of such a beginning (three quarters of the prompt)",
    )
    load_.add_argument(
        "--seed",
        type=int,
        default=0,
        help="runs with the same one have the same arrivals and beginnings (0)",
    )
    bounds = parser.add_argument_group("bounds; whichever comes first ends the run")
    bounds.add_argument(
        "--duration", type=_seconds, default=30.0, metavar="TIME", help="such as 45s or 10m (30s)"
    )
    bounds.add_argument(
        "--max-bytes",
        type=_bytes,
        default=4 << 30,
        metavar="BYTES",
        help="bytes moved, read and written, such as 500Mi (4Gi)",
    )
    instead = parser.add_argument_group("instead of what the Secret says")
    instead.add_argument(
        "--striping", choices=[each.value for each in Striping], help="how chunks are spread"
    )
    instead.add_argument(
        "--prefill-rate",
        type=figures.figure(1e-3, 1e12),
        metavar="X",
        help="tokens/s of one engine",
    )
    instead.add_argument(
        "--hit-latency",
        type=_seconds,
        metavar="TIME",
        help="how long a hit waits, whatever its length, such as 330ms",
    )
    parser.epilog = (
        "exit codes: 0 all right, 1 a byte was wrong, nothing was reachable or an engine did not\n"
        "end, 2 bad input\n"
        "docs/loadtest.md explains the report"
    )


def run(arguments: argparse.Namespace) -> int:
    connection = _connection(arguments)
    workload = _workload(arguments, connection)
    # What a pod says on standard error is in the midst of its log: a document has it within.
    as_json = arguments.output == "json"
    unfit = _does_not_fit(connection, workload)
    if unfit and not as_json:
        output.say(unfit)
    plan = Plan(
        connection=connection,
        workload=workload,
        engines=arguments.engines,
        seconds=arguments.duration,
        max_bytes=arguments.max_bytes,
    )

    try:
        results = _lines(plan) if arguments.progress else _bar(plan)
    except EngineDied as error:
        print(f"kvtier: {error}", file=sys.stderr)
        return NOT_RIGHT
    document = report.document(connection, results)
    in_vain = report.nothing_reached(connection, results)
    if as_json:
        text = output.document(document | {"notes": list(filter(None, (unfit, in_vain)))}, "json")
    else:
        text = report.table(document)
    print(redact(text, connection.password), end="", flush=True)
    if in_vain and not as_json:
        output.say(redact(in_vain, connection.password))
    return report.exit_code(results)


def _lines(plan: Plan) -> report.Results:
    """With a line of JSON each second."""

    def progress(results: report.Results) -> None:
        line = json.dumps(report.progress(results))
        print(redact(line, plan.connection.password), file=sys.stderr, flush=True)

    return run_load(plan, progress=progress)


def _bar(plan: Plan) -> report.Results:
    """With a bar where somebody looks."""
    with terminal.bar("engines connect", total=1.0) as bar:

        def progress(results: report.Results) -> None:
            moved = sum(rank.bytes_read + rank.bytes_written for rank in results.ranks)
            # Whichever bound comes first ends it.
            done = max(results.seconds / plan.seconds, moved / plan.max_bytes)
            bar.at(done, _going_on(report.progress(results)))

        return run_load(plan, progress=progress)


def _going_on(line: report.Document) -> str:
    """The last second, in a few words."""
    words = [f"{line['requests']} requests/s"]
    if line["hitRate"] is not None:
        words.append(f"{100 * line['hitRate']:.0f} % hits")
    if line["errors"]:
        words.append(f"{line['errors']} errors")
    words += [f"rank {rank} is down" for rank in line["down"]]
    if any(line["wrong"].values()):
        words.append("WRONG BYTES")
    return ", ".join(words)


def _connection(arguments: argparse.Namespace) -> Connection:
    try:
        connection = load(Path(arguments.secret_dir))
        connection.tls_context()
    except BadSecret as error:
        raise BadInput(str(error)) from None
    if arguments.striping:
        connection = connection.striped(Striping(arguments.striping))
    if arguments.prefill_rate:
        connection = replace(connection, prefill_rates=((0.0, arguments.prefill_rate),))
    if arguments.hit_latency is not None:
        connection = replace(connection, hit_latency=arguments.hit_latency)
    return connection


def _workload(arguments: argparse.Namespace, connection: Connection) -> Workload:
    prompt = arguments.prompt_tokens
    prefix = arguments.prefix_tokens
    prefix = prompt * 3 // 4 if prefix is None else prefix
    if prompt < connection.chunk_tokens:
        raise BadInput(
            f"--prompt-tokens: {prompt} is less than one chunk; engines store chunks of "
            f"{connection.chunk_tokens} tokens"
        )
    if prefix > prompt:
        raise BadInput(
            f"--prefix-tokens: {prefix} is more than the prompt; give at most --prompt-tokens, "
            f"which is {prompt}"
        )
    prefixes = arguments.prefixes
    if prefixes is None:
        prefixes = min(PREFIXES, _fitting(connection, prefix))
    return Workload(
        rate=arguments.rate,
        prompt_tokens=prompt,
        prefixes=prefixes,
        prefix_tokens=prefix,
        seed=arguments.seed,
    )


def _does_not_fit(connection: Connection, workload: Workload) -> str | None:
    """That beginnings evict each other, in one line."""
    fitting = _fitting(connection, workload.prefix_tokens)
    if workload.prefixes <= 2 * fitting:
        return None
    return (
        f"{workload.prefixes:,} beginnings of {workload.prefix_tokens:,} tokens do not fit: the "
        f"store holds {connection.capacity_tokens:,}, and few will be hit; --prefixes {fitting} "
        "leaves room"
    )


def _fitting(connection: Connection, prefix_tokens: int) -> int:
    """How many beginnings half the store holds, at least one; the other half is for the rest of
    prompts, which is stored too."""
    chunks = prefix_tokens // connection.chunk_tokens
    if connection.capacity_tokens is None or not chunks:
        return MOST_PREFIXES
    half = connection.capacity_tokens // connection.chunk_tokens // 2
    return max(1, half // chunks)


def _seconds(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _bytes(text: str) -> int:
    try:
        return int(parse_quantity(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
