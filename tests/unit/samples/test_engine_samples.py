"""The sample engines say what their tier publishes, and kustomize and Helm keep both in step."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from chart_helm import Helm
from engine_samples import ENGINES, LABEL, TIERS, Pod, documents, pods

from kvtier.api.load import load_file
from kvtier.api.scalars import parse_quantity
from kvtier.api.types import KVCacheTier
from kvtier.cli.main import main
from kvtier.generation.record import new_record
from kvtier.redact import new_token
from kvtier.render.engine import engine_files

PATH = re.compile(r"/kvtier/([\w.-]+)")
CASES = [
    pytest.param(name, number, id=f"{name}-{number}")
    for name in TIERS
    for number in range(len(pods((ENGINES / name).read_text())))
]


@pytest.fixture
def pod(name: str, number: int) -> Pod:
    return pods((ENGINES / name).read_text())[number]


@pytest.fixture
def tier(name: str) -> KVCacheTier:
    return load_file(str(TIERS[name]))


@pytest.fixture
def files(tier: KVCacheTier) -> dict[str, str]:
    record = new_record(tier.spec, operator_token=new_token(), engine_token=new_token())
    return {key: str(text) for key, text in engine_files(tier, record).items()}


def printed(tier: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What the command of the docs prints."""
    assert main(["generation", "-f", str(tier), "-o", "secretName"]) == 0
    return capsys.readouterr().out.strip()


def test_every_sample_of_an_engine_has_a_tier() -> None:
    workloads = {path.name for path in ENGINES.glob("*.yaml") if pods(path.read_text()) != []}
    assert workloads == set(TIERS)


