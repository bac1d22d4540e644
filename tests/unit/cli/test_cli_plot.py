"""``kvtier plan --plot``: the picture's geometry is that of the figures."""

import itertools
import math
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import kvtier, one_line

from kvtier.api.load import load_file
from kvtier.breakeven.tier import assess
from kvtier.cli.plot import CHARACTER, HEIGHT, WIDTH

TierFile = Callable[..., Path]
Point = tuple[float, float]
SVG = "{http://www.w3.org/2000/svg}"
SAMPLES = Path(__file__).parents[3] / "deploy" / "samples"
TIERS = sorted(path for path in SAMPLES.glob("*.yaml") if "kind: KVCacheTier" in path.read_text())
HASHED: dict[str, Any] = {
    "pool.striping": "Hash",
    "pool.prefillRate": [
        {"tokens": 1000, "tokensPerSecond": 20000},
        {"tokens": 8000, "tokensPerSecond": 90000},
        {"tokens": 64000, "tokensPerSecond": 4000},
    ],
    "workload": {"promptTokens": [{"quantile": "0.5", "tokens": 900}]},
}


def drawn(file: Path, *arguments: str) -> ElementTree.Element:
    svg = file.parent / "plot.svg"
    completed = kvtier("plan", "-f", file, "--plot", svg, *arguments)
    assert completed.stderr == b""
    return ElementTree.fromstring(svg.read_text())


def points(svg: ElementTree.Element, name: str) -> list[Point]:
    [line] = svg.findall(f".//{SVG}polyline[@id='{name}']")
    return [
        (float(x), float(y)) for x, y in (pair.split(",") for pair in line.attrib["points"].split())
    ]


def at(line: list[Point], x: float) -> float:
    for (left, low), (right, high) in itertools.pairwise(line):
        if left <= x <= right:
            return low + (high - low) * (x - left) / (right - left)
    raise AssertionError(f"{x} is not on the line")


def crossings(svg: ElementTree.Element) -> list[float]:
    """Where the fetch becomes the faster one; y grows downwards."""
    both = list(zip(points(svg, "recompute"), points(svg, "fetch"), strict=True))
    faster = [(x, fetch > recompute) for (x, recompute), (_, fetch) in both]
    return [x for (_, before), (x, now) in itertools.pairwise(faster) if now > before]


def every_sample(tier_file: TierFile) -> Iterator[tuple[Path, tuple[str, ...]]]:
    for path in TIERS:
        copy = tier_file()
        copy.write_text(path.read_text())
        yield copy, ()
        yield copy, ("--what-if", "bandwidth=400G,roundTrip=1us,hitLatency=1us,hitEngineTime=1us")
        yield copy, ("--what-if", "bandwidth=100M,roundTrip=20ms,hitLatency=9s,hitEngineTime=9s")
    yield tier_file(HASHED), ()
    yield tier_file({"placement": None}), ()
    yield tier_file(), ("--what-if", "bandwidth=13.2G")


def texts(svg: ElementTree.Element) -> list[tuple[float, float, float, float, str]]:
    """The boxes of all labels as drawn: left, top, right, bottom."""
    boxes = []
    for label in svg.findall(f"{SVG}text"):
        text, size = label.text or "", float(label.attrib.get("font-size", "12"))
        width = len(text) * CHARACTER * size / 12
        x, y = float(label.attrib["x"]), float(label.attrib["y"])
        left = (
            x
            - {"start": 0, "middle": width / 2, "end": width}[
                label.attrib.get("text-anchor", "start")
            ]
        )
        boxes.append((left, y - size * 0.8, left + width, y + size * 0.2, text))
    return boxes


@pytest.mark.parametrize(
    ("changes", "asked", "hit"),
    [
        ({}, "", 3470),
        (HASHED, "", None),
        ({}, "bandwidth=10G,compression=3.5", 2639),  # as docs/break-even.md has it
    ],
)
def test_the_lines_cross_at_the_minimum_hit(
    tier_file: TierFile, changes: Any, asked: str, hit: float | None
) -> None:
    file = tier_file(changes)
    svg = drawn(file, "--what-if", asked)
    [circle] = svg.findall(f".//{SVG}circle[@id='minimum-hit']")
    x, y = float(circle.attrib["cx"]), float(circle.attrib["cy"])
    assert crossings(svg)[0] == pytest.approx(x, abs=0.01)
    assert at(points(svg, "recompute"), x) == pytest.approx(y, abs=0.1)
    assert at(points(svg, "fetch"), x) == pytest.approx(y, abs=0.3)
    hit = hit or assess(load_file(str(file)).spec).minimum_hit
    assert f"minimum hit {hit:,.0f} tokens" in [text for *_, text in texts(svg)]


