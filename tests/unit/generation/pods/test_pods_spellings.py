"""All spellings of one setting give one reading, and nothing that a pod says is an error."""

import json
import time
import tracemalloc
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtier.generation.pods.engines import engines
from kvtier.generation.pods.read import PodIdentity, config_maps_of, read_pod

CASES = {
    f"{path.stem}: {name}": case
    for path in (Path(__file__).parent / "fixtures").glob("*.yaml")
    for name, case in yaml.safe_load(path.read_text()).items()
}
COMMIT = "1605565b47bb9346c5515c34102e054115b4f98b"


def read(*words: str, env: list[Any] | None = None, **config_maps: dict[str, str]) -> PodIdentity:
    container = {"name": "vllm", "command": list(words), "env": env or []}
    container["volumeMounts"] = [{"name": name, "mountPath": f"/{name}"} for name in config_maps]
    volumes = [{"name": name, "configMap": {"name": name}} for name in config_maps]
    pod = {"spec": {"containers": [container], "volumes": volumes}}
    return read_pod(pod, tier="llama", config_maps=config_maps)


ROPE = {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}
VALUES: dict[str, tuple[str, list[str]]] = {
    "parallelism.tensor": ("--tensor-parallel-size", ["8"]),
    "revision": ("--revision", [COMMIT]),
    "kvCacheDtype": ("--kv-cache-dtype", ["fp8", "fp8_e4m3", "FP8"]),
    "dtype": ("--dtype", ["half", "float16"]),
    "quantization": ("--quantization", ["compressed-tensors", "compressed_tensors"]),
    "maxModelLen": ("--max-model-len", ["32768", "32K"]),
    "ropeTheta": ("--rope-theta", ["1e6", "1000000", "1000000.0"]),
    "hfOverrides": (
        "--hf-overrides",
        [json.dumps(ROPE), json.dumps(ROPE, indent=1), json.dumps(ROPE).replace("4.0", "4")],
    ),
}
OTHERS = ["--port=8000", "--enforce-eager", "--no-enable-prefix-caching"]


@st.composite
def spelled(draw: st.DrawFn, *, names: list[str]) -> PodIdentity:
    """One pod that says the values of ``names``, in some spelling and order."""
    words, in_file, env = [], {}, []
    for name in draw(st.permutations(names)):
        flag, values = VALUES[name]
        value = draw(st.sampled_from(values))
        where = draw(st.sampled_from(["apart", "equals", "variable", "file", "again"]))
        head = draw(st.sampled_from([flag, f"--{flag[2:].replace('-', '_')}"]))
        if where == "variable":
            env.append({"name": f"V{len(env)}", "value": value})
            value = f"$(V{len(env) - 1})"
        if where == "file":
            in_file[head.removeprefix("--")] = value
        elif where == "equals":
            words.append([f"{head}={value}"])
        elif where == "again":
            words.append([head, values[0], f"{flag}={value}"])
        else:
            words.append([head, value])
    words += [[each] for each in draw(st.lists(st.sampled_from(OTHERS), unique=True))]
    flat = [word for group in draw(st.permutations(words)) for word in group]
    config = ["--config", "/engine/c.yaml"] if in_file else []
    argv = ["vllm", "serve", "org/model", *flat, *config]
    if draw(st.booleans()):
        script = " \\\n  ".join(f"'{word}'" if "{" in word else f'"{word}"' for word in argv)
        # Kubernetes puts variables in first, whose own quotes would end the shell's.
        plain = not any('"' in variable["value"] for variable in env)
        argv = ["sh", "-ec", f"cd /x && exec {script}"] if plain else argv
    return read(*argv, env=env, engine={"c.yaml": json.dumps(in_file)})


@given(st.data())
@settings(max_examples=60)
def test_all_spellings_give_one_reading(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, unique=True))
    one, two = data.draw(spelled(names=names)), data.draw(spelled(names=names))
    assert one == two
    assert not one.unreadable.keys() & set(names)
    assert set(names) <= one.fields.keys() | one.settings.keys()


@pytest.mark.parametrize("name", [name for name in VALUES if name != "dtype"])
def test_another_value_gives_another_reading(name: str) -> None:
    flag, values = VALUES[name]
    other = {"hfOverrides": "{}", "kvCacheDtype": "fp8_e5m2"}.get(name, "7")
    one = read("vllm", "serve", "org/model", flag, values[0])
    two = read("vllm", "serve", "org/model", flag, other)
    assert one != two


def test_every_flag_of_the_table_is_read_under_every_name() -> None:
    texts = {"json": '{"a":1}', "int": "2", "size": "2", "number": "2", "dtype": "half"}
    texts |= {"connector": '{"kv_connector":"LMCacheMPConnector"}', "kvDtype": "fp8"}
    for engine in engines():
        if engine.name not in ("vllm", "sglang"):
            continue
        module = sorted(each for each in engine.modules if "dynamo" in each)[0]
        for spelling, flag in engine.flags.items():
            value = [] if flag.kind == "switch" else [texts.get(flag.kind, "text")]
            found = read("python3", "-m", module, spelling, *value)
            name = "modelName" if flag.meaning == "model" else flag.meaning
            assert name in {**found.fields, **found.settings}, spelling


