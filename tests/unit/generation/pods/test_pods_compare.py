"""What is certainly different, and what only may be."""

from collections.abc import Mapping
from typing import Any

import pytest

from kvtier.generation.identity import identity
from kvtier.generation.pods.compare import NOT_SAID
from kvtier.generation.pods.read import (
    Difference,
    PodIdentity,
    differences,
    disagreements,
    read_pod,
    unknowns,
)

COMMIT = "1605565b47bb9346c5515c34102e054115b4f98b"
OTHER = "ffffffffffffffffffffffffffffffffffffffff"
MODEL = "meta-llama/Llama-3.1-70B-Instruct"
SAME = ["--revision", COMMIT, "--kv-cache-dtype", "bfloat16", "-tp", "8"]


def pod(*words: str, model: str = MODEL, image: str = "") -> PodIdentity:
    container = {"name": "vllm", "image": image, "command": ["vllm", "serve", model, *words]}
    return read_pod({"spec": {"containers": [container]}}, tier="llama", config_maps={})


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], []),
        (
            ["--revision", OTHER],
            [("revision", OTHER, COMMIT), ("tokenizerRevision", OTHER, COMMIT)],
        ),
        (["--revision", "v2"], []),
        (["--revision", "main"], []),
        (["--revision", COMMIT[:10]], []),
        (["--revision", "20260401"], []),
        (["--revision", f"sha256:{'a' * 64}"], []),
        (["--kv-cache-dtype", "fp8"], [("kvCacheDtype", "fp8_e4m3", "bfloat16")]),
        (["--kv-cache-dtype", "auto"], []),
        (
            ["--kv-cache-dtype", "auto", "--dtype", "half"],
            [("kvCacheDtype", "float16", "bfloat16")],
        ),
        (["--kv-cache-dtype", "nvfp4"], []),
        (["-tp", "4"], [("parallelism.tensor", "4", "8")]),
        (["-pp", "2"], [("parallelism.pipeline", "2", "1")]),
        (
            ["--kv-transfer-config", '{"kv_connector":"LMCacheConnectorV1"}'],
            [("connector", "LMCacheInProcess", "LMCacheMP")],
        ),
        (["--kv-transfer-config", '{"kv_connector":"LMCacheMPConnector"}'], []),
        (["--kv-transfer-config", '{"kv_connector":"NixlConnector"}'], []),
        (["--quantization", "fp8"], []),
    ],
    ids=str,
)
def test_only_what_is_certain_is_a_difference(
    words: list[str], expected: list[tuple[str, str, str]], make_spec: Any
) -> None:
    found = differences(identity(make_spec()), pod(*SAME, *words))
    assert list(found) == [Difference(*each) for each in expected]


def test_another_model_is_a_difference_and_a_directory_may_be_any(make_spec: Any) -> None:
    tier = identity(make_spec())
    assert [each.field for each in differences(tier, pod(*SAME, model="org/other"))] == [
        "modelName"
    ]
    assert not differences(tier, pod(*SAME, model="/mnt/models"))
    assert not differences(identity(make_spec({"model.name": "/mnt/models"})), pod(*SAME))


def test_a_checkpoint_with_scales_may_make_auto_fp8(make_spec: Any) -> None:
    runs = pod("--dtype", "bfloat16")
    fp8 = identity(make_spec({"model.kvCacheDtype": "fp8_e4m3"}))
    assert "kvCacheDtype" not in [each.field for each in differences(fp8, runs)]
    said = pod("--dtype", "bfloat16", "--kv-cache-dtype", "bfloat16")
    assert "kvCacheDtype" in [each.field for each in differences(fp8, said)]


@pytest.mark.parametrize(
    ("declared", "words", "differ"),
    [
        ({"quantization": "fp8"}, ["-q", "fp8"], False),
        ({"quantization": "FP8"}, ["-q", "fp8"], False),
        ({"quantization": "fp8"}, ["-q", "awq"], True),
        ({"quantization": "fp8"}, [], False),
        ({"hf_overrides": '{"b": 2.0, "a": 1}'}, ["--hf-overrides", '{"a":1,"b":2}'], False),
        ({"hf_overrides": '{"b": 3}'}, ["--hf-overrides", '{"a":1,"b":2}'], True),
        ({"ropeScaling": "yarn:4"}, ["--rope-scaling", '{"factor":4}'], False),
        ({"team": "a"}, ["-q", "fp8"], False),
        ({"hfOverrides": '{"a":1}'}, ["--hf-overrides", f'{{"a":"{"x" * 600}"}}'], True),
    ],
    ids=str,
)
def test_settings_are_compared_with_the_identity_map(
    declared: Mapping[str, str], words: list[str], differ: bool, make_spec: Any
) -> None:
    tier = identity(make_spec({"model.identity": declared}))
    found = differences(tier, pod(*SAME, *words))
    assert [each.field for each in found] == (list(declared) if differ else [])


def test_what_may_be_the_same_is_unknown(make_spec: Any) -> None:
    tier = identity(make_spec())
    assert unknowns(tier, pod(*SAME)) == {}
    assert "may be the same" in unknowns(tier, pod(*SAME, "--revision", "v2"))["revision"]
    assert "revision" in unknowns(tier, pod(*SAME, "--revision", "main"))
    assert unknowns(tier, pod(*SAME, "--revision", OTHER)) == {}


def test_pods_of_one_generation_that_disagree_are_named() -> None:
    pods = {
        "b": pod(*SAME, "-q", "fp8"),
        "a": pod(*SAME, "-q", "awq"),
        "c": pod(*SAME),
        "d": pod(*SAME, "-q", "fp8"),
    }
    [found] = disagreements(pods)
    assert found.field == "quantization"
    assert found.values == {"awq": ("a",), "fp8": ("b", "d"), NOT_SAID: ("c",)}


def test_pods_that_agree_or_do_not_tell_are_no_disagreement() -> None:
    said = pod(*SAME, "-q", "fp8")
    worker = read_pod(
        {"spec": {"containers": [{"command": ["ray", "start", "--block"]}]}},
        tier="llama",
        config_maps={},
    )
    unknown = pod(*SAME, "--config", "/in/image.yaml")
    assert disagreements({"a": said, "b": said, "c": worker, "d": unknown}) == ()
    assert disagreements({}) == ()


def test_images_differ_only_if_the_model_lies_in_them() -> None:
    one, two = (f"x@sha256:{char * 64}" for char in "ab")
    assert disagreements({"a": pod(*SAME, image=one), "b": pod(*SAME, image=two)}) == ()
    inside = {
        name: pod(*SAME, model="/opt/m", image=image) for name, image in (("a", one), ("b", two))
    }
    assert [each.field for each in disagreements(inside)] == ["image"]


def test_revisions_by_name_that_differ_are_a_disagreement() -> None:
    """Against a commit in the spec neither is a certain difference."""
    pods = {name: pod("--revision", name, "-tp", "8") for name in ("v1", "v2")}
    assert [each.field for each in disagreements(pods)] == ["revision", "tokenizerRevision"]
