from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvtier.breakeven import sizes

MODELS = yaml.safe_load(Path(__file__).with_name("models.yaml").read_text())


@pytest.mark.parametrize("name", MODELS["gqa"])
def test_a_gqa_model_has_the_bytes_of_its_config(name: str) -> None:
    figures: dict[str, Any] = dict(MODELS["gqa"][name])
    expected = figures.pop("bytes")
    assert sizes.gqa_bytes_per_token(**figures, element_bytes=2) == expected
    assert sizes.gqa_bytes_per_token(**figures, element_bytes=1) * 2 == expected


@pytest.mark.parametrize("name", MODELS["mla"])
def test_an_mla_model_has_the_bytes_of_its_config(name: str) -> None:
    figures: dict[str, Any] = dict(MODELS["mla"][name])
    expected = figures.pop("bytes")
    assert sizes.mla_bytes_per_token(**figures, element_bytes=2) == expected


def test_mha_with_64_heads_is_eight_times_llama_with_8() -> None:
    llama = sizes.gqa_bytes_per_token(layers=80, kv_heads=8, head_dim=128, element_bytes=2)
    mha = sizes.gqa_bytes_per_token(layers=80, kv_heads=64, head_dim=128, element_bytes=2)
    assert llama == 320 * 1024
    assert mha == 8 * llama


@pytest.mark.parametrize(
    ("kv_heads", "tensor", "copies"),
    [(8, 8, 1), (8, 4, 1), (64, 8, 1), (4, 8, 2), (1, 8, 8), (8, 1, 1)],
)
def test_a_kv_head_is_stored_by_every_rank_that_needs_it(
    kv_heads: int, tensor: int, copies: int
) -> None:
    assert sizes.gqa_replication(kv_heads=kv_heads, tensor=tensor) == copies


def test_wire_bytes_are_rounded_up_to_whole_bytes() -> None:
    assert sizes.wire_bytes_per_token(100, Fraction(1)) == 100
    assert sizes.wire_bytes_per_token(101, Fraction(3, 2)) == 152


def test_less_than_one_copy_is_refused() -> None:
    with pytest.raises(ValueError, match="replication"):
        sizes.wire_bytes_per_token(100, Fraction(1, 2))


def test_a_million_tokens_of_llama_70b_are_305_gib_and_1024000_are_312_5() -> None:
    """The decision page says "about 312 GiB": that is 1,024,000 tokens."""
    gib = 2**30
    million = sizes.working_set_bytes(tokens=1_000_000, bytes_per_token=327_680)
    assert million / gib == pytest.approx(305.2, abs=0.05)
    assert sizes.working_set_bytes(tokens=1_024_000, bytes_per_token=327_680) / gib == 312.5


def test_headroom_for_eviction_makes_the_store_larger_and_its_tokens_fewer() -> None:
    assert sizes.working_set_bytes(tokens=80, bytes_per_token=10, headroom=0.2) == 1000
    assert sizes.tokens_held(store_bytes=1000, bytes_per_token=10, headroom=0.2) == 80
    assert sizes.tokens_held(store_bytes=1009, bytes_per_token=10) == 100


@pytest.mark.parametrize("headroom", [-0.1, 1.0, float("nan")])
def test_a_headroom_that_leaves_no_store_is_refused(headroom: float) -> None:
    with pytest.raises(ValueError, match="headroom"):
        sizes.working_set_bytes(tokens=1, bytes_per_token=1, headroom=headroom)
    with pytest.raises(ValueError, match="headroom"):
        sizes.tokens_held(store_bytes=1, bytes_per_token=1, headroom=headroom)
