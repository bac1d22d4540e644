"""``kvtier generation``: how Git learns the name of the Secret that engines mount, and what an edit
of a tier means for them.
"""

import argparse
from typing import Final

from kvtier.cli import generation_report, model_config, output
from kvtier.cli.errors import BadInput
from kvtier.cli.generation_report import Named
from kvtier.generation.identity import identity

EQUAL: Final = 0
DIFFERENT: Final = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-f",
        "--file",
        required=True,
        metavar="FILE",
        action="append",
        help="a KVCacheTier; - is standard input. Given twice, old and new: in what the two differ,"
        " with exit code 1 if they do",
    )
    model_config.add_argument(parser, required=False)
    parser.add_argument(
        "-o",
        "--output",
        choices=("id", "secretName", "json"),
        help="the generation's id (default), its engine Secret's name, or both and the identity;"
        " of two files the ids, the names, or both and the difference",
    )


def run(arguments: argparse.Namespace) -> int:
    paths, config = _paths(arguments), arguments.model_config
    named = [_named(path, config=config, told=len(paths) > 1) for path in paths]
    if arguments.output == "secretName":
        text = "".join(f"{each.secret}\n" for each in named)
    elif arguments.output == "id" or (arguments.output is None and len(named) == 1):
        text = "".join(f"{each.id}\n" for each in named)
    elif len(named) == 1:
        text = output.document(generation_report.identity_document(named[0]), "json")
    elif arguments.output == "json":
        text = output.document(generation_report.difference_document(*named), "json")
    else:
        text = generation_report.difference_text(*named)
    print(text, end="")
    return DIFFERENT if len(named) == 2 and generation_report.differ(*named) else EQUAL


def _paths(arguments: argparse.Namespace) -> list[str]:
    paths: list[str] = arguments.file
    if len(paths) > 2:
        raise BadInput(
            f"-f/--file: there {len(paths)} times; name one tier, or an old and a new one"
        )
    if paths.count("-") > 1:
        raise BadInput("-: is both tiers; name a file for one of them")
    if len(paths) > 1 and arguments.model_config == "-":
        raise BadInput("--model-config: two tiers need it twice; name a file instead of -")
    return paths


def _named(path: str, *, config: str | None, told: bool) -> Named:
    """``told``: whether complaints must say which of the files they are about."""
    try:
        tier = model_config.load_tier(argparse.Namespace(file=path, model_config=config))
    except BadInput as error:
        if not told:
            raise
        lines = [x if x.startswith(f"{path}:") else f"{path}: {x}" for x in error.lines]
        raise BadInput(*lines) from None
    return Named(path, tier=tier, identity=identity(tier.spec))
