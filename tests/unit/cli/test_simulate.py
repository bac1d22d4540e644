"""``kvtier simulate storm`` from a tier file: figures, picture, and what it refuses."""

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import kvtier, kvtier_process, one_line

TierFile = Callable[..., Path]
SAMPLES = Path(__file__).parents[3] / "deploy" / "samples"
TIERS = sorted(path for path in SAMPLES.glob("*.yaml") if "kind: KVCacheTier" in path.read_text())
SVG = "{http://www.w3.org/2000/svg}"


def storm(file: Path, *arguments: str) -> dict[str, Any]:
    completed = kvtier("simulate", "storm", "-f", file, "-o", "json", *arguments)
    assert completed.stderr == b""
    assert completed.returncode == 0
    found: dict[str, Any] = json.loads(completed.stdout)
    return found


@pytest.mark.parametrize("file", TIERS, ids=lambda file: file.stem)
def test_at_the_defaults_every_sample_holds_with_admission_and_does_not_without(
    file: Path,
) -> None:
    held = storm(file)["summary"]
    assert held["firstRefusalAfterSeconds"] <= 3.1
    assert held["ttftP99Seconds"] < held["ttftBoundSeconds"]
    assert held["goodputShare"] >= 0.8
    assert held["openAfterSeconds"] < 240
    let_in = storm(file, "--admission", "off")["summary"]
    assert "firstRefusalAfterSeconds" not in let_in
    assert let_in["worstQueueSeconds"] > 5 * held["worstQueueSeconds"]
    assert let_in["ttftP99Seconds"] > 5 * held["ttftBoundSeconds"]


def test_the_same_seed_prints_the_same_bytes() -> None:
    smallest = SAMPLES / "smallest.yaml"
    first, again, other = (
        kvtier_process("simulate", "storm", "-f", smallest, "--seed", seed).stdout
        for seed in ("4", "4", "5")
    )
    assert first == again
    assert first != other


def test_the_load_is_what_the_file_says(tier_file: TierFile) -> None:
    file = tier_file(
        {
            "pool.prefillRate": [{"tokensPerSecond": 20000}],
            "workload": {
                "promptTokens": [{"quantile": "0.5", "tokens": 10000}],
                "requestsPerSecond": "5",
                "hitRate": "0.8",
                "targetTTFT": "1s",
            },
            "pool.maxEngines": 3,
            "pool.hitLatency": "100ms",
            "pool.hitEngineTime": "20ms",
        }
    )
    found = storm(file)
    assert (found["engines"], found["requestsPerSecond"]) == (3, 15)
    summary = found["summary"]
    assert summary["zeroHitTokensPerSecond"] == pytest.approx(0.8 * 3 * 20000)
    assert summary["stormFactor"] == pytest.approx(5)
    assert summary["zeroHitServiceSeconds"] == pytest.approx(0.5)
    assert summary["ttftBoundSeconds"] == pytest.approx(1.5 * 0.5 + 1)
    # 75 s of all engines, 0.4 s of prefill a prefix.
    assert found["prefixes"] == pytest.approx(75 * 3 / 0.4, abs=1)


def test_flags_go_before_the_file(tier_file: TierFile) -> None:
    found = storm(
        tier_file(),
        *("--engines", "4", "--requests-per-second", "6", "--hit-rate", "0.7"),
        *("--prefixes", "50", "--wipe-at", "30s", "--duration", "2m", "--step", "20s"),
    )
    assert (found["engines"], found["requestsPerSecond"], found["prefixes"]) == (4, 6, 50)
    assert [row["atSeconds"] for row in found["rows"]] == [20, 40, 60, 80, 100, 120]
    assert found["rows"][0]["hitRate"] == pytest.approx(0.7, abs=0.001)
    assert found["summary"]["stormFactor"] == pytest.approx(1 / 0.3, rel=0.001)


def test_engines_that_are_slower_than_declared_have_less_capacity(tier_file: TierFile) -> None:
    half = storm(tier_file(), "--true-rate-factor", "0.5")["summary"]
    whole = storm(tier_file())["summary"]
    assert half["zeroHitTokensPerSecond"] == pytest.approx(whole["zeroHitTokensPerSecond"] / 2)
    assert half["zeroHitServiceSeconds"] == pytest.approx(2 * whole["zeroHitServiceSeconds"])


