"""The command line as a whole: bad input, what is imported, the other offline commands."""

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import PROGRAM, kvtier, kvtier_process, one_line

from kvtier import __version__
from kvtier.api.crd import crd_yaml
from kvtier.api.load import load_file
from kvtier.cli.main import COMMANDS
from kvtier.generation.identity import generation_id, identity

TierFile = Callable[..., Path]
OFFLINE = ["plan", "render", "generation"]


@pytest.mark.parametrize("command", OFFLINE)
def test_a_missing_file_is_one_line(command: str) -> None:
    assert "no-such.yaml: No such file" in one_line(kvtier(command, "-f", "no-such.yaml"))


@pytest.mark.parametrize("command", OFFLINE)
def test_a_directory_is_one_line(command: str, tmp_path: Path) -> None:
    assert "Is a directory" in one_line(kvtier(command, "-f", tmp_path))


@pytest.mark.parametrize(
    "junk", [b"", b"\x00\x01\xff", bytes(range(256)), b"{", b"- 1\n", b"7", b"a: &a [*a]\n"]
)
def test_junk_is_one_line(junk: bytes) -> None:
    one_line(kvtier("plan", "-f", "-", stdin=junk))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("store:", "store: {version: 9.1, memoryPerRank: 64Gi}", 'write it in quotes: "9.1"'),
        ("store:", "store: {version: 9, memoryPerRank: 64Gi}", "9 is not supported; write '8.1'"),
        (
            "store:",
            "store: {nodeSelector: {a: true}, memoryPerRank: 64Gi}",
            "spec.store.nodeSelector.a: true is true or false to YAML, not a string; put it in quo",
        ),
        (
            "store:",
            "store: {ioThreads: 2, cpu: 5500m, memoryPerRank: 64Gi}",
            "5500m is no number of whole cores, which ioThreads 2 needs; write whole cores",
        ),
        (
            "store:",
            "store: {ioThreads: 2, cpu: 2500m, memoryPerRank: 64Gi}",
            "2500m is too little for ioThreads 2; write whole cores",
        ),
        ("layout:", "", "one of gqa {layers, kvHeads, headDim}, mla {layers, kvLoraRank"),
        ("layout:", "", "kvtier layout --model-config config.json prints it, and plan, render and"),
        ("layout:", "", " generation take --model-config themselves"),
    ],
)
def test_a_slip_is_answered_with_what_to_write(
    tmp_path: Path, tier_file: TierFile, old: str, new: str, said: str
) -> None:
    document = yaml.safe_load(tier_file().read_text())
    taken = document["spec"].pop("store") if old == "store:" else None
    if taken is None:
        del document["spec"]["model"]["layout"]
    file = tmp_path / "slip.yaml"
    text = yaml.safe_dump(document)
    file.write_text(text.replace("spec:\n", f"spec:\n  {new}\n" if new else "spec:\n", 1))
    assert said in one_line(kvtier("plan", "-f", file))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"workload": {"hitRate": 0.6}},
            'spec.workload.hitRate: 0.6 is a number, not a string; write it in quotes: "0.6"',
        ),
        ({"pool.hitLatency": 50}, "spec.pool.hitLatency: 50 has no unit; write 50ms or 50s"),
        (
            {"pool.hitLatency": 0.33},
            "spec.pool.hitLatency: 0.33 has no unit; write 0.33ms or 0.33s",
        ),
        (
            {"pool.hitLatency": -1},
            "spec.pool.hitLatency: -1 is not a string; write a duration such as 330ms or 50us",
        ),
        (
            {"store.memoryPerRank": 0.5},
            "spec.store.memoryPerRank: 0.5 is not a string; write bytes such as 64Gi",
        ),
    ],
)
def test_a_number_that_should_be_text_comes_back_as_it_is_to_be_written(
    tier_file: TierFile, changes: dict[str, Any], said: str
) -> None:
    assert one_line(kvtier("plan", "-f", tier_file(changes))) == said


@pytest.mark.parametrize("indent", [None, 2])
def test_a_model_s_config_is_named_before_it_is_judged_as_a_tier(
    tmp_path: Path, indent: int | None
) -> None:
    """A number such as 1e-05, which they have, would be the first complaint."""
    file = tmp_path / "config.json"
    config = {"rms_norm_eps": 1e-05, "model_type": "llama"}
    file.write_text(json.dumps(config, indent=indent))
    line = one_line(kvtier("plan", "-f", file))
    assert "this is a model's config.json, not a KVCacheTier; give it as --model-config" in line


