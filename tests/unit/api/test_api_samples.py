"""The samples hold what their comments say."""

import math
import re
from pathlib import Path

import pytest

from kvtier.api.load import load_file
from kvtier.breakeven.tier import assess
from kvtier.generation.record import new_record
from kvtier.render.render import RenderSettings, render

SAMPLES = Path(__file__).parents[3] / "deploy" / "samples"
TIERS = sorted(path for path in SAMPLES.glob("*.yaml") if "kind: KVCacheTier" in path.read_text())


def comment(path: Path) -> str:
    """The comment above the manifest, on one line."""
    lines = path.read_text().split("apiVersion:")[0].splitlines()
    return " ".join(line.lstrip("# ").strip() for line in lines)


def test_the_samples_are_there() -> None:
    assert {path.stem for path in TIERS} >= {"smallest", "llama-3.1-70b", "glm-5-3", "laptop"}


@pytest.mark.parametrize("path", TIERS, ids=lambda path: path.stem)
def test_a_sample_has_the_verdict_that_is_written_beside_it(path: Path) -> None:
    assessment = assess(load_file(str(path)).spec)
    written = re.search(r"Verdict: (\w+)(?: \((\w+)\))?", comment(path))
    assert written is not None
    assert written[1] == assessment.verdict.value
    if written[2]:
        assert written[2] == assessment.reason
    else:
        assert assessment.minimum_hit is not None
        assert math.isfinite(assessment.minimum_hit)
        assert f"from {math.ceil(assessment.minimum_hit):,} tokens on" in comment(path)
        assert f"= {assessment.break_even * 8 / 1e9:.3g} Gb/s" in comment(path)


@pytest.mark.parametrize("path", TIERS, ids=lambda path: path.stem)
def test_a_sample_can_be_rendered(path: Path) -> None:
    tier = load_file(str(path))
    record = new_record(tier.spec, operator_token="a" * 32, engine_token="b" * 32)
    children = render(tier, record, settings=RenderSettings())
    kinds = [child["kind"] for child in children]
    assert kinds.count("StatefulSet") == kinds.count("Service") == tier.spec.pool.ranks


def test_the_paper_s_own_figures_are_in_the_comment_of_its_sample() -> None:
    text = comment(SAMPLES / "glm-5-3.yaml")
    assessment = assess(load_file(str(SAMPLES / "glm-5-3.yaml")).spec)
    assert assessment.gain_seconds is not None
    assert f"lose {-assessment.gain_seconds * 1e3:.0f} ms each" in text
    assert f"recomputes {0.33 * 52200:,.0f} tokens" in text


def test_the_laptop_s_tier_fits_a_laptop() -> None:
    store = load_file(str(SAMPLES / "laptop.yaml")).spec.store
    assert store.memory_bytes == 256 * 2**20
    assert store.cpu.endswith("m")
