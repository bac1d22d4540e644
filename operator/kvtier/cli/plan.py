"""``kvtier plan``: does this tier pay, if the links and times are what the file says?

Exits 0 for a tier that pays, 3 for one that never does, 4 when the file does not say enough.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from kvtier.api.scalars import shown
from kvtier.api.types import KVCacheTier
from kvtier.breakeven.assessment import Assessment, Verdict
from kvtier.breakeven.patterns import Access, AccessAssessment, assess_access
from kvtier.breakeven.tier import assess
from kvtier.cli import files, model_config, output, plan_table, plot, what_if
from kvtier.cli.errors import BadInput
from kvtier.placement.chain import examine
from kvtier.placement.findings import Finding

EXIT_CODES: Final = {Verdict.NEVER_PAYS: 3, Verdict.UNKNOWN: 4}
PAYS: Final = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    files.add_file_argument(parser)
    parser.add_argument("-o", "--output", choices=("table", "json", "yaml"), default="table")
    parser.add_argument(
        "--what-if",
        default="",
        metavar="NAME=VALUE,...",
        help="the same tier with other figures: "
        + ",".join(f"{name}={value}" for name, value in what_if.EXAMPLES.items()),
    )
    model_config.add_argument(parser, required=False)
    parser.add_argument(
        "--plot",
        type=plot_file,
        metavar="FILE.svg",
        help="also draw it: seconds of a fetch and of computing again over the length of the hit",
    )
    parser.epilog = (
        "exit codes: 0 Pays, PaysWhenLong or PaysUnderLoad, 3 NeverPays, 4 Unknown (the file does\n"
        "not say enough), 2 bad input"
    )


def run(arguments: argparse.Namespace) -> int:
    asked = what_if.parse(arguments.what_if)
    tier = what_if.apply(model_config.load_tier(arguments), asked)
    assessment = assess(tier.spec, compression=asked.compression)
    findings = examine(tier.spec, assessment=assessment)
    access = None
    if asked.access is not Access.ONCE_PER_REQUEST:
        access = assess_access(tier.spec, asked.access, compression=asked.compression)
    if arguments.plot is not None:
        if access is not None:
            raise BadInput(
                f"--plot: draws fetches of {Access.ONCE_PER_REQUEST.value} only; leave out "
                f"access={asked.access.value}"
            )
        _write(arguments.plot, plot.plot(tier, assessment, changes=asked.changes))
    if arguments.output == "table":
        text = plan_table.table(
            tier, assessment, findings=findings, access=access, changes=asked.changes
        )
    else:
        content = _document(tier, assessment, findings=findings, access=access, asked=asked)
        text = output.document(content, arguments.output)
    print(text, end="")
    verdict = assessment.verdict if access is None else access.verdict
    return EXIT_CODES.get(verdict, PAYS)


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
        "breakEven": assessment.figures(),
    }
    optional = {
        "measured": assessment.measured(),
        "fixedSeconds": assessment.t0_seconds,
        "gainSeconds": assessment.gain_seconds,
        "winningShare": assessment.share_won,
        "alsoHolds": [other.value for other in assessment.also] or None,
        "load": _load(assessment),
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


def _load(assessment: Assessment) -> dict[str, Any] | None:
    load = assessment.load
    if load is None:
        return None
    figures = {
        "hitRate": load.hit_rate,
        "prefillSeconds": load.prefill.mean,
        "gpuSeconds": load.gpu.mean,
        "linkSeconds": load.link.mean,
        "thresholdRequestsPerSecond": load.threshold,
    }
    return {name: figure for name, figure in figures.items() if figure is not None}
