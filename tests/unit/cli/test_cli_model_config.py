"""``--model-config``: the layout of a tier from a model's config.json, or what is wrong with it."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import kvtier, one_line

from kvtier.api.load import parse_tier

TierFile = Callable[..., Path]
CONFIGS = Path(__file__).parents[1] / "modelconfig" / "configs"
LLAMA = CONFIGS / "llama-3.1-70b.json"
HYBRID = CONFIGS / "qwen3.5-397b-a17b.json"


def planned(*arguments: str | Path) -> dict[str, Any]:
    completed = kvtier("plan", "-o", "json", *arguments)
    assert completed.stderr == b""
    found: dict[str, Any] = json.loads(completed.stdout)
    return found


def test_a_tier_may_leave_its_layout_to_the_config(tier_file: TierFile) -> None:
    whole = planned("-f", tier_file())
    without = tier_file({"model.layout": None})
    assert planned("-f", without, "--model-config", LLAMA) == whole
    assert "spec.model.layout: missing" in one_line(kvtier("plan", "-f", without))


def test_a_layout_that_the_config_gives_too_is_taken(tier_file: TierFile) -> None:
    assert planned("-f", tier_file(), "--model-config", LLAMA) == planned("-f", tier_file())
    figure = tier_file({"model.layout": {"bytesPerToken": 327_680}})
    assert planned("-f", figure, "--model-config", LLAMA)["breakEven"]["bytesPerToken"] == 327_680


def test_another_layout_than_the_configs_is_one_line_with_both_figures(
    tier_file: TierFile,
) -> None:
    line = one_line(kvtier("plan", "-f", tier_file(), "--model-config", HYBRID))
    assert line.startswith("spec.model.layout: a hit on n tokens is 327,680 n bytes in bfloat16")
    assert "(Qwen3_5MoeForConditionalGeneration) 30,720 n + 192,061,440;" in line
    fp8 = tier_file({"model.kvCacheDtype": "fp8_e4m3"})
    line = one_line(kvtier("plan", "-f", fp8, "--model-config", CONFIGS / "llama-3.1-8b.json"))
    assert "is 163,840 n bytes in fp8_e4m3" in line
    assert "(LlamaForCausalLM) 65,536 n;" in line


def test_another_shape_of_the_same_size_is_told_too(tier_file: TierFile) -> None:
    turned = tier_file({"model.layout": {"gqa": {"layers": 80, "kvHeads": 16, "headDim": 64}}})
    line = one_line(kvtier("plan", "-f", turned, "--model-config", LLAMA))
    assert '{"gqa": {"layers": 80, "kvHeads": 16, "headDim": 64}}' in line
    assert '{"gqa": {"layers": 80, "kvHeads": 8, "headDim": 128}}' in line


def test_a_hybrid_is_judged_with_its_constant(tier_file: TierFile) -> None:
    file = tier_file({"model.layout": None, "pool.striping": "Hash", "pool.ranks": 2})
    found = planned("-f", file, "--model-config", HYBRID)["breakEven"]
    assert (found["bytesPerToken"], found["constantBytes"]) == (30_720, 192_061_440)
    assert found["chunkBytes"] == 256 * 30_720 + 192_061_440
    table = kvtier("plan", "-f", file, "--model-config", HYBRID).stdout.decode()
    assert "183 MiB of sliding windows and linear states, once per hit" in table


def test_a_hybrid_under_shard_is_refused_like_one_in_the_file(tier_file: TierFile) -> None:
    file = tier_file({"model.layout": None})
    line = one_line(kvtier("plan", "-f", file, "--model-config", HYBRID))
    assert line.startswith("spec.pool.striping: no engine runs LMCacheMP 0.5 with adapter Plugin,")
    assert line.endswith("; set spec.pool.striping: Hash")


def test_layout_prints_what_a_tier_takes(tier_file: TierFile) -> None:
    for config in sorted(CONFIGS.glob("*.json")):
        text = kvtier("layout", "--model-config", config).stdout.decode()
        document = yaml.safe_load(tier_file().read_text())
        document["spec"]["model"] |= yaml.safe_load(text)
        document["spec"]["pool"] |= {"striping": "Hash", "ranks": 8}
        document["spec"]["store"]["memoryPerRank"] = "16Ti"
        assert parse_tier(document).spec.model.layout
        content = json.loads(kvtier("layout", "--model-config", config, "-o", "json").stdout)
        assert content["layout"] == document["spec"]["model"]["layout"]


def test_layout_says_the_bytes_of_a_hit() -> None:
    text = kvtier("layout", "--model-config", "-", stdin=HYBRID.read_bytes()).stdout.decode()
    assert text.startswith("# Qwen3_5MoeForConditionalGeneration; bytes of a hit on n tokens")
    assert "# bfloat16: 30,720 n + 192,061,440\n# fp8_e4m3: 15,360 n + 192,061,440\n" in text


@pytest.mark.parametrize(
    "junk",
    [
        b"",
        b"\xff\x00",
        b"[]",
        b"7",
        b"{",
        b"[" * 100_000,
        b" " * (4 << 20),
        b'{"architectures": 1}',
    ],
    ids=range(8),
)
def test_junk_is_one_line(junk: bytes) -> None:
    assert one_line(kvtier("layout", "--model-config", "-", stdin=junk)).startswith("-: ")


def test_a_file_that_is_none_is_one_line(tier_file: TierFile, tmp_path: Path) -> None:
    assert "No such file" in one_line(kvtier("layout", "--model-config", "no-such.json"))
    assert "Is a directory" in one_line(kvtier("layout", "--model-config", tmp_path))
    assert "no JSON" in one_line(kvtier("layout", "--model-config", tier_file()))
    both = kvtier("plan", "-f", "-", "--model-config", "-")
    assert "both --file and --model-config" in one_line(both)


def test_a_closed_standard_input_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvtier.cli.errors import BadInput
    from kvtier.cli.model_config import load

    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(BadInput, match="standard input is closed"):
        load("-")


def test_a_broken_tier_is_told_as_without_a_config(tier_file: TierFile) -> None:
    bad = tier_file({"pool.ranks": 0})
    line = one_line(kvtier("plan", "-f", bad, "--model-config", LLAMA))
    assert line.startswith("spec.pool.ranks: 0 is below 1")
    for rest in ("X", "KVCacheTier", "KVCacheTier\nspec: 7", "KVCacheTier\nspec: {model: 7}"):
        bad.write_text(f"apiVersion: kvtier.dev/v1alpha1\nkind: {rest}\n")
        completed = kvtier("plan", "-f", bad, "--model-config", LLAMA)
        assert completed.returncode == 2
        assert completed.stderr == kvtier("plan", "-f", bad).stderr != b""


@pytest.mark.parametrize("inside", ["", '"text_config": '])
def test_a_key_that_is_there_twice_is_refused(tmp_path: Path, inside: str) -> None:
    """The one that counts would be anybody's guess, as in a tier's YAML."""
    twice = '{"model_type": "llama", "num_hidden_layers": 1, "num_hidden_layers": 80}'
    config = tmp_path / "config.json"
    config.write_text(f"{{{inside}{twice}}}" if inside else twice)
    line = one_line(kvtier("layout", "--model-config", config))
    assert "num_hidden_layers" in line
    assert line.endswith("is there twice; keep one")
