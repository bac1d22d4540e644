"""The sample pool says what the sample tier publishes."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from shown import pays

from kvtier.api.load import load_file
from kvtier.api.types import KVCacheTier, Striping
from kvtier.breakeven.tier import assess, chunk_bytes_per_rank
from kvtier.generation.identity import generation_id
from kvtier.render.memory import memory
from kvtier.render.names import engine_secret_name

SAMPLES = Path(__file__).resolve().parents[3] / "deploy/samples"


@pytest.fixture(scope="module")
def tier() -> KVCacheTier:
    return load_file(str(SAMPLES / "laptop.yaml"))


@pytest.fixture(scope="module")
def pod() -> dict[str, Any]:
    template: dict[str, Any] = yaml.safe_load((SAMPLES / "prefill-pool.yaml").read_text())["spec"][
        "template"
    ]
    return template


@pytest.fixture(scope="module")
def known(pod: dict[str, Any]) -> dict[str, str]:
    """The container's environment: what a stand-in knows of its model."""
    return {item["name"]: item["value"] for item in pod["spec"]["containers"][0]["env"]}


def test_the_pool_is_marked_as_the_tiers(tier: KVCacheTier, pod: dict[str, Any]) -> None:
    assert pod["metadata"]["labels"]["kvtier.dev/tier"] == tier.metadata.name


def test_the_pool_mounts_the_secret_of_the_tiers_generation(
    tier: KVCacheTier, pod: dict[str, Any]
) -> None:
    mounted = [
        volume["secret"]["secretName"] for volume in pod["spec"]["volumes"] if "secret" in volume
    ]
    assert mounted == [engine_secret_name(tier.metadata.name, generation_id(tier.spec))]


def test_a_stand_in_has_the_tiers_model_and_size_of_chunks(
    tier: KVCacheTier, known: dict[str, str]
) -> None:
    assert known["MODEL"] == tier.spec.model.name
    assert int(known["CHUNK_BYTES"]) == chunk_bytes_per_rank(tier.spec)


def test_the_keys_of_a_stand_in_are_those_of_one_server_per_rank(tier: KVCacheTier) -> None:
    assert tier.spec.pool.striping is Striping.SHARD


def test_the_prompt_fits_into_a_rank_with_room_to_spare(
    tier: KVCacheTier, known: dict[str, str]
) -> None:
    chunks = int(known["PROMPT_TOKENS"]) // tier.spec.pool.chunk_tokens
    assert 0 < chunks <= memory(tier.spec).chunks // 2


def test_an_engine_asks_for_a_gpu_for_each_rank(tier: KVCacheTier, pod: dict[str, Any]) -> None:
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    assert int(limits["nvidia.com/gpu"]) == tier.spec.pool.ranks


def test_the_demo_shows_no_fetch_of_what_the_store_cannot_hold(
    tier: KVCacheTier, capsys: pytest.CaptureFixture[str]
) -> None:
    assessment = assess(tier.spec)
    status = {
        "verdict": "Pays",
        "breakEven": assessment.status(),
        "conditions": [{"type": "EarningItsKeep", "message": assessment.message}],
    }
    pays(tier, status, {"verdict": "Pays", "message": assessment.message})
    text = capsys.readouterr().out
    rows = {words[0]: words for words in map(str.split, text.splitlines()) if words}
    assert rows["4,096"][-1] == "fetch"
    assert " ".join(rows["16,384"][3:]) == "- does not fit (the store holds 15,360)"
    # One formatter: the row has the figure of the sentence.
    assert f"break-even is {' '.join(rows['break-even'][1:3])}".rstrip(":") in text
