"""What the demo prints: short headed sections."""

import textwrap
from collections.abc import Iterable, Sequence

WIDTH = 92


def heading(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}", flush=True)


def say(text: str) -> None:
    """A paragraph."""
    print("\n".join(textwrap.wrap(text, WIDTH)), flush=True)


def command(text: str) -> None:
    """A command as a person would type it; its output comes next."""
    print(f"$ {text}", flush=True)


def output(text: str) -> None:
    print(textwrap.indent(text.rstrip("\n"), "  "), flush=True)


def quote(text: str) -> None:
    """A sentence that the product says."""
    output(textwrap.fill(text, WIDTH - 2))


def step(seconds: float, text: str) -> None:
    """One line of progress."""
    print(f"  {seconds:5.1f} s  {textwrap.shorten(text, WIDTH, placeholder=' ...')}", flush=True)


def table(rows: Iterable[Sequence[str]]) -> None:
    """Columns under the first row; the last one is as wide as it likes."""
    lines = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print(f"  {'  '.join(cells).rstrip()}")
