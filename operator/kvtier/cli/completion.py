"""``kvtier completion bash|zsh|fish``: what makes a shell complete ``kvtier``.

The shell asks ``kvtier __complete WORD...`` at each key; names of tiers and namespaces come from
the cluster. kubectl completes ``kubectl kvtier`` by itself, with ``kubectl_complete-kvtier``.
"""

import argparse
from importlib import resources
from typing import Final

SHELLS: Final = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS)
    parser.epilog = (
        "bash: source <(kvtier completion bash)\n"
        "zsh:  source <(kvtier completion zsh)\n"
        "fish: kvtier completion fish | source\n\n"
        "Put the line into your shell's startup file to keep it. `kubectl kvtier` is completed by\n"
        "kubectl's own completion, as soon as kubectl_complete-kvtier is on the PATH."
    )


def run(arguments: argparse.Namespace) -> int:
    file = resources.files("kvtier.cli").joinpath(f"completion.{arguments.shell}")
    print(file.read_text(encoding="utf-8"), end="")
    return 0