def test_the_table_says_what_decides(tier_file: TierFile) -> None:
    text = kvtier("simulate", "storm", "-f", tier_file()).stdout.decode()
    for word in ("zero-hit capacity", "first refusal", "Open again", "p99 TTFT", "goodput"):
        assert word in text
    assert len([line for line in text.splitlines() if " s  " in line and "%" in line]) == 30
    assert max(len(line) for line in text.splitlines()) <= 120
    off = kvtier("simulate", "storm", "-f", tier_file(), "--admission", "off").stdout.decode()
    assert "The limit is what it would have been." in off


@pytest.mark.parametrize("admission", ["on", "off"])
def test_the_picture_has_four_panels_and_the_figures_of_the_run(
    tier_file: TierFile, tmp_path: Path, admission: str
) -> None:
    picture = tmp_path / "storm.svg"
    found = storm(tier_file(), "--plot", str(picture), "--step", "5s", "--admission", admission)
    svg = ElementTree.fromstring(picture.read_text())
    lines = {
        name: svg.findall(f".//{SVG}polyline[@class='{name}']")
        for name in ("hits", "offered", "limit", "admitted", "queue", "p99", "p50")
    }
    assert all(lines.values())
    (hits,) = lines["hits"]
    drawn = [float(pair.split(",")[1]) for pair in hits.attrib["points"].split()]
    rates = [row["hitRate"] for row in found["rows"] if "hitRate" in row]
    top, bottom = 96, 96 + 120
    assert drawn == pytest.approx([bottom - (bottom - top) * rate for rate in rates], abs=0.06)
    assert svg.findall(f".//{SVG}rect[@class='Storm']")
    assert svg.findall(f".//{SVG}rect[@class='Recovering']")
    width, height = float(svg.attrib["width"]), float(svg.attrib["height"])
    for line in (each for group in lines.values() for each in group):
        for pair in line.attrib["points"].split():
            x, y = map(float, pair.split(","))
            assert 0 <= x <= width
            assert 0 <= y <= height


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--wipe-at", "300s"), "--wipe-at: 300s is not before the end; give less than"),
        (
            ("--requests-per-second", "1000"),
            "no storm is needed to fill the queue; give less than",
        ),
        (
            (
                *("--engines", "1024", "--duration", "86400s"),
                *("--requests-per-second", "100", "--prefixes", "10"),
            ),
            "requests are more than 2,000,000; give a shorter one",
        ),
        (("--plot", "/no/such/storm.svg"), "No such file or directory; name a file that can be"),
    ],
)
def test_what_makes_no_storm_is_one_line(
    tier_file: TierFile, arguments: tuple[str, ...], said: str
) -> None:
    assert said in one_line(kvtier("simulate", "storm", "-f", tier_file(), *arguments))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--engines", "0"), "'0' is not a whole number from 1 to 1024"),
        (("--hit-rate", "1.5"), "'1.5' is not a number from 0 to 1"),
        (("--hit-rate", "nan"), "'nan' is not a number from 0 to 1"),
        (("--duration", "5s"), "'5s' is not from 10s to 86400s; write such a duration: 90s"),
        (("--wipe-at", "soon"), "soon"),
        (("--true-rate-factor", "0"), "'0' is not a number from 0.1 to 10"),
        (("--seed", "-1"), "--seed"),
        (("--plot", "storm.png"), "'storm.png' does not end in .svg"),
        (("--admission", "maybe"), "--admission"),
    ],
)
def test_a_flag_that_says_nothing_is_refused_by_name(
    tier_file: TierFile, arguments: tuple[str, ...], said: str
) -> None:
    completed = kvtier("simulate", "storm", "-f", tier_file(), *arguments)
    assert completed.returncode == 2
    assert said in completed.stderr.decode()


def test_a_tier_of_which_nothing_hits_has_no_storm(tier_file: TierFile) -> None:
    found = storm(tier_file(), "--hit-rate", "0")
    assert found["summary"]["stormFactor"] == 1
    assert found["summary"]["worstQueueSeconds"] < 10


@pytest.mark.parametrize(("picture", "admission"), [("storm", "on"), ("storm-without", "off")])
def test_the_pictures_of_the_page_are_what_the_command_draws(
    tmp_path: Path, picture: str, admission: str
) -> None:
    drawn = tmp_path / "storm.svg"
    storm(SAMPLES / "llama-3.1-70b.yaml", "--plot", str(drawn), "--admission", admission)
    page = Path(__file__).parents[3] / "docs" / f"{picture}.svg"
    assert drawn.read_text() == page.read_text(), f"draw docs/{picture}.svg again with --plot"