def test_the_axes_are_logarithmic_and_the_figures_are_those_of_the_table(
    tier_file: TierFile,
) -> None:
    svg = drawn(tier_file())
    ticks = {text: (left + right) / 2 for left, _, right, _, text in texts(svg)}
    tops = {text: top + 12 * 0.8 - 4 for _, top, _, _, text in texts(svg)}
    decade = tops["1 s"] - tops["10 s"]
    rows = assess(load_file(str(tier_file())).spec).rows
    for row in rows:
        x = ticks[f"{row.tokens:,}"]
        assert x == pytest.approx(
            ticks["1,024"] + (ticks["2,048"] - ticks["1,024"]) * math.log2(row.tokens / 1024),
            abs=0.5,
        )
        for name, duration in (
            ("recompute", row.recompute_seconds),
            ("fetch", row.fetch_seconds or 0),
        ):
            expected = tops["1 s"] - decade * math.log10(duration)
            assert at(points(svg, name), x) == pytest.approx(expected, abs=0.5)


def test_at_the_break_even_bandwidth_no_fetch_wins(tier_file: TierFile) -> None:
    svg = drawn(tier_file())
    least = points(svg, "fetch-at-break-even")
    assert all(y < at(points(svg, "recompute"), x) for x, y in least)
    assert "13.1 Gb/s" in [text for *_, text in texts(svg)]


def test_everything_is_on_the_paper_and_no_labels_overlap(tier_file: TierFile) -> None:
    for file, arguments in every_sample(tier_file):
        svg = drawn(file, *arguments)
        assert svg.attrib["viewBox"] == f"0 0 {WIDTH} {HEIGHT}"
        for line in svg.findall(f".//{SVG}polyline"):
            for x, y in points(svg, line.attrib["id"]):
                assert 0 <= x <= WIDTH
                assert 0 <= y <= HEIGHT
        boxes = texts(svg)
        for index, (left, top, right, bottom, text) in enumerate(boxes):
            assert left >= 0, text
            assert right <= WIDTH, text
            assert bottom <= HEIGHT, text
            for other in boxes[index + 1 :]:
                apart = right < other[0] or other[2] < left or bottom < other[1] or other[3] < top
                assert apart, (arguments, text, other[-1])


def test_grey_is_where_a_fetch_wins(tier_file: TierFile) -> None:
    svg = drawn(tier_file())
    [grey] = svg.findall(f".//{SVG}rect[@class='wins']")
    left = float(grey.attrib["x"])
    assert left == pytest.approx(crossings(svg)[0], abs=0.1)
    assert left + float(grey.attrib["width"]) == pytest.approx(points(svg, "fetch")[-1][0], abs=0.1)


def test_lines_differ_without_colour(tier_file: TierFile) -> None:
    svg = drawn(tier_file())
    lines = svg.findall(f".//{SVG}polyline")
    assert len({line.attrib.get("stroke-dasharray") for line in lines}) == len(lines) == 3
    colours = re.findall(r'(?:stroke|fill)="([^"]+)"', ElementTree.tostring(svg, "unicode"))
    assert {colour for colour in colours if not re.fullmatch(r"#(..)\1\1", colour)} == {
        "black",
        "white",
        "none",
    }


def test_declared_lengths_are_ticks(tier_file: TierFile) -> None:
    svg = drawn(tier_file(HASHED))
    ticks = svg.findall(f".//{SVG}path[@class='declared']")
    assert len(ticks) == 4  # 900, 1,000, 8,000 and 64,000
    words = [text for *_, text in texts(svg)]
    assert {"900", "8,000", "64,000"} <= set(words)
    assert "tokens of the hit; ticks below: workload.promptTokens, pool.prefillRate" in words


