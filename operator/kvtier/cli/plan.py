"""``kvtier plan``: does this tier pay, if the links and times are what the file says?

Exits 0 for a tier that pays and of which no check finds an error, 1 for one that pays in spite of
an error (with ``--strict`` of a warning too), 3 for one that never pays, 4 when the file does not
say enough.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from kvtier.api.combinations import row_of
from kvtier.api.scalars import shown
from kvtier.api.types import KVCacheTier
from kvtier.breakeven.assessment import Assessment, LinkFigures, Verdict
from kvtier.breakeven.observed import RateOff, as_seen, rate_off
from kvtier.breakeven.patterns import Access, AccessAssessment, assess_access
from kvtier.breakeven.tier import assess
from kvtier.cli import (
    files,
    flags,
    model_config,
    nodes_file,
    output,
    plan_table,
    plot,
    terminal,
    what_if,
)
from kvtier.cli.around import Around
from kvtier.cli.errors import BadInput
from kvtier.placement.chain import examine, ordered
from kvtier.placement.findings import Finding, errors
from kvtier.placement.topology_checks import Placed, check
from kvtier.plan.probing import seconds_of
from kvtier.render.memory import held_tokens

EXIT_CODES: Final = {Verdict.NEVER_PAYS: 3, Verdict.UNKNOWN: 4}
PAYS: Final = 0
HAS_FINDINGS: Final = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    files.add_file_argument(parser)
    parser.add_argument("-o", "--output", choices=("table", "json", "yaml"), default="table")
    parser.add_argument(
        "--what-if",
        action="append",
        default=[],
        metavar="NAME=VALUE,...",
        help="the same tier with other figures: "
        + ",".join(f"{name}={value}" for name, value in what_if.EXAMPLES.items()),
    )
    parser.add_argument(
        "--strict", action="store_true", help="exit with 1 on a Warning too, as on an Error"
    )
    model_config.add_argument(parser, required=False)
    parser.add_argument(
        "--links",
        metavar="FILE",
        help="a list as placement.links has it, instead of the tier's; - is standard input",
    )
    parser.add_argument(
        "--nodes",
        metavar="FILE",
        help="what `kubectl get nodes -o yaml` (or json) prints, or `kubectl get nodes,pods` with "
        "the pool's pods: also judge where the ranks go; - is standard input",
    )
    cluster = parser.add_argument_group(
        "from a cluster", "instead of --nodes, with the link that was measured there, if any"
    )
    cluster.add_argument(
        "--live", action="store_true", help="the current context's (--context means --live)"
    )
    flags.add_cluster(cluster)
    parser.add_argument(
        "--plot",
        type=plot_file,
        metavar="FILE.svg",
        help="also draw it: seconds of a fetch and of computing again over the length of the hit",
    )
    parser.epilog = (
        "exit codes: 0 Pays, PaysWhenLong or PaysUnderLoad, 1 the same with an Error among the\n"
        "findings (--strict: or a Warning), 3 NeverPays, 4 Unknown (the file does not say\n"
        "enough), 2 bad input"
    )


def run(arguments: argparse.Namespace) -> int:
    _check(arguments)
    asked = what_if.parse(",".join(arguments.what_if))
    tier = model_config.load_tier(arguments, links_path=arguments.links)
    around = _around(arguments, tier)
    tier, link, reach = _asked(tier, asked, around=around)
    place = None if around is None else around.place(tier)
    link_age = None
    if link is not None and link.at is not None:
        link_age = datetime.now(UTC).timestamp() - seconds_of(link.at)
    seen = None if around is None or asked.another_rate else around.seen
    off = rate_off(tier.spec, seen)
    assessment = assess(
        tier.spec,
        link=link,
        reach=reach,
        link_age=link_age,
        compression=asked.compression,
        off=off,
    )
    tier = tier.model_copy(update={"spec": as_seen(tier.spec, off)})
    findings = _findings(tier, assessment, place=place, off=off)
    access = None
    if asked.access is not Access.ONCE_PER_REQUEST:
        access = assess_access(
            tier.spec, asked.access, link=link, reach=reach, compression=asked.compression
        )
    if arguments.plot is not None:
        if access is not None:
            raise BadInput(
                f"--plot: draws fetches of {Access.ONCE_PER_REQUEST.value} only; leave out "
                f"access={asked.access.value}"
            )
        _write(arguments.plot, plot.plot(tier, assessment, changes=asked.changes))
    if arguments.output == "table":
        text = plan_table.table(
            tier,
            assessment,
            findings=findings,
            access=access,
            changes=asked.changes,
            links=arguments.links,
            link_age=link_age,
            place=() if around is None else around.facts(tier),
        )
        text = terminal.plain(text)
    else:
        content = _document(tier, assessment, findings=findings, access=access, asked=asked)
        if around is not None:
            content |= around.document(tier)
        text = output.document(content, arguments.output)
    print(text, end="")
    verdict = assessment.verdict if access is None else access.verdict
    wrong = findings if arguments.strict else errors(findings)
    return EXIT_CODES.get(verdict, HAS_FINDINGS if wrong else PAYS)


def _check(arguments: argparse.Namespace) -> None:
    """Raises BadInput for flags that contradict each other."""
    named = {flag: getattr(arguments, flag) for flag in ("file", "model_config", "links", "nodes")}
    read = [f"--{flag.replace('_', '-')}" for flag, path in named.items() if path == "-"]
    if len(read) > 1:
        raise BadInput(f"-: is both {' and '.join(read)}; name a file for one of them")
    lives = arguments.live or arguments.context is not None
    if lives and arguments.nodes is not None:
        raise BadInput("--nodes: and a cluster too; leave out one of them")
    if not lives and (arguments.kubeconfig or arguments.namespace):
        flag = "--kubeconfig" if arguments.kubeconfig else "--namespace"
        raise BadInput(f"{flag}: says nothing without a cluster; add --live")


def _around(arguments: argparse.Namespace, tier: KVCacheTier) -> Around | None:
    """What is known of where the tier runs; None if nobody asked."""
    if arguments.nodes is not None:
        return nodes_file.load(arguments.nodes, tier)
    if arguments.live or arguments.context is not None:
        # The cluster's libraries are for who asks it.
        found: Around = import_module("kvtier.cli.live_plan").load(arguments, tier)
        return found
    return None


def _asked(
    tier: KVCacheTier, asked: what_if.WhatIf, *, around: Around | None
) -> tuple[KVCacheTier, LinkFigures | None, str | None]:
    """The tier with what was asked, the link as it was measured, and the level that hits cross."""
    reach, measured = None, None
    if around is not None:
        reach, measured = around.place(tier).topology.farthest_link(), around.link
    tier = what_if.apply(tier, asked, reach=reach, measured=measured)
    if measured is None or asked.another_link:
        return tier, None, reach
    return tier, replace(measured, domain=reach or "measured"), reach


def _findings(
    tier: KVCacheTier, assessment: Assessment, *, place: Placed | None, off: RateOff | None
) -> tuple[Finding, ...]:
    """Of the chain, and of the place where there is one, as the operator would find them."""
    if place is None:
        return examine(tier.spec, assessment=assessment)
    topology = place.topology
    found = examine(
        tier.spec,
        assessment=assessment,
        engines=len(topology.engines) or None,
        ranks_together=topology.ranks_together(tier.spec.pool.ranks),
        off=off,
    )
    return ordered((*found, *check(place)))


def plot_file(text: str) -> Path:
    """A name that ends in ``.svg``: a slip must not overwrite the tier's own file."""
    if not text.endswith(".svg"):
        raise argparse.ArgumentTypeError(f"{text!r} does not end in .svg; write such a name")
    return Path(text)


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        what = error.strerror if isinstance(error, OSError) else error
        raise BadInput(
            f"--plot {shown(str(file))}: {what}; name a file that can be written"
        ) from None


