"""Configs that say too little, or what kvtier does not know: refused by name, never guessed."""

from copy import deepcopy
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from public_models import MODELS, config

from kvtier.api.types import Layout
from kvtier.breakeven.footprint import of_layout
from kvtier.modelconfig.architectures import ARCHITECTURES
from kvtier.modelconfig.families import READERS
from kvtier.modelconfig.fields import UnreadableConfig
from kvtier.modelconfig.read import read

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "hidden_size": 1024,
}
WINDOWED = LLAMA | {"architectures": ["MistralForCausalLM"], "sliding_window": 128}


def refusal(document: dict[str, Any]) -> str:
    with pytest.raises(UnreadableConfig) as refused:
        read(document)
    text = str(refused.value)
    assert "\n" not in text
    assert len(text) < 300
    return text


def kinds(layout: Layout) -> dict[str, int]:
    return {group.attention.value: group.layers for group in layout.groups or ()}


@pytest.mark.parametrize("heads", [1, 4, 16], ids=["MQA", "GQA", "MHA"])
def test_heads_are_those_that_keep_kv(heads: int) -> None:
    layout = read(LLAMA | {"num_key_value_heads": heads}).layout
    assert layout.gqa is not None
    assert (layout.gqa.layers, layout.gqa.kv_heads, layout.gqa.head_dim) == (4, heads, 64)


def test_a_head_dimension_of_its_own_wins_over_the_hidden_size() -> None:
    layout = read(LLAMA | {"head_dim": 128}).layout
    assert layout.gqa is not None
    assert layout.gqa.head_dim == 128


def test_an_architecture_whose_head_dimension_is_its_own_must_give_it() -> None:
    """Qwen3-235B has 64 heads of 128 over a hidden size of 4,096: dividing would give 64."""
    document = config("qwen3-235b-a22b")
    assert document["hidden_size"] // document["num_attention_heads"] == 64
    del document["head_dim"]
    assert refusal(document) == "head_dim: missing; use the model's own config.json"


@pytest.mark.parametrize("named", [None, [], "LlamaForCausalLM", [1], ["A", "B"]])
def test_a_config_names_one_architecture(named: Any) -> None:
    assert refusal(LLAMA | {"architectures": named}).startswith("architectures: ")


@pytest.mark.parametrize("name", ["LlamaForSequenceClassification", "T5Model", "x" * 9999])
def test_an_unknown_architecture_is_refused_by_name_whatever_its_fields(name: str) -> None:
    text = refusal(LLAMA | {"architectures": [name]})
    assert name[:20] in text
    assert "not known" in text


def test_every_reader_is_of_some_architecture_and_every_architecture_has_one() -> None:
    assert {architecture.family for architecture in ARCHITECTURES.values()} == READERS.keys()
    tried = {config(model["config"])["architectures"][0] for model in MODELS}
    assert {ARCHITECTURES[name].family for name in tried} == READERS.keys()


NEEDED = {
    "llama-3.1-8b": ["num_hidden_layers", "num_key_value_heads", "num_attention_heads"],
    "gpt-neox-20b": ["num_attention_heads", "hidden_size"],
    "gpt-oss-20b": ["sliding_window"],
    "mimo-v2-flash": ["v_head_dim", "swa_head_dim", "swa_v_head_dim", "swa_num_key_value_heads"],
    "mixtral-8x7b": ["num_key_value_heads"],
    "deepseek-v3": ["kv_lora_rank", "qk_rope_head_dim"],
    "deepseek-v4-pro": ["compress_ratios", "head_dim", "index_head_dim", "sliding_window"],
    "qwen3-next-80b-a3b": ["full_attention_interval", "linear_conv_kernel_dim", "torch_dtype"],
}


@pytest.mark.parametrize(
    ("name", "field"), [(name, field) for name, fields in NEEDED.items() for field in fields]
)
def test_a_missing_field_is_one_line_that_names_it(name: str, field: str) -> None:
    document = config(name)
    del document[field]
    said = refusal(document)
    assert said.startswith(f"{field.removeprefix('torch_')}: "), said


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("qwen3.5-397b-a17b", "linear_num_value_heads"),
        ("gemma-4-31b", "global_head_dim"),
        ("gemma-4-31b", "layer_types"),
        ("kimi-k3", "linear_attn_config"),
        ("kimi-k2.5", "kv_lora_rank"),
    ],
)
def test_a_field_of_the_language_part_is_named_with_its_place(name: str, field: str) -> None:
    document = config(name)
    del document["text_config"][field]
    assert refusal(document).startswith(f"text_config.{field}: missing")