def test_a_tier_in_json_that_mentions_a_model_type_is_a_tier(tier_file: TierFile) -> None:
    document = yaml.safe_load(tier_file().read_text())
    document["metadata"]["annotations"] = {"model_type": "llama"}
    assert kvtier("plan", "-f", "-", stdin=json.dumps(document).encode()).returncode == 0


def test_a_file_of_another_kind_is_named_before_its_yaml_is_judged() -> None:
    pool = Path(__file__).parents[3] / "deploy" / "samples" / "prefill-pool.yaml"
    line = one_line(kvtier("plan", "-f", pool))
    assert line.endswith("this is a Deployment, not a KVCacheTier; name the file of a tier")


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (("plan", "-f", "no-such.yaml", "-f", "nor-such.yaml"), "-f"),
        (("plan", "-f", "no-such.yaml", "--file", "nor-such.yaml"), "--file"),
        (("plan", "-f", "-", "--context", "one", "--context", "other"), "--context"),
        (("status", "tier", "-o", "json", "-o", "table"), "-o"),
        (("loadtest", "--duration", "1s", "--duration", "2s"), "--duration"),
        (("webhook", "--log-level", "info", "--log-level", "debug"), "--log-level"),
    ],
)
def test_an_option_of_one_value_is_not_taken_twice(arguments: tuple[str, ...], option: str) -> None:
    assert one_line(kvtier(*arguments)) == f"{option}: there twice; keep one"


def test_an_unknown_command_is_answered_with_those_for_people() -> None:
    said = kvtier("plna")
    assert said.returncode == 2
    assert b"probe-worker" not in said.stderr
    assert b"plan" in said.stderr
    assert kvtier("probe-worker", "--help").returncode == 0


@pytest.mark.parametrize("command", ["render", "generation"])
def test_a_layout_may_come_from_the_model_s_config(command: str, tier_file: TierFile) -> None:
    config = Path(__file__).parents[1] / "modelconfig" / "configs"
    config /= "llama-3.1-70b.json"
    whole = kvtier(command, "-f", tier_file()).stdout
    assert kvtier(command, "-f", tier_file({"model.layout": None})).returncode == 2
    file = tier_file({"model.layout": None})
    assert kvtier(command, "-f", file, "--model-config", config).stdout == whole


def test_render_puts_the_tier_into_the_namespace_that_is_asked_for(tier_file: TierFile) -> None:
    asked = kvtier("render", "-f", tier_file(), "-n", "serving").stdout.decode()
    objects = list(yaml.safe_load_all(asked))
    assert {each["metadata"]["namespace"] for each in objects} == {"serving"}
    assert "models" not in asked
    line = one_line(kvtier("render", "-f", tier_file(), "-n", "Not_one"))
    assert line.startswith("--namespace: 'Not_one' is no DNS label")


def test_a_bad_field_is_named(tier_file: TierFile) -> None:
    line = one_line(kvtier("plan", "-f", tier_file({"pool.ranks": 0})))
    assert line.startswith("spec.pool.ranks: ")


def test_too_little_memory_is_named(tier_file: TierFile) -> None:
    line = one_line(kvtier("plan", "-f", tier_file({"store.memoryPerRank": "64Mi"})))
    assert line.startswith("spec.store.memoryPerRank: ")


def test_every_problem_has_a_line_of_its_own(tier_file: TierFile) -> None:
    file = tier_file({"pool.ranks": 0, "store.memoryPerRank": "64GB"})
    completed = kvtier("plan", "-f", file)
    assert completed.returncode == 2
    lines = completed.stderr.decode().splitlines()
    assert [line.split()[1] for line in lines] == ["spec.pool.ranks:", "spec.store.memoryPerRank:"]


def test_standard_input_is_read(tier_file: TierFile) -> None:
    completed = kvtier("plan", "-f", "-", stdin=tier_file().read_bytes())
    assert completed.returncode == 0
    assert b"Verdict: PaysWhenLong" in completed.stdout


def test_a_closed_standard_input_is_one_line() -> None:
    command = f"exec {PROGRAM} plan -f - <&-"
    completed = subprocess.run(["sh", "-c", command], capture_output=True, timeout=60, check=False)
    assert "standard input is closed" in one_line(completed)