def _document(
    tier: KVCacheTier,
    assessment: Assessment,
    *,
    findings: Sequence[Finding],
    access: AccessAssessment | None,
    asked: what_if.WhatIf,
) -> dict[str, Any]:
    """The names of the status fields, unrounded; what is not known is absent."""
    judged = assessment if access is None else access
    content: dict[str, Any] = {
        "name": tier.metadata.name,
        "verdict": judged.verdict.value,
        "reason": judged.reason,
        "message": judged.message,
        "breakEven": assessment.figures(held=held_tokens(tier.spec)),
    }
    optional = {
        "measured": assessment.measured(),
        "fixedSeconds": assessment.t0_seconds,
        "gainSeconds": assessment.gain_seconds,
        "winningShare": assessment.share_won,
        "alsoHolds": [other.value for other in assessment.also] or None,
        "load": _load(assessment),
        "engine": _engine(tier),
        "whatIf": dict(asked.changes) or None,
        "access": access and access.figures(),
    }
    known = {name: value for name, value in optional.items() if value is not None}
    return (
        content
        | known
        | {
            "judgedOver": assessment.lengths.source,
            "findings": output.findings(findings),
        }
    )


def _engine(tier: KVCacheTier) -> dict[str, Any] | None:
    row = row_of(tier.spec)
    return None if row is None else row.document()


def _load(assessment: Assessment) -> dict[str, Any] | None:
    load = assessment.load
    if load is None:
        return None
    figures = {
        "hitRate": load.hit_rate,
        "prefillSeconds": load.prefill.mean,
        "gpuSeconds": load.gpu.mean,
        "linkReadSeconds": load.link.read.mean,
        "linkWriteSeconds": load.link.written.mean,
        "thresholdRequestsPerSecond": load.threshold,
    }
    return {name: figure for name, figure in figures.items() if figure is not None}
