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
    own."""

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


def screen(shown: Screen) -> str:
    """The text, ending in a newline."""
    return "".join(f"{line}\n" for line in _lines(shown))


def _lines(shown: Screen) -> Iterator[str]:
    for line in shown.heading:
        yield from textwrap.wrap(line, WIDTH, subsequent_indent="  ") or [""]
    yield ""
    # A verdict that explains itself needs its reason once.
    reason = "" if shown.reason == shown.verdict else f" ({shown.reason})"
    yield f"Verdict: {shown.verdict}{reason}"
    yield from _indented(shown.message)
    yield ""
    yield from _facts(shown.facts)
    if shown.admission:
        yield "Admission"
        yield from _facts(shown.admission)
    if shown.ranks:
        yield from _table(_rank_rows(shown.ranks))
        yield ""
    if shown.generations:
        head, *lines = _table(_generation_rows(shown.generations))
        yield head
        for line, row in zip(lines, shown.generations, strict=True):
            yield line
            for note in row.notes:
                yield from _indented(note, by=4)
        yield from _indented(shown.remark)
        yield ""
    if not shown.findings:
        yield "Findings: none"
        return
    yield "Findings"
    for finding in shown.findings:
        blocks = ", refused with onReject: Block" if finding.blocks else ""
        yield f"  {finding.severity.value} {finding.reason}{blocks}"
        yield from _indented(finding.message, by=4)


def _facts(facts: Sequence[tuple[str, str]]) -> Iterator[str]:
    width = max((len(name) for name, _ in facts), default=0)
    for name, text in facts:
        lines = textwrap.wrap(text, WIDTH - width - 4) or [_UNKNOWN]
        for place, line in enumerate(lines):
            yield f"  {name if place == 0 else '':{width}}  {line}"
    if facts:
        yield ""


def _indented(text: str, *, by: int = 2) -> list[str]:
    space = " " * by
    return textwrap.wrap(text, WIDTH, initial_indent=space, subsequent_indent=space)


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


def _table(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    columns = [
        column
        for column in zip(*rows, strict=True)
        if column[0] in _ALWAYS or set(column[1:]) - {_UNKNOWN}
    ]
    widths = [max(map(len, column)) for column in columns]
    for row in zip(*columns, strict=True):
        cells = [f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)]
        yield f"  {'  '.join(cells)}".rstrip()


def _used(rank: RankRow) -> str:
    if rank.used_bytes is None:
        return _UNKNOWN
    return size(rank.used_bytes) + (f" of {size(rank.max_bytes)}" if rank.max_bytes else "")
