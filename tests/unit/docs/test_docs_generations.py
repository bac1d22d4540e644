"""The example of docs/generations.md is what the command prints.

``python tests/unit/docs/test_docs_generations.py`` writes it there again.
"""

import contextlib
import io
import re
import sys
from pathlib import Path

from kvtier.cli.main import main

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "generations.md"
SAMPLE = "deploy/samples/llama-3.1-70b.yaml"
PLACE = re.compile(
    rf"(?<=```console\n)(\$ sed s/(\w+)/(\w+)/ {SAMPLE} \| (kvtier [^\n]*)\n)(.*?)(?=```)",
    re.DOTALL,
)


def printed(old: str, new: str, command: str) -> str:
    """What the command prints when ``sed`` gives it the sample."""
    arguments = command.split()[1:]
    stdin, out = sys.stdin, io.StringIO()
    sys.stdin = io.TextIOWrapper(io.BytesIO((ROOT / SAMPLE).read_text().replace(old, new).encode()))
    try:
        with contextlib.redirect_stdout(out), contextlib.chdir(ROOT):
            assert main(arguments) == 1
    finally:
        sys.stdin = stdin
    return out.getvalue()


def test_the_example_is_what_generation_prints() -> None:
    ((_, old, new, command, text),) = PLACE.findall(PAGE.read_text("utf-8"))
    assert text == printed(old, new, command), f"run `python {Path(__file__).relative_to(ROOT)}`"


if __name__ == "__main__":
    PAGE.write_text(
        PLACE.sub(lambda m: m[1] + printed(m[2], m[3], m[4]), PAGE.read_text()), "utf-8"
    )
