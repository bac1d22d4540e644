"""``kvtier``: one command line. Each command is a module of its own, imported only when asked for.

A command's module has ``add_arguments(parser)`` and ``run(arguments) -> int``, the exit code.
``kvtier plan`` must start on a laptop that has no cluster libraries, so nothing is imported early.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

from kvtier.cli.errors import BadInput

BAD_INPUT: Final = 2
INTERRUPTED: Final = 130

COMMANDS: Final = {
    "plan": "judge a tier, applied or not: does fetching beat recomputing?",
    "layout": "print the layout to write into a tier, from a model's config.json",
    "render": "print every object that kvtier would create for a tier",
    "generation": "print the generation of a tier's KV, its Secret's name, or what an edit changes",
    "status": "show a tier of a cluster on one screen, or all tiers, a line each",
    "watch": "show what changes in tiers, a line each, as it comes",
    "report": "collect what is known of a tier into one file, without any secret",
    "probe": "measure the link between a tier's engines and its ranks now",
    "roll": "restart all ranks of a tier, once its limiters know",
    "try": "run a tier's ranks on this machine for a moment, and measure them",
    "loadtest": "load a tier as its engines would, and check each byte",
    "simulate": "play a storm on paper: a tier is wiped, and engines get what admission lets in",
    "completion": "print what makes a shell complete kvtier's commands, flags and tiers",
    "crd": "print the CustomResourceDefinition",
    "controller": "run the operator",
    "limiter": "run the limiter, which gateways ask before each request",
    "webhook": "run the optional webhook that judges tiers at apply time",
}
MODULES: Final = {"try": "trial", "probe-worker": "probe_worker", "__complete": "complete"}
"""Modules that cannot be called as their command is."""
HIDDEN: Final = {
    "probe-worker": "measure a tier's ranks from this node",
    "__complete": "print how a command line can go on",
}
"""Commands that the operator's own pods and shells run."""


class _Version(argparse.Action):
    """``--version``. Looking it up takes as long as all that other commands import here."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from kvtier import __version__

        print(f"kvtier {__version__}")
        parser.exit()


class _Once(argparse.Action):
    """An option with one value. argparse keeps the last of several, and no gate would see it."""

    _given = False

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        if self._given and option_string is not None:
            raise BadInput(f"{option_string}: there twice; keep one")
        self._given = True
        setattr(namespace, self.dest, values)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 2 for bad input, with one line per problem."""
    argv = sys.argv[1:] if argv is None else list(argv)
    try:
        code = _run(argv)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except BadInput as error:
        for line in error.lines:
            _complain(line)
    except BrokenPipeError:
        # Python would flush what is left once more at exit, and fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        _complain("standard output was closed before all was written; keep the reader running")
    except OSError as error:
        _complain(f"{error.filename or 'standard output'}: {error.strerror}")
    except KeyboardInterrupt:
        return INTERRUPTED
    return BAD_INPUT


def _run(argv: Sequence[str]) -> int:
    arguments = build(argv[0] if argv else "").parse_args(argv)
    code: int = arguments.run(arguments)
    return code


def build(asked: str) -> argparse.ArgumentParser:
    """The parser of the command line, with the arguments of the command that is asked for."""
    parser = argparse.ArgumentParser(
        prog="kvtier", description="KV cache tiers for LLM prefill fleets.", allow_abbrev=False
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in (
        COMMANDS | {name: HIDDEN[name] for name in HIDDEN if name == asked}
    ).items():
        # Without help argparse leaves a command out of the list, but not out of its complaints.
        shown: dict[str, Any] = {"help": summary} if name in COMMANDS else {}
        command = commands.add_parser(
            name,
            **shown,
            description=f"{summary[0].upper()}{summary[1:]}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        command.register("action", None, _Once)
        if name == asked:
            module = import_module(f"kvtier.cli.{MODULES.get(name, name)}")
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    return parser


def _complain(line: str) -> None:
    if sys.stderr is not None:
        from kvtier.cli import terminal  # only what a command needs is imported

        print(f"kvtier: {terminal.plain(line)}", file=sys.stderr)