STARTS = ["vllm", "serve", "sh", "-c", "-m", "dynamo.vllm", "lmcache", "ray", "eval '$A'"]
FLAGS = ["--model", "--revision=", "--", "-", "--config", "/c/x", "--hf-overrides.a.b", "-q"]
PIECES = ["exec vllm serve $A ${B:-", "$(cat /kvtier/x", '"$@"', "{", "[" * 50, "<<E", "`", "$(("]
WORDS = st.sampled_from([*STARTS, *FLAGS, *PIECES, "\0", "\0x\0"])
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | WORDS
ANYTHING = LEAVES | st.lists(LEAVES, max_size=3) | st.dictionaries(WORDS, LEAVES, max_size=2)
TRICKY = st.text(alphabet="$(){}\"'`\\ \n;&|<>#=-@*vA1\0", max_size=60)


def places(node: Any) -> list[tuple[Any, Any]]:
    """Every (parent, key) in a document."""
    keys = list(node) if isinstance(node, dict) else range(len(node))
    inner = (node[key] for key in keys)
    below = (place for each in inner if isinstance(each, dict | list) for place in places(each))
    return [*((node, key) for key in keys), *below]


@given(st.sampled_from(sorted(CASES)), st.data())
def test_no_part_of_a_pod_can_be_an_error(name: str, data: st.DataObject) -> None:
    case = deepcopy({"pod": CASES[name]["pod"], "maps": CASES[name].get("configMaps", {})})
    for _ in range(3):
        parent, key = data.draw(st.sampled_from(places(case)))
        parent[key] = data.draw(ANYTHING)
    maps = case["maps"] if isinstance(case["maps"], dict) else {}
    assert isinstance(read_pod(case["pod"], tier="llama", config_maps=maps), PodIdentity)
    assert isinstance(config_maps_of(case["pod"]), frozenset)


@given(st.lists(WORDS | TRICKY, max_size=12), TRICKY, TRICKY)
def test_no_argument_is_an_error(words: list[str], value: str, file: str) -> None:
    env = [{"name": "A", "value": value}, {"name": "B", "value": "$(A)$(B)$(C)$(A)"}]
    for argv in (words, ["sh", "-c", " ".join(words)], ["vllm", "serve", *words]):
        assert isinstance(read(*argv, env=env, c={"x": file}), PodIdentity)


HOSTILE = [
    ["vllm", "serve", "a/b", "--hf-overrides", "[" * 100_000],
    ["vllm", "serve", "a/b", "--hf-overrides", '{"a":' * 5000 + "1" + "}" * 5000],
    ["vllm", "serve", "a/b", "--revision", "9" * 1_000_000],
    ["vllm", "serve", "a/b", "--tensor-parallel-size", "9" * 100_000],
    ["vllm", "serve", *["--x"] * 100_000],
    ["sh", "-c", "exec vllm serve " + "$" * 60_000],
    ["sh", "-c", "a=1;" * 16_000 + "vllm serve a/b"],
    ["sh", "-c", "vllm serve x=" + "$A" * 30_000],
    ["sh", "-c", "vllm serve " + "${A:-" * 12_000],
    ["sh", "-c", "vllm serve " + "$(" * 30_000],
    ["sh", "-c", "vllm serve " + '"$(' * 20_000],
    ["sh", "-c", "A=a; " + "A=$A$A;" * 60 + " vllm serve $A"],
    ["sh", "-c", "eval " * 10_000 + "vllm serve a/b"],
    ["sh", "-c", "sh -c " * 10_000],
    ["sh", "-c", "set -- " + "a " * 4000 + "; vllm serve " + '"$@" ' * 4000],
    ["sh", "-c", "A= " * 20_000 + "A=$B"],
    ["sh", "-c", "'" * 60_001],
    ["sh", "-c", "vllm " * 12_000],
    ["sh", "-c", ">a" * 30_000],
    ["sh", "-c", "(" * 60_000],
    ["sh", "-c", "`" * 60_001],
]


@pytest.mark.parametrize("words", HOSTILE, ids=lambda words: " ".join(words)[:40])
def test_a_hostile_pod_costs_little(words: list[str]) -> None:
    """CPU time, which other processes of a loaded machine do not change much."""
    began = time.process_time()
    assert read(*words).fields.get("modelName") in (None, "a/b")
    assert time.process_time() - began < 2


def test_variables_that_double_each_other_cost_little() -> None:
    env = [{"name": "V0", "value": "x" * 100}]
    env += [{"name": f"V{n}", "value": f"$(V{n - 1})$(V{n - 1})"} for n in range(1, 200)]
    found = read("vllm", "serve", "$(V199)", env=env)
    assert "too long" in found.unreadable["modelName"]


def test_a_variable_that_is_named_many_times_takes_little_memory() -> None:
    env = [{"name": "V", "value": "x" * 60_000}, {"name": "W", "value": "$(V)" * 2000}]
    tracemalloc.start()
    found = read("vllm", "serve", "$(W)", env=env)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "too long" in found.unreadable["modelName"]
    assert peak < 10_000_000


def test_two_dollars_are_one_that_stands_for_itself() -> None:
    found = read("vllm", "serve", "org/$$(V)", env=[{"name": "V", "value": "model"}])
    assert found.fields["modelName"] == "org/$(V)"


def test_yaml_that_multiplies_itself_is_refused() -> None:
    bomb = "a: &a [x, x]\n" + "".join(
        f"{chr(98 + n)}: &{chr(98 + n)} [*{chr(97 + n)}, *{chr(97 + n)}]\n" for n in range(20)
    )
    found = read("vllm", "serve", "org/model", "--config", "/c/x", c={"x": bomb})
    assert "is no YAML" in found.unreadable["arguments"]
