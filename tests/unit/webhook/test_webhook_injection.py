"""What is put into a pod, and that nothing else is touched."""

import copy
import json
import shlex
from typing import Any

import pytest
from injection_pods import (
    IN_PROCESS,
    SERVE,
    engine,
    id_of,
    injected,
    live,
    patched,
    pod,
    server,
    shell,
)

from kvtier.api.load import parse_tier
from kvtier.generation.record import new_record
from kvtier.render.engine import engine_files

MP: dict[str, Any] = {"connector": "LMCacheMP"}
MOUNT = {"name": "kvtier", "mountPath": "/kvtier", "readOnly": True}
TOKEN = "token-of-the-engines"


def files(document: dict[str, Any]) -> dict[str, str]:
    """What the controller publishes for the same tier."""
    tier = parse_tier(document)
    record = new_record(tier.spec, operator_token="token-of-kvtier", engine_token=TOKEN)
    return engine_files(tier, record)


def variables(container: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container["env"]}


def test_an_engine_in_process_gets_the_secret_the_variables_and_the_argument() -> None:
    document, made = live(), pod()
    after = patched(made, injected(made, document))
    (container,) = after["spec"]["containers"]
    name = f"demo-engine-{id_of()}"
    assert after["spec"]["volumes"] == [{"name": "kvtier", "secret": {"secretName": name}}]
    assert container["volumeMounts"] == [MOUNT]
    flag, config = container["args"]
    published = files(document)
    assert flag == "--kv-transfer-config"
    assert json.loads(config) == json.loads(published["kv-transfer-config.json"])
    lines = dict(line.split("=", 1) for line in published["env"].splitlines())
    lines["PYTHONPATH"] = lines["PYTHONPATH"].removesuffix("${PYTHONPATH:+:$PYTHONPATH}")
    assert variables(container) == lines
    assert lines["LMCACHE_CONFIG_FILE"] == "/kvtier/lmcache.yaml"
    assert container["command"] == SERVE


def test_nothing_but_that_is_changed() -> None:
    made = pod(
        engine(
            args=["--max-model-len=4096"],
            env=[{"name": "A", "value": "b"}],
            volumeMounts=[{"name": "shm", "mountPath": "/dev/shm"}],
        ),
        {"name": "proxy", "image": "envoy:1"},
        inits=[{"name": "init", "image": "busybox:1", "command": ["true"]}],
        volumes=[{"name": "shm", "emptyDir": {}}],
    )
    found = injected(made, live())
    after = patched(made, found)
    container = after["spec"]["containers"][0]
    assert container["args"][0] == "--max-model-len=4096"
    assert container["env"][0] == {"name": "A", "value": "b"}
    for place in ("args", "env", "volumeMounts"):
        container[place] = container[place][:1]
    after["spec"]["volumes"] = after["spec"]["volumes"][:1]
    assert after == made
    assert found is not None
    assert {each["op"] for each in found.operations} == {"add"}


def test_a_second_call_changes_nothing() -> None:
    made = pod(engine(args=[]), inits=[])
    after = patched(made, injected(made, live()))
    assert injected(after, live()) is None


def test_a_pod_that_mounts_a_secret_of_the_tier_is_its_owners_own_business() -> None:
    for generation in (id_of(), "0" * 12):
        volume = {"name": "v", "secret": {"secretName": f"demo-engine-{generation}"}}
        assert injected(pod(volumes=[volume]), live()) is None
    other = {"name": "v", "secret": {"secretName": f"other-engine-{id_of()}"}}
    assert injected(pod(volumes=[other]), live()) is not None


def test_a_python_path_of_the_pod_stays_behind_the_plugin() -> None:
    made = pod(engine(env=[{"name": "A", "value": "b"}, {"name": "PYTHONPATH", "value": "/mine"}]))
    found = injected(made, live())
    (container,) = patched(made, found)["spec"]["containers"]
    assert variables(container)["PYTHONPATH"] == "/kvtier/kvtier_lmcache.zip:/mine"
    assert [each["name"] for each in container["env"]].count("PYTHONPATH") == 1


