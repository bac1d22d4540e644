"""``kvtier plan --plot``: seconds of a fetch and of computing again, over the length of the hit.

Both axes are logarithmic: computing again is then a straight line, and a fetch is level while its
fixed time rules and parallel to it once the link does. Black on white: dashes tell the lines apart.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Final

from kvtier.api.types import KVCacheTier
from kvtier.breakeven.assessment import Assessment, Row
from kvtier.breakeven.tier import curve
from kvtier.breakeven.words import digits, gigabits, seconds

WIDTH: Final = 760
HEIGHT: Final = 500
LEFT, RIGHT, TOP, BOTTOM = 78, 560, 92, 420
CHARACTER: Final = 6.6
"""Width of a character of 12 pixels, at most on average: what labels are placed by."""
LINE: Final = 15
_POINTS: Final = 120
_LONGEST_LINE: Final = int((WIDTH - 32) / CHARACTER)
_NOT_XML = re.compile(r"[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class _Line:
    """One curve; ``dashes`` as SVG has them, ``label`` line by line."""

    name: str
    label: tuple[str, ...]
    dashes: str
    width: float
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class _Axes:
    """Where lengths and seconds are on the paper."""

    tokens: tuple[float, float]
    seconds: tuple[float, float]

    def x(self, tokens: float) -> float:
        low, high = self.tokens
        return LEFT + (RIGHT - LEFT) * math.log(tokens / low) / math.log(high / low)

    def y(self, duration: float) -> float:
        low, high = self.seconds
        return BOTTOM - (BOTTOM - TOP) * math.log(duration / low) / math.log(high / low)


def plot(
    tier: KVCacheTier, assessment: Assessment, *, changes: Mapping[str, str] | None = None
) -> str:
    """An SVG document. ``assessment`` is that of ``tier``; ``changes`` what ``--what-if`` asked."""
    lengths = _lengths(assessment)
    lines = _lines(tier, assessment, lengths)
    values = [value for line in lines for _, value in line.points]
    axes = _Axes(tokens=(lengths[0], lengths[-1]), seconds=_round_bounds(min(values), max(values)))
    title = f"{tier.metadata.name}: fetch the KV of a prompt, or compute it again?"
    hit = assessment.minimum_hit
    if hit is not None and math.isinf(hit):
        hit = None
    body = [
        *_heading(tier, assessment, title=title, changes=changes or {}),
        *(_winning(lines, axes) if hit else ()),
        *_grid(axes),
        *_declared(tier, axes),
        *(_curve(line, axes) for line in lines),
        *_labels(lines, axes),
        *(_minimum_hit(hit, lines[0], axes) if hit else ()),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" role="img" aria-labelledby="title description" '
        'font-family="sans-serif" font-size="12">\n'
        f'<title id="title">{text_of(title)}</title>\n'
        f'<desc id="description">{text_of(assessment.message)}</desc>\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def _lengths(assessment: Assessment) -> list[int]:
    """Lengths of the points of a curve: evenly spaced on the paper, and all that are named."""
    named = {row.tokens for row in assessment.rows}
    hit = assessment.minimum_hit
    if hit is not None and math.isfinite(hit):
        named |= {max(1, int(hit) // 2), int(hit), int(hit) * 2}
    low, high = min(named), max(named)
    between = (low * (high / low) ** (step / _POINTS) for step in range(1, _POINTS))
    return sorted(named.union(round(tokens) for tokens in between))


def _lines(tier: KVCacheTier, assessment: Assessment, lengths: Sequence[int]) -> list[_Line]:
    spec, link = tier.spec, assessment.link
    rows = curve(spec, lengths, link=link, compression=assessment.compression)
    computed = [(row.tokens, row.recompute_seconds) for row in rows]
    lines = [_Line("recompute", ("compute again",), "", 2.2, computed)]
    if link is None or assessment.t0_seconds is None:
        return lines
    slower = replace(link, bytes_per_second=assessment.break_even)
    least = curve(spec, lengths, link=slower, compression=assessment.compression)
    return [
        *lines,
        _Line(
            "fetch",
            (f"fetch over the {link.domain}", f"link, {gigabits(link.bytes_per_second)}"),
            "9 5",
            2.2,
            _fetched(rows),
        ),
        _Line(
            "fetch-at-break-even",
            ("fetch at break-even,", gigabits(assessment.break_even)),
            "1.5 4",
            1.6,
            _fetched(least),
        ),
    ]


def _fetched(rows: Sequence[Row]) -> list[tuple[float, float]]:
    return [(row.tokens, row.fetch_seconds) for row in rows if row.fetch_seconds is not None]


def _heading(
    tier: KVCacheTier, assessment: Assessment, *, title: str, changes: Mapping[str, str]
) -> Iterator[str]:
    model = tier.spec.model
    about = f"{model.name}, KV in {model.kv_cache_dtype.value}, {tier.spec.pool.ranks} ranks"
    if changes:
        about += ". What if: " + ", ".join(f"{name}={value}" for name, value in changes.items())
    verdict = f"{assessment.verdict.value}. Break-even {gigabits(assessment.break_even)}"
    if assessment.ratio is not None:
        verdict += f", the link is {digits(assessment.ratio)} times as fast"
    yield f'<text x="16" y="26" font-size="15" font-weight="bold">{text_of(title)}</text>'
    for y, line in ((47, about), (64, f"{verdict}{_lacking(assessment)}.")):
        yield f'<text x="16" y="{y}">{text_of(cut(line, _LONGEST_LINE))}</text>'


def _lacking(assessment: Assessment) -> str:
    """The minimum hit, or why there is none."""
    if assessment.link is None:
        return "; no fetch is drawn without placement.links"
    if assessment.t0_seconds is None:
        return "; no fetch is drawn without pool.hitLatency and hitEngineTime"
    if assessment.minimum_hit is None or math.isinf(assessment.minimum_hit):
        return "; no hit is long enough"
    if assessment.wins is not None and math.isfinite(assessment.wins.most):
        return f"; hits of {assessment.wins.inside().rstrip(',')} win"
    return f"; minimum hit {assessment.minimum_hit:,.0f} tokens"


def _grid(axes: _Axes) -> Iterator[str]:
    low, high = axes.seconds
    wide = high / low > 150
    for duration in _round_values(low, high):
        y = axes.y(duration)
        yield f'<path d="M{LEFT} {y:.1f}H{RIGHT}" stroke="#d0d0d0" stroke-width="0.7"/>'
        if not wide or f"{duration:e}".startswith("1"):
            yield label(LEFT - 8, y + 4, seconds(duration), anchor="end")
    least, most = (math.log2(bound) for bound in axes.tokens)
    powers = range(math.ceil(least - 1e-9), math.floor(most + 1e-9) + 1)
    for power in powers[:: max(1, math.ceil(len(powers) / 8))]:
        x = axes.x(2**power)
        yield f'<path d="M{x:.1f} {TOP}V{BOTTOM}" stroke="#d0d0d0" stroke-width="0.7"/>'
        yield label(x, BOTTOM + 18, f"{2**power:,}", anchor="middle")
    yield f'<path d="M{LEFT} {TOP}V{BOTTOM}H{RIGHT}" fill="none" stroke="black"/>'
    yield label(LEFT, TOP - 8, "time until the KV is there")


def _declared(tier: KVCacheTier, axes: _Axes) -> Iterator[str]:
    """A tick at each length that the file names, and its figure where there is room."""
    spec = tier.spec
    sources = {
        "workload.hitTokens": [item.tokens for item in spec.workload.hit_tokens],
        "workload.promptTokens": [item.tokens for item in spec.workload.prompt_tokens],
        "pool.prefillRate": [item.tokens for item in spec.pool.prefill_rate if item.tokens],
    }
    named = [name for name, lengths in sources.items() if lengths]
    end = 0.0
    for tokens in sorted({tokens for lengths in sources.values() for tokens in lengths}):
        x, text = axes.x(tokens), f"{tokens:,}"
        yield (
            f'<path class="declared" d="M{x:.1f} {BOTTOM + 24}v10" stroke="black" '
            'stroke-width="1.6"/>'
        )
        half = len(text) * CHARACTER / 2
        if x - half > end:
            yield label(x, BOTTOM + 47, text, anchor="middle")
            end = x + half + CHARACTER
    below = f"; ticks below: {', '.join(named)}" if named else ""
    yield label(LEFT, BOTTOM + 68, f"tokens of the hit{below}")


def _winning(lines: Sequence[_Line], axes: _Axes) -> Iterator[str]:
    """The lengths at which the fetch is faster, in grey."""
    recompute, fetch = (line.points for line in lines[:2])
    wins = [
        axes.x(tokens)
        for (tokens, duration), (_, other) in zip(recompute, fetch, strict=True)
        if other < duration
    ]
    step = (RIGHT - LEFT) / _POINTS + 0.5
    begin = wins[0]
    for x, following in zip(wins, [*wins[1:], math.inf], strict=True):
        if following - x > step:
            yield (
                f'<rect class="wins" x="{begin:.1f}" y="{TOP}" width="{x - begin:.1f}" '
                f'height="{BOTTOM - TOP}" fill="#f0f0f0"/>'
            )
            begin = following


def _minimum_hit(hit: float, recompute: _Line, axes: _Axes) -> Iterator[str]:
    x, y = axes.x(hit), axes.y(dict(recompute.points)[hit])
    yield f'<path d="M{x:.1f} {TOP}V{BOTTOM}" stroke="black" stroke-dasharray="2 2"/>'
    yield f'<circle id="minimum-hit" cx="{x:.2f}" cy="{y:.2f}" r="4.5"/>'
    # The corner above the lines is free: they rise to the right.
    side, anchor = (8, "start") if x + 190 < RIGHT else (-8, "end")
    for number, text in enumerate((f"minimum hit {hit:,.0f} tokens", "(grey: a fetch wins)")):
        yield label(x + side, TOP + 16 + LINE * number, text, anchor=anchor)


def _curve(line: _Line, axes: _Axes) -> str:
    points = " ".join(
        f"{axes.x(tokens):.2f},{axes.y(duration):.2f}" for tokens, duration in line.points
    )
    dashes = f' stroke-dasharray="{line.dashes}"' if line.dashes else ""
    return (
        f'<polyline id="{line.name}" points="{points}" fill="none" stroke="black" '
        f'stroke-width="{line.width:g}"{dashes}/>'
    )


def _labels(lines: Sequence[_Line], axes: _Axes) -> Iterator[str]:
    """Each curve's name at its right end, moved down as far as the one above it needs."""
    most = int((WIDTH - RIGHT - 24) / CHARACTER)
    placed = sorted(lines, key=lambda line: axes.y(line.points[-1][1]))
    total = sum(len(line.label) * LINE + 4 for line in lines)
    free = float(TOP - 10)
    for line in placed:
        end = axes.y(line.points[-1][1])
        height = len(line.label) * LINE
        top = min(max(free, end - height / 2), BOTTOM - total)
        free, total = top + height + 4, total - height - 4
        middle = top + height / 2
        yield f'<path d="M{RIGHT} {end:.1f}L{RIGHT + 12} {middle:.1f}" stroke="black"/>'
        for number, text in enumerate(line.label):
            yield label(RIGHT + 16, top + LINE * number + 12, cut(text, most))


def label(x: float, y: float, text: str, *, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text_of(text)}</text>'


def _round_bounds(low: float, high: float) -> tuple[float, float]:
    """The next of 1, 2 and 5 times a power of ten below and above."""
    values = _round_values(low / 5, high * 5)
    return (
        max(value for value in values if value <= low * (1 + 1e-9)),
        min(value for value in values if value > high),
    )


def _round_values(low: float, high: float) -> list[float]:
    """All of 1, 2 and 5 times a power of ten from ``low`` to ``high``."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    values = [float(f"{factor}e{power}") for power in powers for factor in (1, 2, 5)]
    return [value for value in values if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]


def cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def text_of(text: str) -> str:
    """Text of an element: what XML cannot hold at all is replaced."""
    return escape(_NOT_XML.sub("\ufffd", text), quote=False)
