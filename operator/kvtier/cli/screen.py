"""One screen about a tier: what ``kvtier try``, ``status`` and ``probe`` print."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kvtier.breakeven.words import gigabits, seconds, size
from kvtier.placement.findings import Finding

WIDTH: Final = 92
_UNKNOWN: Final = "-"
_ALWAYS: Final = ("RANK", "WHERE", "READY", "GENERATION", "STATE")
"""Columns that are there even if nothing is known."""
_LEAST: Final = 8
"""Characters that a clipped cell keeps."""


@dataclass(frozen=True, slots=True)
class RankRow:
    """One rank: bytes/s and bytes; None is not known. ``where`` is its node or address."""

    rank: int
    where: str
    ready: bool
    bytes_per_second: float | None = None
    round_trip_seconds: float | None = None
    used_bytes: int | None = None
    max_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class GenerationRow:
    """One generation of KV, and how many of the pods that have its Secret are Ready; None is not
    known. ``notes`` are sentences."""

    id: str
    state: str | None
    cause: str | None
    age: str | None
    ready: str | None
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Screen:
    """``heading`` line by line; ``facts`` are names and texts; ``findings`` the worst first.
    ``remark`` is a sentence about the generations, ``admission`` names and texts of a block of its
    own. ``changes`` are ages, titles and messages, the newest first; ``step`` is what to do now,
    and where more about it stands."""

    heading: Sequence[str]
    verdict: str
    reason: str
    message: str
    facts: Sequence[tuple[str, str]]
    ranks: Sequence[RankRow]
    findings: Sequence[Finding]
    generations: Sequence[GenerationRow] = ()
    admission: Sequence[tuple[str, str]] = ()
    remark: str = ""
    changes: Sequence[tuple[str, str, str]] = ()
    changes_remark: str = ""
    step: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class _Page:
    """Lines of at most ``width`` characters; ``clip`` cuts cells of tables to that too."""

    width: int
    clip: bool

    def wrapped(self, text: str, *, by: int = 0, hang: int = 0) -> list[str]:
        first, rest = " " * by, " " * (by + hang)
        # Long names stay whole, for whoever copies them.
        return textwrap.wrap(
            text, self.width, initial_indent=first, subsequent_indent=rest, break_long_words=False
        )

    def table(self, rows: Iterable[Sequence[str]]) -> Iterator[str]:
        """Without columns of which nothing is known; the widest gives way where it must."""
        columns = [
            list(column)
            for column in zip(*rows, strict=True)
            if column[0] in _ALWAYS or set(column[1:]) - {_UNKNOWN}
        ]
        widths = [max(map(len, column)) for column in columns]
        while self.clip and 2 * len(widths) + sum(widths) > self.width and max(widths) > _LEAST:
            widths[widths.index(max(widths))] -= 1
        for row in zip(*columns, strict=True):
            cells = [_clipped(cell, width) for cell, width in zip(row, widths, strict=True)]
            yield f"  {'  '.join(cells)}".rstrip()


def table(rows: Iterable[Sequence[str]], *, width: int = WIDTH, clip: bool = False) -> str:
    """The first row is the head. The text, ending in a newline."""
    page = _Page(width, clip=clip)
    return "".join(f"{line.removeprefix('  ')}\n" for line in page.table(rows))


def screen(shown: Screen, *, width: int = WIDTH, clip: bool = False) -> str:
    """The text, ending in a newline, in lines of ``width`` characters, tables with ``clip``."""
    return "".join(f"{line}\n" for line in _lines(shown, _Page(width, clip=clip)))


def _lines(shown: Screen, page: _Page) -> Iterator[str]:
    for line in shown.heading:
        yield from page.wrapped(line, hang=2) or [""]
    yield ""
    # A verdict that explains itself needs its reason once.
    reason = "" if shown.reason == shown.verdict else f" ({shown.reason})"
    yield f"Verdict: {shown.verdict}{reason}"
    yield from page.wrapped(shown.message, by=2)
    yield ""
    yield from _facts(shown.facts, page)
    if shown.admission:
        yield "Admission"
        yield from _facts(shown.admission, page)
    if shown.ranks:
        yield from page.table(_rank_rows(shown.ranks))
        yield ""
    if shown.generations:
        head, *lines = page.table(_generation_rows(shown.generations))
        yield head
        for line, row in zip(lines, shown.generations, strict=True):
            yield line
            for note in row.notes:
                yield from page.wrapped(note, by=4)
        yield from page.wrapped(shown.remark, by=2)
        yield ""
    yield "Findings" if shown.findings else "Findings: none"
    for finding in shown.findings:
        blocks = ", refused with onReject: Block" if finding.blocks else ""
        yield f"  {finding.severity.value} {finding.reason}{blocks}"
        yield from page.wrapped(finding.message, by=4)
    yield from _changes(shown, page)
    if shown.step is not None:
        yield ""
        text, more = shown.step
        yield from page.wrapped(f"Next: {text}", hang=2)
        yield from page.wrapped(more, by=2)


def _changes(shown: Screen, page: _Page) -> Iterator[str]:
    if not shown.changes and not shown.changes_remark:
        return
    yield ""
    yield "Last changes"
    width = max((len(age) for age, _, _ in shown.changes), default=0)
    for age, title, message in shown.changes:
        room = max(page.width - width - len(title) - 6, 20)
        # One line each: the document has them whole.
        said = textwrap.shorten(message, room, placeholder="…")
        yield f"  {age:>{width}}  {title}{': ' if said else ''}{said}"
    yield from page.wrapped(shown.changes_remark, by=2)


def _facts(facts: Sequence[tuple[str, str]], page: _Page) -> Iterator[str]:
    width = max((len(name) for name, _ in facts), default=0)
    for name, text in facts:
        lines = textwrap.wrap(text, max(page.width - width - 4, 20)) or [_UNKNOWN]
        for place, line in enumerate(lines):
            yield f"  {name if place == 0 else '':{width}}  {line}"
    if facts:
        yield ""


def _rank_rows(ranks: Sequence[RankRow]) -> Iterator[list[str]]:
    yield ["RANK", "WHERE", "READY", "READS", "ROUND TRIP", "USED"]
    for rank in ranks:
        yield [
            str(rank.rank),
            rank.where,
            "yes" if rank.ready else "no",
            _UNKNOWN if rank.bytes_per_second is None else gigabits(rank.bytes_per_second),
            _UNKNOWN if rank.round_trip_seconds is None else seconds(rank.round_trip_seconds),
            _used(rank),
        ]


def _generation_rows(generations: Sequence[GenerationRow]) -> Iterator[list[str]]:
    yield ["GENERATION", "STATE", "CAUSE", "FOR", "READY PODS"]
    for row in generations:
        cells = (row.id, row.state, row.cause, row.age, row.ready)
        yield [_UNKNOWN if cell is None else cell for cell in cells]


def _clipped(cell: str, width: int) -> str:
    return f"{cell:{width}}" if len(cell) <= width else f"{cell[: width - 1]}…"


def _used(rank: RankRow) -> str:
    if rank.used_bytes is None:
        return _UNKNOWN
    return size(rank.used_bytes) + (f" of {size(rank.max_bytes)}" if rank.max_bytes else "")
