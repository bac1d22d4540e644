"""What the command line prints, for tests that hold pages to it."""

import contextlib
import io
import shlex
import sys
from pathlib import Path

from kvtier.cli.main import main

ROOT = Path(__file__).parents[3]


def printed(command: str, *, stdin: str = "") -> str:
    """What the command prints, run at the root of the repository."""
    before, out = sys.stdin, io.StringIO()
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin.encode()))
    try:
        with contextlib.redirect_stdout(out), contextlib.chdir(ROOT):
            main(shlex.split(command)[1:])
    finally:
        sys.stdin = before
    return out.getvalue()
