"""Public models have the bytes that their configs give by hand, and that others published."""

from typing import Any

import pytest
from public_models import HERE, MODELS, TABLE, config

from kvtier.api.types import Layout
from kvtier.breakeven.footprint import Footprint, of_layout
from kvtier.breakeven.model import break_even_bandwidth
from kvtier.breakeven.words import gigabits
from kvtier.modelconfig.read import read


def of(name: str, element_bytes: int = 2) -> Footprint:
    return of_layout(read(config(name)).layout, element_bytes)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: str(model["config"]))
def test_a_public_model_has_the_bytes_of_its_config(model: dict[str, Any]) -> None:
    for dtype, element_bytes in (("bfloat16", 2), ("fp8", 1)):
        found = of(model["config"], element_bytes)
        assert [found.slope, found.constant] == model[dtype]


def test_there_are_at_least_20_public_configs_and_each_is_in_the_table() -> None:
    files = {path.stem for path in (HERE / "configs").glob("*.json")}
    assert len(files) >= 20
    assert files == {model["config"] for model in MODELS}


@pytest.mark.parametrize("row", TABLE["throughput"], ids=lambda row: str(row["config"]))
def test_published_throughput_of_kv_means_a_plausible_prefill_rate(row: dict[str, Any]) -> None:
    """Throughput is s R: dividing by s gives tokens/s, and s R gives the throughput again."""
    slope = float(of(row["config"]).slope)
    rate = row["gigabits"] * 1e9 / 8 / slope
    assert rate / 1000 == pytest.approx(row["rate"], abs=0.05)
    assert break_even_bandwidth(bytes_per_token=slope, rate=rate) * 8 / 1e9 == pytest.approx(
        row["gigabits"]
    )


@pytest.mark.parametrize(
    ("name", "rate", "gigabytes"),
    [
        ("llama-3.1-70b", 10_000, 3.28),
        ("deepseek-v3", 10_000, 0.70),
        ("qwen3.5-397b-a17b", 30_000, 0.92),
    ],
)
def test_break_even_of_public_models_is_what_others_state(
    name: str, rate: float, gigabytes: float
) -> None:
    found = break_even_bandwidth(bytes_per_token=float(of(name).slope), rate=rate)
    assert found / 1e9 == pytest.approx(gigabytes, abs=0.005)
    assert gigabits(break_even_bandwidth(bytes_per_token=327_680, rate=10_000)) == "26.2 Gb/s"


def with_entries(name: str, **entry_bytes: int) -> Footprint:
    """The model's layout with another number of bytes for each entry of these kinds."""
    layout = read(config(name)).layout
    assert layout.groups is not None
    groups = [
        group.model_copy(update={"entry_bytes": entry_bytes.get(group.attention.value)})
        for group in layout.groups
    ]
    return of_layout(Layout(groups=groups), element_bytes=1)


@pytest.mark.parametrize(("name", "bytes_"), [("pro", 5511), ("flash", 3850)])
def test_deepseek_v4_in_vllms_fp8_rows_has_more_than_half(name: str, bytes_: int) -> None:
    """448 in fp8, 64 rotary ones in bfloat16 and 8 of scales: 584; an index key and its scale 132.

    For Pro 30 x 584 / 4 + 31 x 584 / 128 + 30 x 132 / 4. Half of bfloat16 would be 4,924.
    """
    found = with_entries(f"deepseek-v4-{name}", Full=584, SlidingWindow=584, SparseIndex=132)
    assert int(found.slope) == bytes_
    assert found.slope > of(f"deepseek-v4-{name}", 1).slope


def test_the_papers_48_4_kb_are_glm_5_2_and_its_draft_layer() -> None:
    """arXiv 2610.21500, GLM-5.3 in FP8: 48.4 KB a token and 12.4 MB a chunk of 256.

    One draft layer more than the config's 78 and its index, each index key with a scale of 4 bytes:
    79 x 576 + 22 x 132 = 48,408. The paper does not give the layout; this one fits.
    """
    layout = read(config("glm-5.2")).layout
    assert layout.groups is not None
    one_more = [
        group.model_copy(update={"layers": group.layers + 1, "entry_bytes": size})
        for group, size in zip(layout.groups, (None, 132), strict=True)
    ]
    found = of_layout(Layout(groups=one_more), element_bytes=1)
    assert found.slope == 48_408
    assert found.of(256) / 1e6 == pytest.approx(12.4, abs=0.05)