@pytest.mark.parametrize(
    "script",
    [
        shlex.join(SERVE),
        f"exec {shlex.join(SERVE)}\n",
        f"set -e; export A=b\n{shlex.join(SERVE)} \\\n  --max-model-len 4096\n",
        f"ulimit -n 65536 && exec {shlex.join(SERVE)}",
    ],
)
def test_a_script_that_ends_with_the_engine_gets_the_argument_at_its_end(script: str) -> None:
    made = pod(shell(script))
    (container,) = patched(made, injected(made, live()))["spec"]["containers"]
    assert container["command"] == ["sh", "-c"]
    (longer,) = container["args"]
    assert longer.startswith(script.rstrip())
    *_, flag, config = shlex.split(longer)
    assert flag == "--kv-transfer-config"
    assert json.loads(config)["kv_connector"] == "LMCacheConnectorV1"


def test_a_script_that_hands_its_parameters_on_gets_the_argument_as_one() -> None:
    made = pod(engine(["sh", "-c", f'{shlex.join(SERVE)} "$@"', "--"]))
    (container,) = patched(made, injected(made, live()))["spec"]["containers"]
    assert container["args"][0] == "--kv-transfer-config"
    assert container["command"] == made["spec"]["containers"][0]["command"]


def test_an_image_that_is_an_engine_by_its_name_needs_no_command() -> None:
    container = engine(image="vllm/vllm-openai:v0.14.0", args=["--model", "tiny", *SERVE[3:]])
    del container["command"]
    made = pod(container)
    after = patched(made, injected(made, live()))["spec"]["containers"][0]
    assert after["args"][:-2] == container["args"]


def test_each_of_several_engines_in_process_is_injected_with_one_volume() -> None:
    made = pod(engine(), engine(name="second"))
    after = patched(made, injected(made, live()))["spec"]
    assert len(after["volumes"]) == 1
    assert [each["volumeMounts"] for each in after["containers"]] == [[MOUNT]] * 2
    assert [each["args"][0] for each in after["containers"]] == ["--kv-transfer-config"] * 2


@pytest.mark.parametrize("sidecar", [True, False])
def test_with_one_server_both_containers_are_told_of_each_other(sidecar: bool) -> None:
    document = live(engine=MP, striping="Hash")
    made = (
        pod(inits=[{"name": "i", "image": "i"}, server(restartPolicy="Always")])
        if sidecar
        else pod(engine(), server())
    )
    after = patched(made, injected(made, document))["spec"]
    beside = after["initContainers" if sidecar else "containers"][1]
    published = files(document)
    *arguments, flag, adapter = beside["args"]
    assert arguments == published["server-args"].split()
    assert flag == "--l2-adapter"
    assert json.loads(adapter) == json.loads(published["l2-adapter.json"])
    config = json.loads(after["containers"][0]["args"][1])
    assert config == json.loads(published["kv-transfer-config.json"])
    assert beside["volumeMounts"] == after["containers"][0]["volumeMounts"] == [MOUNT]
    assert variables(beside)["PYTHONHASHSEED"] == "0"
    assert "LMCACHE_CONFIG_FILE" not in variables(beside)


def test_with_a_server_for_each_rank_each_has_its_own_rank() -> None:
    document = live(engine=MP)
    made = pod(inits=[server(f"l{k}", restartPolicy="Always") for k in range(2)])
    after = patched(made, injected(made, document))["spec"]
    published = files(document)
    for rank, each in enumerate(after["initContainers"]):
        *arguments, _, adapter = each["args"]
        assert arguments == published[f"server-args-r{rank}"].split()
        assert json.loads(adapter) == json.loads(published[f"l2-adapter-r{rank}.json"])


def test_no_token_is_in_a_patch() -> None:
    for document in (live(), live(engine=MP, striping="Hash")):
        made = pod(engine(), server())
        assert TOKEN not in json.dumps(patched(made, injected(made, document)))
        assert TOKEN in "".join(files(document).values())


def test_tls_needs_nothing_more_with_the_plugin() -> None:
    document = live()
    document["spec"]["store"]["tls"] = {"secretName": "certificate"}
    made = pod()
    (container,) = patched(made, injected(made, document))["spec"]["containers"]
    assert "SSL_CERT_FILE" not in variables(container)


def test_the_pod_that_was_asked_about_is_not_touched() -> None:
    made = pod(engine(args=["--seed", "1"], env=[{"name": "PYTHONPATH", "value": "/m"}]))
    before = copy.deepcopy(made)
    injected(made, live(engine=IN_PROCESS))
    assert made == before
