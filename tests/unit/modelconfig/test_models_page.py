"""docs/models.md shows what the code computes from the public configs.

``python tests/unit/modelconfig/test_models_page.py`` writes its tables anew.
"""

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from public_models import HERE, MODELS, TABLE, config

from kvtier.api.types import Attention, Layout
from kvtier.breakeven.footprint import of_layout
from kvtier.breakeven.model import break_even_bandwidth
from kvtier.breakeven.words import gigabits
from kvtier.cli.main import main
from kvtier.modelconfig.architectures import ARCHITECTURES
from kvtier.modelconfig.read import read

PAGE = Path(__file__).parents[3] / "docs" / "models.md"
RATE = 10_000
PART = "<!-- {name}: written by tests/unit/modelconfig/test_models_page.py -->\n{body}<!-- end -->"
KINDS = {
    Attention.FULL: "full",
    Attention.SLIDING_WINDOW: "window",
    Attention.LINEAR: "linear",
    Attention.SPARSE_INDEX: "index",
}


def models() -> str:
    lines = [
        "| model | layers | bfloat16: each token | once | fp8: each token | once | break-even |",
        "|---|---|---|---|---|---|---|",
        *(_model(model) for model in MODELS),
    ]
    return "\n".join(lines) + "\n"


def _model(model: dict[str, Any]) -> str:
    layout = read(config(model["config"])).layout
    cells = [model["name"], _layers(layout)]
    for element_bytes in (2, 1):
        footprint = of_layout(layout, element_bytes)
        cells += [f"{int(footprint.slope):,}", f"{footprint.constant:,}"]
    slope = float(of_layout(layout, 2).slope)
    cells.append(gigabits(break_even_bandwidth(bytes_per_token=slope, rate=RATE)))
    return f"| {' | '.join(cells)} |"


def _layers(layout: Layout) -> str:
    if described := layout.gqa or layout.mla:
        return str(described.layers)
    counts: defaultdict[str, int] = defaultdict(int)
    for group in layout.groups or ():
        counts[KINDS[group.attention]] += group.layers
    return ", ".join(f"{count} {kind}" for kind, count in counts.items())


def architectures() -> str:
    families: defaultdict[str, list[str]] = defaultdict(list)
    for name, architecture in sorted(ARCHITECTURES.items()):
        families[architecture.family.value].append(f"`{name}`")
    lines = ["| what its layers keep | `architectures` |", "|---|---|"]
    lines += [f"| {family} | {', '.join(names)} |" for family, names in families.items()]
    return "\n".join(lines) + "\n"


PARTS = {"models": models, "architectures": architectures}


@pytest.mark.parametrize("name", PARTS)
def test_a_table_of_the_page_is_what_the_code_computes(name: str) -> None:
    assert PART.format(name=name, body=PARTS[name]()) in PAGE.read_text()


def test_the_quoted_command_prints_what_the_page_shows(capsys: pytest.CaptureFixture[str]) -> None:
    path = HERE / "configs" / "qwen3.5-397b-a17b.json"
    assert main(["layout", "--model-config", str(path)]) == 0
    quoted = f"$ kvtier layout --model-config config.json\n{capsys.readouterr().out}```"
    assert quoted in PAGE.read_text()


def test_figures_in_the_text_are_those_of_the_table() -> None:
    text = " ".join(PAGE.read_text().split())
    for row in TABLE["throughput"]:
        assert f"{row['rate'] * 1000:,.0f}" in text
        assert f"({row['gigabits']}" in text
    # One tap more of the convolution in each of 45 linear layers.
    more = 45 * (2 * 16 * 128 + 64 * 128) * 2
    assert f"that is {more / 1e6:.1f} MB more of 192 MB" in text
    assert json.dumps(config("glm-5.2")["num_hidden_layers"]) == "78"


if __name__ == "__main__":
    page = PAGE.read_text()
    for name, body in PARTS.items():
        pattern = re.compile(PART.format(name=name, body=r".*?"), re.DOTALL)
        page = pattern.sub(lambda _, n=name, b=body: PART.format(name=n, body=b()), page)
    PAGE.write_text(page)