@pytest.mark.parametrize("value", ["61", 0, -1, 1.5, True, [], 1 << 40])
def test_a_size_that_is_none_is_refused(value: Any) -> None:
    for name, field in (("deepseek-v3", "num_hidden_layers"), ("llama-3.1-8b", "hidden_size")):
        assert refusal(config(name) | {field: value}).startswith(f"{field}: ")


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("gpt-oss-20b", "layer_types", ["full_attention"] * 23),
        ("gpt-oss-20b", "layer_types", ["full_attention"] * 23 + ["chunked_attention"]),
        ("gpt-oss-20b", "layer_types", "full_attention"),
        ("gpt-oss-20b", "layer_types", [["full_attention"]] * 24),
        ("mimo-v2-flash", "hybrid_layer_pattern", [0, 2] * 24),
        ("glm-5.2", "indexer_types", ["full", "none"] * 39),
        ("deepseek-v4-pro", "compress_ratios", [8] * 62),
        ("deepseek-v4-pro", "compress_ratios", [4]),
        ("deepseek-v4-pro", "num_key_value_heads", 2),
        ("nemotron-3-nano-30b-a3b", "hybrid_override_pattern", "M*X"),
        ("qwen3-next-80b-a3b", "torch_dtype", "int4"),
        ("llama-3.1-8b", "num_hidden_layers", 5000),
        ("llama-3.1-8b", "hidden_size", 4097),
        ("kimi-k3", "text_config", 7),
    ],
)
def test_a_value_that_kvtier_does_not_know_is_refused(name: str, field: str, value: Any) -> None:
    assert field in refusal(config(name) | {field: value})


@pytest.mark.parametrize("layers", [[1, 2], [[1]], ["1", 2], 7, None])
def test_layers_that_are_named_twice_or_not_at_all_are_refused(layers: Any) -> None:
    document = config("kimi-k3")
    document["text_config"]["linear_attn_config"]["kda_layers"] = layers
    assert refusal(document).startswith("text_config.linear_attn_config.kda_layers: ")


@pytest.mark.parametrize(
    ("fields", "windowed"),
    [
        ({"sliding_window": None}, 0),
        ({"use_sliding_window": False}, 0),
        ({"use_sliding_window": True, "max_window_layers": 1}, 3),
        ({"use_sliding_window": True, "max_window_layers": 9}, 0),
        ({"sliding_window_pattern": 2}, 2),
        ({"sliding_window_pattern": 3}, 3),
        ({"layer_types": ["sliding_attention"] * 3 + ["full_attention"]}, 3),
    ],
)
def test_each_way_to_say_which_layers_slide_is_read(fields: dict[str, Any], windowed: int) -> None:
    layout = read(WINDOWED | fields).layout
    if windowed:
        assert kinds(layout) == {"Full": 4 - windowed, "SlidingWindow": windowed}
    else:
        assert layout.gqa is not None


def test_gemma_alternates_by_its_architecture() -> None:
    gemma = WINDOWED | {"num_hidden_layers": 12, "head_dim": 64}
    for name, full in (("Gemma2ForCausalLM", 6), ("Gemma3ForCausalLM", 2)):
        layout = read(gemma | {"architectures": [name]}).layout
        assert kinds(layout) == {"Full": full, "SlidingWindow": 12 - full}


def test_gemma_layers_that_share_kv_keep_none() -> None:
    document = config("gemma-4-26b-a4b")
    document["text_config"]["num_kv_shared_layers"] = 6
    assert kinds(read(document).layout) == {"Full": 4, "SlidingWindow": 20}


def test_a_model_whose_layers_all_slide_has_no_break_even() -> None:
    assert "no break-even" in refusal(WINDOWED)


def test_draft_layers_are_not_counted() -> None:
    document = config("deepseek-v3")
    assert document["num_nextn_predict_layers"] == 1
    assert read(document).layout == read(document | {"num_nextn_predict_layers": 0}).layout
    flash = config("deepseek-v4-flash")
    assert len(flash["compress_ratios"]) == flash["num_hidden_layers"] + 1
    drafting = flash | {"compress_ratios": [*flash["compress_ratios"][:-1], 4]}
    assert read(drafting).layout == read(flash).layout


def test_a_value_as_long_as_its_key_is_said_in_one_way() -> None:
    """Two forms of one layout would be two generations of one model."""
    document = config("mimo-v2-flash") | {"v_head_dim": 192, "swa_v_head_dim": 192}
    groups = read(document).layout.groups or []
    assert [group.value_head_dim for group in groups] == [None, None]


values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
values |= st.lists(st.integers() | st.text(max_size=3), max_size=3)
values |= st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)


@settings(deadline=None)
@given(model=st.sampled_from(MODELS), data=st.data())
def test_any_damage_is_one_line_or_a_layout_that_can_be_judged(
    model: dict[str, Any], data: st.DataObject
) -> None:
    document = deepcopy(config(model["config"]))
    part = document.get("text_config", document)
    field = data.draw(st.sampled_from(sorted(part)))
    part[field] = data.draw(values)
    said = ""
    try:
        slope = of_layout(read(document).layout, 2).slope
    except UnreadableConfig as error:
        said, slope = str(error), Fraction(1)
    assert slope > 0
    assert "\n" not in said
    assert len(said) < 400
