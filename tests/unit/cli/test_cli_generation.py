"""``kvtier generation`` of two files: both names, the difference, and what it means."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import kvtier, one_line

from kvtier.api.load import load_file
from kvtier.generation.identity import generation_id
from kvtier.render.names import engine_secret_name

TierFile = Callable[..., Path]
MLA = {"mla": {"layers": 61, "kvLoraRank": 512, "qkRopeHeadDim": 64}}


@pytest.fixture
def files(tier_file: TierFile, tmp_path: Path) -> Callable[..., list[str]]:
    def write(*changes: dict[str, Any]) -> list[str]:
        """Arguments that name one file for each; the files are a.yaml, b.yaml and so on."""
        arguments: list[str] = []
        for name, each in zip("abc", changes, strict=False):
            file = tmp_path / f"{name}.yaml"
            file.write_text(tier_file(each).read_text())
            arguments += ["-f", str(file)]
        return arguments

    return write


def told(*arguments: str) -> str:
    """The text of a difference."""
    done = kvtier("generation", *arguments)
    assert (done.returncode, done.stderr) == (1, b"")
    return done.stdout.decode()


def test_equal_tiers_exit_with_0_and_say_so(files: Callable[..., list[str]]) -> None:
    done = kvtier("generation", *files({}, {"store.memoryPerRank": "128Gi"}))
    assert (done.returncode, done.stderr) == (0, b"")
    lines = done.stdout.decode().splitlines()
    assert lines[-1] == "The same generation: engines keep their Secret and what is cached."
    assert not any(line.startswith("field") for line in lines)


def test_a_difference_is_a_table_with_both_names(files: Callable[..., list[str]]) -> None:
    arguments = files({}, {"model.revision": "v2", "rollout": {"drainTimeout": "20m"}})
    old, new = (generation_id(load_file(path).spec) for path in arguments[1::2])
    lines = told(*arguments).splitlines()
    assert [line.split() for line in lines[:3]] == [
        ["id", "engine", "Secret", "file"],
        ["old", old, f"llama-prefill-engine-{old}", arguments[1]],
        ["new", new, f"llama-prefill-engine-{new}", arguments[3]],
    ]
    was = "1605565b47bb9346c5515c34102e054115b4f98b"
    assert [line.split() for line in lines[4:7]] == [
        ["field", "old", "new"],
        ["revision", was, "v2"],
        ["tokenizerRevision", was, "v2"],
    ]
    meaning = " ".join(line for line in lines[7:] if line)
    assert f"engines need the Secret llama-prefill-engine-{new}." in meaning
    assert "fenced once Ready engines have used the new one for 20m (spec." in meaning
    assert "at once" not in meaning


def test_another_salt_says_that_the_old_generation_is_fenced_at_once(
    files: Callable[..., list[str]],
) -> None:
    for changes in ({"model.salt": "2"}, {"model.salt": "2", "model.revision": "v2"}):
        text = told(*files({}, changes))
        assert "the old generation is fenced at once, whoever uses it" in text
        assert "drainTimeout" not in text
        rows = [line.split() for line in text.splitlines()]
        assert ["salt", "-", "2"] in rows


@pytest.mark.parametrize(
    ("changes", "field"), [({"pool.ranks": 4}, "ranks"), ({"pool.striping": "Hash"}, "striping")]
)
def test_what_no_tier_can_change_is_said_to_be_refused(
    files: Callable[..., list[str]], changes: dict[str, Any], field: str
) -> None:
    assert f"Refused: {field} of a tier cannot change." in told(*files({}, changes))


@pytest.mark.parametrize("field", ["name", "namespace"])
def test_two_tiers_share_no_secret_whatever_their_identity(
    files: Callable[..., list[str]], field: str
) -> None:
    arguments = files({}, {})
    other = Path(arguments[3])
    document = yaml.safe_load(other.read_text())
    document["metadata"][field] = "other"
    other.write_text(yaml.safe_dump(document))
    text = told(*arguments)
    assert "Two tiers: models/llama-prefill and " in text
    assert "share no Secret and no KV" in text


def test_the_difference_as_json(files: Callable[..., list[str]]) -> None:
    arguments = files({}, {"model.layout": MLA, "pool.striping": "Shard"})
    ids = [generation_id(load_file(path).spec) for path in arguments[1::2]]
    found = json.loads(told(*arguments, "-o", "json"))
    for side, each in zip(("old", "new"), ids, strict=True):
        secret = engine_secret_name("llama-prefill", each)
        assert found[side] == {"tier": "models/llama-prefill", "id": each, "secretName": secret}
    assert found["changes"] == [
        {"field": "layout.gqa.layers", "old": 80, "new": None},
        {"field": "layout.gqa.kvHeads", "old": 8, "new": None},
        {"field": "layout.gqa.headDim", "old": 128, "new": None},
        {"field": "layout.mla.layers", "old": None, "new": 61},
        {"field": "layout.mla.kvLoraRank", "old": None, "new": 512},
        {"field": "layout.mla.qkRopeHeadDim", "old": None, "new": 64},
    ]
    same = kvtier("generation", *files({}, {}), "-o", "json")
    assert same.returncode == 0
    assert json.loads(same.stdout)["changes"] == []


def test_names_of_two_tiers_are_two_lines(files: Callable[..., list[str]]) -> None:
    arguments = files({}, {"model.salt": "2"})
    ids = [generation_id(load_file(path).spec) for path in arguments[1::2]]
    assert told(*arguments, "-o", "id").splitlines() == ids
    assert told(*arguments, "-o", "secretName").splitlines() == [
        f"llama-prefill-engine-{each}" for each in ids
    ]


def test_a_value_that_could_break_the_table_is_quoted(files: Callable[..., list[str]]) -> None:
    odd = {"a b": "x\n\x1b[31m", "-": "-"}
    lines = told(*files({"model.identity": {"plain": "v1"}}, {"model.identity": odd})).splitlines()
    assert "identity.plain  v1   -" in lines
    assert '"identity.a b"  -    "x\\n\\u001b[31m"' in lines
    assert 'identity.-      -    "-"' in lines


def test_the_old_tier_may_come_from_a_pipe(files: Callable[..., list[str]]) -> None:
    old, new = files({}, {"model.salt": "2"})[1::2]
    done = kvtier("generation", "-f", "-", "-f", new, stdin=Path(old).read_bytes())
    assert done.returncode == 1
    assert done.stdout.decode().splitlines()[1].split()[-1] == "-"


def test_bad_input_is_one_line_that_names_the_file(
    files: Callable[..., list[str]], tmp_path: Path
) -> None:
    three = files({}, {}, {})
    assert one_line(kvtier("generation", *three)) == (
        "-f/--file: there 3 times; name one tier, or an old and a new one"
    )
    assert one_line(kvtier("generation", "-f", "-", "-f", "-")) == (
        "-: is both tiers; name a file for one of them"
    )
    assert one_line(kvtier("generation", *three[:4], "--model-config", "-")) == (
        "--model-config: two tiers need it twice; name a file instead of -"
    )
    junk = tmp_path / "junk.yaml"
    junk.write_text("{")
    assert one_line(kvtier("generation", *three[:2], "-f", junk)).startswith(f"{junk}: ")
    bad = files({}, {"model.revision": ""})
    said = one_line(kvtier("generation", *bad))
    assert said.startswith(f"{bad[3]}: spec.model.revision: empty; write a value")
    assert one_line(kvtier("generation", *bad[2:])).startswith("spec.model.revision: empty")


def test_auto_is_refused_with_where_the_real_dtype_stands(tier_file: TierFile) -> None:
    for command in ("generation", "plan", "render"):
        said = one_line(kvtier(command, "-f", tier_file({"model.kvCacheDtype": "auto"})))
        assert said == (
            "spec.model.kvCacheDtype: 'auto' is not supported; write 'bfloat16', 'float16',"
            " 'float32', 'fp8_e4m3' or 'fp8_e5m2' (Data type of the KV cache that engines really"
            " use; auto is none, the engine's log names the real one)"
        )


def test_a_model_s_config_is_for_both(files: Callable[..., list[str]], tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"],
                "num_hidden_layers": 80,
                "num_attention_heads": 64,
                "num_key_value_heads": 8,
                "hidden_size": 8192,
            }
        )
    )
    arguments = files({"model.layout": None}, {"model.layout": None, "model.salt": "1"})
    found = json.loads(told(*arguments, "--model-config", str(config), "-o", "json"))
    assert [each["field"] for each in found["changes"]] == ["salt"]