@pytest.mark.parametrize("command", [["plan"], ["render"], ["render", "-o", "json"]])
def test_a_reader_that_has_gone_is_one_line(tier_file: TierFile, command: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        completed = kvtier_process(*command, "-f", tier_file(), stdout=writer)
    finally:
        os.close(writer)
    assert "standard output was closed" in one_line(completed)


def test_a_full_disk_is_one_line(tier_file: TierFile) -> None:
    with Path("/dev/full").open("wb") as full:
        completed = kvtier_process("plan", "-f", tier_file(), stdout=full.fileno())
    assert "No space left" in one_line(completed)


def test_no_command_and_an_unknown_one_are_bad_input() -> None:
    for arguments in ([], ["judge"], ["plan"], ["plan", "-f"]):
        completed = kvtier(*arguments)
        assert completed.returncode == 2
        assert b"usage: kvtier" in completed.stderr
        assert b"Traceback" not in completed.stderr


def test_the_version_is_the_packages() -> None:
    assert kvtier_process("--version").stdout.decode() == f"kvtier {__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_its_help(command: str) -> None:
    shown = kvtier(command, "--help")
    assert shown.returncode == 0, shown.stderr.decode()
    assert shown.stdout.decode().startswith(f"usage: kvtier {command}")


def test_help_lists_every_command() -> None:
    text = kvtier("--help").stdout.decode()
    for command in (*OFFLINE, "crd", "controller"):
        assert re.search(rf"^ +{command}\s", text, re.MULTILINE)


def test_offline_commands_import_no_cluster_library(tier_file: TierFile) -> None:
    """A laptop without them runs these commands, and quickly."""
    commands = [["crd"], *([command, "-f", str(tier_file())] for command in OFFLINE)]
    script = (
        "import sys\n"
        "from kvtier.cli.main import main\n"
        f"code = max(main(command) for command in {commands!r})\n"
        "heavy = {'kopf', 'kubernetes', 'aiohttp', 'valkey', 'prometheus_client'}\n"
        "print(code, sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    completed = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, timeout=60, check=False
    )
    assert completed.stderr.decode() == "0 []\n"


@pytest.mark.parametrize(
    ("command", "not_needed"),
    [
        (["--help"], {"pydantic", "yaml", "importlib.metadata"}),
        (["plan"], {"asyncio", "multiprocessing", "ssl", "http", "subprocess", "xml"}),
    ],
)
def test_a_command_imports_what_it_needs(
    command: list[str], not_needed: set[str], tier_file: TierFile
) -> None:
    if command == ["plan"]:
        command = ["plan", "-f", str(tier_file())]
    script = (
        "import contextlib, sys\n"
        "from kvtier.cli.main import main\n"
        "with contextlib.suppress(SystemExit):\n"
        f"    main({command!r})\n"
        f"print(sorted({not_needed!r} & set(sys.modules)), file=sys.stderr)\n"
    )
    completed = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, timeout=60, check=False
    )
    assert completed.stderr.decode() == "[]\n"


def test_crd_is_the_generated_one() -> None:
    assert kvtier("crd").stdout.decode() == crd_yaml()


def test_generation_prints_what_git_needs(tier_file: TierFile) -> None:
    file = tier_file()
    spec = load_file(str(file)).spec
    found = generation_id(spec)
    secret = f"llama-prefill-engine-{found}"
    assert kvtier("generation", "-f", file).stdout.decode() == f"{found}\n"
    assert kvtier("generation", "-f", file, "-o", "secretName").stdout.decode() == f"{secret}\n"
    content = json.loads(kvtier("generation", "-f", file, "-o", "json").stdout)
    assert content == {"id": found, "secretName": secret, "identity": identity(spec)}


def rendered(file: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(kvtier("render", "-f", file).stdout))


def test_render_prints_every_child(tier_file: TierFile) -> None:
    objects = rendered(tier_file())
    names = {(found["kind"], found["metadata"]["name"]) for found in objects}
    assert {("StatefulSet", f"llama-prefill-r{rank}") for rank in range(8)} <= names
    assert {("Service", f"llama-prefill-r{rank}") for rank in range(8)} <= names
    assert len(names) == len(objects) == 2 * 8 + 6
    assert {found["metadata"]["namespace"] for found in objects} == {"models"}


def test_render_in_json_is_a_list_of_the_same_objects(tier_file: TierFile) -> None:
    content = json.loads(kvtier("render", "-f", tier_file(), "-o", "json").stdout)
    assert (content["apiVersion"], content["kind"]) == ("v1", "List")
    assert content["items"] == rendered(tier_file())


def test_render_shows_placeholders_for_tokens(tier_file: TierFile) -> None:
    secrets = [found for found in rendered(tier_file()) if found["kind"] == "Secret"]
    tokens = {
        base64.b64decode(found["data"]["token"]).decode()
        for found in secrets
        if "token" in found["data"]
    }
    whose = ("operator", "engine", "probe", "limiter")
    assert tokens == {f"REDACTED-{each}-token" for each in whose}


def test_render_is_the_same_every_time(tier_file: TierFile) -> None:
    file = tier_file()
    assert kvtier("render", "-f", file).stdout == kvtier("render", "-f", file).stdout