@pytest.mark.parametrize(("name", "number"), CASES)
def test_a_pod_is_marked_as_the_tiers_and_mounts_its_secret(
    name: str, pod: Pod, tier: KVCacheTier, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pod.labels[LABEL] == tier.metadata.name
    assert pod.secret_names == [printed(TIERS[name], capsys)]
    for container in [*pod.servers, pod.engine]:
        mounts = {mount["name"]: mount for mount in container.body["volumeMounts"]}
        assert mounts["kvtier"] == {"name": "kvtier", "mountPath": "/kvtier", "readOnly": True}
        assert mounts["shm"]["mountPath"] == "/dev/shm"


@pytest.mark.parametrize(("name", "number"), CASES)
def test_every_file_that_a_command_reads_is_in_the_secret(pod: Pod, files: dict[str, str]) -> None:
    for container in [*pod.servers, pod.engine]:
        read = set(PATH.findall(container.said))
        assert "env" in read
        assert read <= files.keys()


@pytest.mark.parametrize(("name", "number"), CASES)
def test_every_server_is_started_and_asked_where_the_secret_has_it(
    pod: Pod, files: dict[str, str]
) -> None:
    wanted = {key for key in files if key.startswith("server-args")}
    assert {key for server in pod.servers for key in PATH.findall(server.said)} >= wanted
    ports = {re.search(r"--http-port (\d+)", files[key])[1] for key in wanted}  # type: ignore[index]
    probe = pod.servers[-1].body["startupProbe"]["exec"]["command"][-1]
    asked = re.findall(r"127\.0\.0\.1:(\d+|888\{k\})/healthcheck", probe)
    if asked == ["888{k}"]:
        (count,) = re.findall(r"range\((\d+)\)", probe)
        asked = [f"888{k}" for k in range(int(count))]
    assert set(asked) == ports


@pytest.mark.parametrize(("name", "number"), CASES)
def test_no_probe_ends_a_server_that_is_busy(pod: Pod) -> None:
    for server in pod.servers:
        assert server.body["restartPolicy"] == "Always"
        assert "livenessProbe" not in server.body
        assert "readinessProbe" not in server.body


@pytest.mark.parametrize(("name", "number"), CASES)
def test_an_engine_serves_the_tiers_model_on_a_gpu_for_each_rank(
    pod: Pod, tier: KVCacheTier
) -> None:
    said, tensor = pod.engine.said, tier.spec.pool.parallelism.tensor or tier.spec.pool.ranks
    assert re.search(rf"(serve|--model-path) {re.escape(tier.spec.model.name)} ", said)
    assert f"--revision {tier.spec.model.revision} " in said
    assert re.search(rf"--(tensor-parallel|tp)-size {tensor} ", said)
    assert pod.engine.body["resources"]["limits"]["nvidia.com/gpu"] == str(tensor)


@pytest.mark.parametrize(("name", "number"), CASES)
def test_a_server_may_have_more_memory_than_its_l1(pod: Pod, tier: KVCacheTier) -> None:
    for server in pod.servers:
        limit = parse_quantity(server.body["resources"]["limits"]["memory"])
        assert limit >= tier.spec.pool.engine.l1_bytes + (4 << 30)


def test_sglang_is_told_where_its_server_is() -> None:
    text = (ENGINES / "sglang.yaml").read_text()
    (config,) = [each for each in documents(text) if each["kind"] == "ConfigMap"]
    tier = load_file(str(TIERS["sglang.yaml"]))
    record = new_record(tier.spec, operator_token=new_token(), engine_token=new_token())
    arguments = str(engine_files(tier, record)["server-args"]).split()
    port = int(arguments[arguments.index("--port") + 1])
    found = yaml.safe_load(config["data"]["config.yaml"])
    assert found == {"mp_host": "127.0.0.1", "mp_port": port}
    assert tier.spec.model.identity["engine"].startswith("sglang")


def test_the_generated_name_in_git_is_the_tiers(capsys: pytest.CaptureFixture[str]) -> None:
    wanted = printed(ENGINES / "tier-hash.yaml", capsys)
    assert (ENGINES / "secret-name.env").read_text() == f"secretName={wanted}\n"


def test_kustomize_puts_label_and_secret_name_in_step_with_the_tier(
    kubectl: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "engines"
    shutil.copytree(ENGINES, home)
    engine, tier = home / "vllm-hash.yaml", home / "tier-hash.yaml"
    old = re.compile(r"(secretName|kvtier.dev/tier): .*")
    engine.write_text(old.sub(r"\1: out-of-step", engine.read_text()))
    tier.write_text(tier.read_text().replace("kvCacheDtype: bfloat16", "kvCacheDtype: fp8_e4m3"))
    name = printed(tier, capsys)
    (home / "secret-name.env").write_text(f"secretName={name}\n")
    built = subprocess.run(
        [kubectl, "kustomize", str(home)], capture_output=True, text=True, check=True
    ).stdout
    assert {each["kind"] for each in documents(built)} == {"Deployment", "KVCacheTier"}
    (pod,) = pods(built)
    assert (pod.labels[LABEL], pod.secret_names) == ("deepseek", [name])
    assert name != printed(ENGINES / "tier-hash.yaml", capsys)


def test_helm_takes_label_and_secret_name_from_the_tier(
    helm: Helm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tier = ENGINES / "tier-hash.yaml"
    (tmp_path / "name").write_text(f"{printed(tier, capsys)}\n")
    files = ("--set-file", f"tier={tier}", "--set-file", f"secretName={tmp_path / 'name'}")
    built = helm.template(*files, release="deepseek", chart=ENGINES / "helm")
    (pod,) = pods(built)
    assert pod == pods((ENGINES / "vllm-hash.yaml").read_text())[0]
    assert documents(tier.read_text())[0] in documents(built)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), "--set-file tier="),
        (("--set-file", f"tier={ENGINES / 'tier-hash.yaml'}"), "secretName is needed"),
        (
            (
                *("--set-file", f"tier={ENGINES / 'tier-hash.yaml'}"),
                *("--set", "revision=another,secretName=name"),
            ),
            "revision is another",
        ),
    ],
    ids=["no tier", "no name", "another revision"],
)
def test_helm_says_what_is_missing(helm: Helm, options: tuple[str, ...], told: str) -> None:
    run = helm.run("template", "deepseek", str(ENGINES / "helm"), *options)
    assert run.returncode != 0
    assert told in run.stderr