def test_a_reader_who_cannot_see_it_hears_title_and_verdict(tier_file: TierFile) -> None:
    svg = drawn(tier_file())
    assert svg.attrib["role"] == "img"
    assert svg.attrib["aria-labelledby"] == "title description"
    title, description = svg.find(f"{SVG}title"), svg.find(f"{SVG}desc")
    assert title is not None
    assert title.text == "llama-prefill: fetch the KV of a prompt, or compute it again?"
    assert description is not None
    assert description.text == assess(load_file(str(tier_file())).spec).message


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"placement": None}, "no fetch is drawn without placement.links"),
        ({"pool.hitLatency": None}, "no fetch is drawn without pool.hitLatency"),
    ],
)
def test_without_link_or_fixed_time_there_is_no_fetch(
    tier_file: TierFile, changes: Any, said: str
) -> None:
    svg = drawn(tier_file(changes))
    assert [line.attrib["id"] for line in svg.findall(f".//{SVG}polyline")] == ["recompute"]
    assert any(said in text for *_, text in texts(svg))


def test_a_link_below_break_even_has_no_minimum_hit(tier_file: TierFile) -> None:
    svg = drawn(tier_file(), "--what-if", "bandwidth=10G")
    assert svg.findall(f".//{SVG}circle") == svg.findall(f".//{SVG}rect[@class='wins']") == []
    words = [text for *_, text in texts(svg)]
    assert any(text.endswith("8 ranks. What if: bandwidth=10G") for text in words)
    assert any(text.startswith("NeverPays.") and "no hit is long enough" in text for text in words)


def test_hits_that_lose_again_are_not_drawn_as_a_half_line(tier_file: TierFile) -> None:
    rates = [
        {"tokens": 4096, "tokensPerSecond": 1000},
        {"tokens": 65_536, "tokensPerSecond": 20_000},
    ]
    link = [{"domain": "zone", "bitsPerSecond": "15G", "roundTrip": "50us"}]
    file = tier_file({"pool.prefillRate": rates, "placement.links": link})
    svg = drawn(file)
    [grey] = svg.findall(f".//{SVG}rect[@class='wins']")
    ticks = {text: (left + right) / 2 for left, _, right, _, text in texts(svg)}
    end = float(grey.attrib["x"]) + float(grey.attrib["width"])
    assert ticks["16,384"] < end < ticks["65,536"]
    words = [text for *_, text in texts(svg)]
    assert any(text.endswith("; hits of 400 to 17,569 tokens win.") for text in words)
    assert "(2 chunks); all above 17,569 lose again" in kvtier("plan", "-f", file).stdout.decode()


def test_names_that_xml_has_no_place_for_are_drawn_all_the_same(tier_file: TierFile) -> None:
    svg = drawn(tier_file({"model.name": "a<b>&\x01'\"" + "x" * 200}))
    [line] = [text for *_, text in texts(svg) if text.startswith("a<b>&\ufffd'\"")]
    assert line.endswith("…")


def test_the_same_tier_is_the_same_picture(tier_file: TierFile, tmp_path: Path) -> None:
    pictures = []
    for name in ("a.svg", "b.svg"):
        kvtier("plan", "-f", tier_file(), "--plot", tmp_path / name)
        pictures.append((tmp_path / name).read_text())
    assert pictures[0] == pictures[1]


def test_the_exit_code_stays_the_verdict_and_the_table_is_printed(tier_file: TierFile) -> None:
    file = tier_file()
    asked = ("plan", "-f", file, "--what-if", "bandwidth=10G")
    completed = kvtier(*asked, "--plot", file.with_suffix(".svg"))
    assert (completed.returncode, completed.stdout) == (3, kvtier(*asked).stdout)


def test_the_tier_s_own_file_is_not_overwritten(tier_file: TierFile) -> None:
    file = tier_file()
    before = file.read_text()
    completed = kvtier("plan", "-f", file, "--plot", file)
    assert completed.returncode == 2
    assert b"does not end in .svg; write such a name" in completed.stderr
    assert file.read_text() == before


def test_what_cannot_be_written_or_drawn_is_one_line(tier_file: TierFile, tmp_path: Path) -> None:
    file = tier_file()
    missing = one_line(kvtier("plan", "-f", file, "--plot", tmp_path / "none" / "a.svg"))
    assert missing.endswith("No such file or directory; name a file that can be written")
    access = ("--what-if", "access=PerTokenStream")
    stream = one_line(kvtier("plan", "-f", file, "--plot", tmp_path / "a.svg", *access))
    assert stream.startswith("--plot: draws fetches of OncePerRequest only; leave out access=")
    assert not (tmp_path / "a.svg").exists()
