"""``kvtier simulate storm --plot``: hits, limit, queue and time to first token, over one time.

Black on white, as the other plot: dashes tell lines apart, grey says when it was a storm.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kvtier.admission.storm import State
from kvtier.breakeven.words import digits
from kvtier.cli.plot import CHARACTER, WIDTH, cut, label, text_of
from kvtier.cli.simulate_report import Report

LEFT, RIGHT, TOP = 78, 600, 96
PANEL: Final = 120
"""Pixels of a panel, and of the room between two."""
GAP: Final = 40
HEIGHT: Final = TOP + 4 * (PANEL + GAP) + 30
_SHADES: Final = {State.STORM: "#dcdcdc", State.RECOVERING: "#f0f0f0"}
_LONGEST_LINE: Final = int((WIDTH - 32) / CHARACTER)
_STEP: Final = 5.0
"""Seconds of a point of what is counted rather than known at a moment."""

Point = tuple[float, float | None]


@dataclass(frozen=True, slots=True)
class _Line:
    """``points`` are (seconds, value), None where the line is broken."""

    name: str
    label: str
    points: Sequence[Point]
    dashes: str = ""
    width: float = 2.0


@dataclass(frozen=True, slots=True)
class _Panel:
    title: str
    lines: tuple[_Line, ...]
    shown: Callable[[float], str]
    most: float

    def y(self, value: float, *, top: int) -> float:
        return top + PANEL * (1 - min(value, self.most) / self.most)


def plot(report: Report) -> str:
    """An SVG document."""
    title = f"{report.name}: a storm, admission {'on' if report.plan.admission else 'off'}"
    body = [*_heading(report, title), *_shades(report)]
    for number, panel in enumerate(_panels(report)):
        body += _draw(panel, report, top=TOP + number * (PANEL + GAP))
    body += _moments(report)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" role="img" aria-labelledby="title description" '
        'font-family="sans-serif" font-size="12">\n'
        f'<title id="title">{text_of(title)}</title>\n'
        f'<desc id="description">{text_of(_said(report))}</desc>\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def _panels(report: Report) -> list[_Panel]:
    steps = replace(report, step=min(_STEP, report.plan.duration / 2)).rows
    looks = report.run.looks
    offered = [(row.at, row.admitted + row.shed) for row in steps]
    queue = [(look.at, look.queue_seconds) for look in looks]
    p99 = [(row.at, row.ttft_p99) for row in steps]
    p50 = [(row.at, row.ttft_p50) for row in steps]
    most_offered = max((value for _, value in offered), default=1.0)
    return [
        _Panel(
            "share of prompt tokens that hit",
            (_Line("hits", "hits", [(row.at, row.hit_rate) for row in steps]),),
            lambda value: f"{value:.0%}",
            1.0,
        ),
        _Panel(
            "prompt tokens/s",
            (
                _Line("offered", "offered", offered, dashes="2 3", width=1.4),
                _Line("limit", "limit", [(look.at, look.limit) for look in looks]),
                _Line("admitted", "let in", [(row.at, row.admitted) for row in steps], "7 4", 1.6),
            ),
            lambda value: f"{value:,.0f}",
            _round_up(1.2 * most_offered),
        ),
        _Panel(
            "seconds of work that wait in each engine",
            (_Line("queue", "queue", queue),),
            lambda value: f"{digits(value)} s",
            _round_up(max((value for _, value in queue), default=1.0)),
        ),
        _Panel(
            "time to first token, of requests that came then",
            (_Line("p99", "p99", p99), _Line("p50", "p50", p50, "7 4", 1.6)),
            lambda value: f"{digits(value)} s",
            _round_up(max((value for _, value in p99 if value is not None), default=1.0)),
        ),
    ]


def _said(report: Report) -> str:
    p99 = report.ttft_p99
    words = [] if p99 is None else [f"p99 TTFT under the limit {digits(p99)} s"]
    words.append(f"longest queue {digits(report.worst_queue)} s")
    if report.opened is not None:
        words.append(f"Open {digits(report.opened - report.plan.wipe_at)} s after the wipe")
    text = ", ".join(words)
    return f"{text}."


def _heading(report: Report, title: str) -> Iterator[str]:
    plan = report.plan
    about = (
        f"{plan.engines} engines, {digits(plan.requests_per_second)} requests/s, zero-hit capacity"
        f" {digits(report.zero_hit_capacity)} tokens/s. Grey: Storm; light grey: Recovering."
    )
    yield f'<text x="16" y="26" font-size="15" font-weight="bold">{text_of(title)}</text>'
    for y, line in ((47, about), (64, _said(report))):
        yield f'<text x="16" y="{y}">{text_of(cut(line, _LONGEST_LINE))}</text>'


def _x(at: float, report: Report) -> float:
    return LEFT + (RIGHT - LEFT) * at / report.plan.duration


def _shades(report: Report) -> Iterator[str]:
    """When it was a storm, behind all panels."""
    bottom = TOP + 4 * (PANEL + GAP) - GAP
    looks = report.run.looks
    begin = 0
    for end in range(1, len(looks) + 1):
        if end < len(looks) and looks[end].state is looks[begin].state:
            continue
        shade = _SHADES.get(looks[begin].state)
        if shade is not None:
            left = _x(looks[begin].at, report)
            right = _x(looks[min(end, len(looks) - 1)].at, report)
            yield (
                f'<rect class="{looks[begin].state.value}" x="{left:.1f}" y="{TOP}" '
                f'width="{right - left:.1f}" height="{bottom - TOP}" fill="{shade}"/>'
            )
        begin = end


def _draw(panel: _Panel, report: Report, *, top: int) -> Iterator[str]:
    for value in (0.0, panel.most / 2, panel.most):
        y = panel.y(value, top=top)
        yield f'<path d="M{LEFT} {y:.1f}H{RIGHT}" stroke="#d0d0d0" stroke-width="0.7"/>'
        yield label(LEFT - 8, y + 4, panel.shown(value), anchor="end")
    yield (f'<path d="M{LEFT} {top}V{top + PANEL}H{RIGHT}" fill="none" stroke="black"/>')
    yield label(LEFT, top - 8, panel.title)
    free = float(top)
    for line in panel.lines:
        yield from _pieces(line, panel, report, top=top)
        known = [value for _, value in line.points if value is not None]
        if known:
            y = max(free, panel.y(known[-1], top=top))
            free = y + 16
            yield (
                f'<path d="M{RIGHT + 10} {y:.1f}h26" stroke="black" '
                f'stroke-width="{line.width:g}"{_dashes(line)}/>'
            )
            yield label(RIGHT + 44, y + 4, line.label)


def _pieces(line: _Line, panel: _Panel, report: Report, *, top: int) -> Iterator[str]:
    """A line, broken where there is no value."""
    piece: list[str] = []
    for at, value in [*line.points, (math.nan, None)]:
        if value is not None:
            piece.append(f"{_x(at, report):.1f},{panel.y(value, top=top):.1f}")
        elif piece:
            yield (
                f'<polyline class="{line.name}" points="{" ".join(piece)}" fill="none" '
                f'stroke="black" stroke-width="{line.width:g}"{_dashes(line)}/>'
            )
            piece = []


def _dashes(line: _Line) -> str:
    return f' stroke-dasharray="{line.dashes}"' if line.dashes else ""


def _moments(report: Report) -> Iterator[str]:
    """The time axis, and the moment of the wipe."""
    bottom = TOP + 4 * (PANEL + GAP) - GAP
    step = _round_up(report.plan.duration / 8)
    for number in range(int(report.plan.duration / step) + 1):
        x = _x(number * step, report)
        yield f'<path d="M{x:.1f} {bottom}v6" stroke="black"/>'
        yield label(x, bottom + 20, f"{digits(number * step)} s", anchor="middle")
    x = _x(report.plan.wipe_at, report)
    yield f'<path id="wipe" d="M{x:.1f} {TOP}V{bottom}" stroke="black" stroke-dasharray="2 2"/>'
    yield label(x - 4, bottom + 38, "the rank restarts empty", anchor="middle")


def _round_up(value: float) -> float:
    """The next of 1, 2, 3 and 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 2, 3, 5, 10) if factor * power >= value * 0.999)
