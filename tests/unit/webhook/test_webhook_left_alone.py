"""Which pods get nothing, and what their owner is told."""

import shlex
from typing import Any

import pytest
from injection_pods import (
    NEW,
    OLD,
    SERVE,
    engine,
    id_of,
    identity_map,
    injected,
    live,
    patched,
    pod,
    server,
    shell,
    tier,
)

from kvtier.webhook.matching import Cause, LeftAlone

MP: dict[str, Any] = {"connector": "LMCacheMP"}
CONFIG = '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'


def left(made: dict[str, Any], document: dict[str, Any] | None = None) -> LeftAlone:
    with pytest.raises(LeftAlone) as caught:
        injected(made, document or live())
    line = str(caught.value)
    assert line
    assert line.isprintable()
    return caught.value


def without(flag: str) -> list[str]:
    at = SERVE.index(flag)
    return [*SERVE[:at], *SERVE[at + 2 :]]


def secret_of(made: dict[str, Any], document: dict[str, Any]) -> str:
    (volume,) = patched(made, injected(made, document))["spec"]["volumes"]
    return str(volume["secret"]["secretName"])


@pytest.mark.parametrize(
    "words",
    [
        ["--kv-transfer-config", CONFIG],
        [f"--kv-transfer-config={CONFIG}"],
        ["--kv_transfer_config", CONFIG],
        ["--kv-transfer-config.kv_connector", "NixlConnector"],
        ["--kv-transfer", CONFIG],
        ["--kv-offloading-size", "8"],
    ],
    ids=lambda words: words[0][:30],
)
def test_a_pod_with_a_transfer_config_keeps_it(words: list[str]) -> None:
    assert left(pod(engine([*SERVE, *words]))).cause is Cause.TRANSFER_CONFIG
    script = pod(shell(shlex.join([*SERVE, *words])))
    assert left(script).cause is Cause.TRANSFER_CONFIG


def test_a_config_that_is_read_from_the_secret_is_one_too() -> None:
    script = f'. /kvtier/env; {shlex.join(SERVE)} --kv-transfer-config "$(cat /kvtier/k.json)"'
    assert left(pod(shell(script))).cause in (Cause.TRANSFER_CONFIG, Cause.UNREADABLE)


@pytest.mark.parametrize(
    ("flag", "field"),
    [("--revision", "revision"), ("--kv-cache-dtype", "kvCacheDtype")],
)
def test_what_the_identity_has_and_the_pod_does_not_say_is_unreadable(
    flag: str, field: str
) -> None:
    found = left(pod(engine(without(flag))))
    assert found.cause is Cause.UNREADABLE
    assert str(found).startswith(f"{field} ")
    assert "or annotate the pod with kvtier.dev/" in str(found)
    annotated = pod(engine(without(flag)))
    annotated["metadata"]["annotations"] |= {
        "kvtier.dev/model-revision": "r1",
        "kvtier.dev/kv-cache-dtype": "bfloat16",
    }
    assert injected(annotated, live()) is not None


def test_auto_is_no_dtype_even_where_dtype_says_the_models() -> None:
    command = [*without("--kv-cache-dtype"), "--dtype", "bfloat16"]
    found = left(pod(engine(command)))
    assert (found.cause, "auto" in str(found)) == (Cause.UNREADABLE, True)


def test_arguments_from_elsewhere_are_unreadable() -> None:
    secret = {"name": "MORE", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    for made in (
        pod(engine([*SERVE, "$(MORE)"], env=[secret])),
        pod(engine(SERVE, args=["--config", "/config/vllm.yaml"])),
        pod(shell(f"{shlex.join(SERVE)} $MORE", env=[secret])),
    ):
        assert left(made).cause is Cause.UNREADABLE


def test_what_stands_in_front_of_known_arguments_may_be_a_transfer_config() -> None:
    secret = {"name": "MORE", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    rest = [*SERVE[3:], "-pp", "1", "-dcp", "1", "-pcp", "1"]
    assert injected(pod(engine([*SERVE[:3], *rest])), live()) is not None
    found = left(pod(engine([*SERVE[:3], "$(MORE)", *rest], env=[secret])))
    assert (found.cause, "MORE" in str(found)) == (Cause.UNREADABLE, True)


def test_a_script_in_the_image_is_unreadable() -> None:
    assert left(pod(shell("/opt/start.sh"))).cause is Cause.ENGINE
    both = left(pod(shell(f"/opt/prepare.sh; {shlex.join(SERVE)}")))
    assert both.cause is Cause.UNREADABLE
    assert "prepare.sh" in str(both)


@pytest.mark.parametrize(
    "script",
    [
        f"{shlex.join(SERVE)} | tee /log",
        f"{shlex.join(SERVE)} & wait",
        f"{shlex.join(SERVE)} # as always",
        f"{shlex.join(SERVE)} \\",
        f"({shlex.join(SERVE)})",
        f"if true; then {shlex.join(SERVE)}; fi",
        f"{shlex.join(SERVE)} > /log; echo over",
    ],
)
def test_a_script_that_does_not_end_with_the_engine_is_not_guessed_at(script: str) -> None:
    assert left(pod(shell(script))).cause in (Cause.UNREADABLE, Cause.ENGINE)


@pytest.mark.parametrize(
    "container",
    [
        engine(["python3", "-m", "sglang.launch_server", "--model-path", "tiny"]),
        engine(["python3", "-m", "dynamo.vllm", *SERVE[2:]]),
        engine(["nginx"]),
        engine([*SERVE, "--nnodes", "2"]),
        engine([*SERVE, "--distributed-executor-backend=ray"]),
        shell(f"ray start --head; {shlex.join(SERVE)}"),
        shell(f"{shlex.join(SERVE)} & {shlex.join(SERVE)}"),
    ],
    ids=lambda container: " ".join(container["command"])[-30:],
)
def test_only_a_whole_engine_of_vllms_own_server_is_injected(container: dict[str, Any]) -> None:
    assert left(pod(container)).cause is Cause.ENGINE


@pytest.mark.parametrize(
    ("made", "document"),
    [
        (pod(), live(engine=MP, striping="Hash")),
        (pod(engine(), server()), live(engine=MP)),
        (pod(engine(), server(), server("l2")), live(engine=MP, striping="Hash")),
        (pod(engine(), server()), live(engine={**MP, "adapter": "Stock"})),
        (pod(), live(engine={"connector": "Generic"})),
    ],
    ids=["no server", "one of two", "one too many", "stock", "generic"],
)
def test_a_connector_that_would_stay_incomplete_is_left_alone(
    made: dict[str, Any], document: dict[str, Any]
) -> None:
    assert left(made, document).cause is Cause.CONNECTOR


def test_servers_beside_two_engines_are_nobodys() -> None:
    made = pod(engine(), engine(name="b"), server())
    assert left(made, live(engine=MP, striping="Hash")).cause is Cause.ENGINE


def test_an_init_container_that_ends_is_no_server() -> None:
    made = pod(inits=[server()])
    assert left(made, live(engine=MP, striping="Hash")).cause is Cause.CONNECTOR


def test_a_server_that_is_told_where_to_listen_keeps_it() -> None:
    made = pod(engine(), server(args=["--port=7000"]))
    found = left(made, live(engine=MP, striping="Hash"))
    assert (found.cause, "--port" in str(found)) == (Cause.TRANSFER_CONFIG, True)


@pytest.mark.parametrize(
    "container",
    [
        engine(env=[{"name": "PYTHONHASHSEED", "value": "7"}]),
        engine(env=[{"name": "PYTHONPATH", "valueFrom": {"fieldRef": {"fieldPath": "a"}}}]),
        engine(env=[{"name": "LMCACHE_CONFIG_FILE", "value": "/etc/mine.yaml"}]),
        engine(volumeMounts=[{"name": "v", "mountPath": "/kvtier/"}]),
        engine(volumeMounts=[{"name": "v", "mountPath": "/kvtier/inner"}]),
    ],
    ids=lambda container: str(container.get("env") or container.get("volumeMounts"))[:50],
)
def test_what_the_owner_set_otherwise_stays(container: dict[str, Any]) -> None:
    made = pod(container, volumes=[{"name": "v", "emptyDir": {}}])
    assert left(made).cause is Cause.CONFLICT


def test_the_same_value_is_no_conflict() -> None:
    made = pod(engine(env=[{"name": "PYTHONHASHSEED", "value": "0"}]))
    assert injected(made, live()) is not None


def test_a_volume_of_the_name_is_a_conflict() -> None:
    assert left(pod(volumes=[{"name": "kvtier", "emptyDir": {}}])).cause is Cause.CONFLICT


def test_a_pod_of_the_generation_before_gets_its_secret_while_that_has_access() -> None:
    old = id_of(OLD)
    for state in ("Draining", "Pending", "Live"):
        assert secret_of(pod(), live(NEW, states={old: state})) == f"demo-engine-{old}"
    for state in ("Fenced", "Purged", "Contaminated"):
        found = left(pod(), live(NEW, states={old: state}))
        assert found.cause is Cause.NO_GENERATION
        assert "revision is r1, not r2" in str(found)
    assert left(pod(), live(NEW)).cause is Cause.NO_GENERATION


def test_the_other_generation_may_differ_in_dtype_and_its_chunks_are_of_its_size() -> None:
    fp8 = {"model": {"kvCacheDtype": "fp8_e4m3"}}
    document = live(fp8, states={id_of(OLD): "Draining"}, engine=None)
    assert secret_of(pod(), document) == f"demo-engine-{id_of(OLD)}"


@pytest.mark.parametrize(
    "command",
    [
        ["vllm", "serve", "other", *SERVE[3:]],
        [*SERVE[:-1], "1"],
        [*SERVE, "--pipeline-parallel-size", "2"],
    ],
)
def test_another_model_or_another_parallelism_has_no_generation(command: list[str]) -> None:
    found = left(pod(engine(command)), live(states={id_of(OLD): "Live"}))
    assert found.cause is Cause.NO_GENERATION


@pytest.mark.parametrize("state", ["Fenced", "Purged", "Contaminated"])
def test_the_specs_own_generation_without_access_is_not_given(state: str) -> None:
    found = left(pod(), tier(states={id_of(): state}))
    assert (found.cause, state in str(found)) == (Cause.NO_GENERATION, True)


def test_an_edit_that_the_controller_has_not_seen_is_on_its_way() -> None:
    for document in (tier(seen=0), tier(generation=2, states={"0" * 12: "Live"})):
        assert secret_of(pod(), document) == f"demo-engine-{id_of()}"
    assert left(pod(), tier(generation=2, seen=2)).cause is Cause.NO_GENERATION


def test_one_that_the_controller_will_not_make_is_not_on_its_way() -> None:
    paused = tier(seen=0)
    paused["spec"]["paused"] = True
    hopeless = tier(
        {
            "pool": {"hitLatency": "1s", "hitEngineTime": "1s"},
            "workload": {"hitTokens": [{"quantile": "1", "tokens": 1000}]},
            "placement": {"onReject": "Block"},
        },
        seen=0,
    )
    for document in (paused, hopeless):
        assert left(pod(), document).cause is Cause.NO_GENERATION


@pytest.mark.parametrize(
    ("entries", "words", "cause"),
    [
        ({"quantization": "awq"}, ["--quantization", "awq"], None),
        ({"quantization": "awq"}, ["--quantization", "fp8"], Cause.NO_GENERATION),
        ({"quantization": "awq"}, [], Cause.UNREADABLE),
        ({"quantization": "awq"}, ["--quantization", "$(Q)"], Cause.UNREADABLE),
        ({"team": "a"}, [], None),
    ],
)
def test_the_free_part_of_an_identity_counts_where_a_pod_can_say_it(
    entries: dict[str, str], words: list[str], cause: Cause | None
) -> None:
    source = {"name": "Q", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    made = pod(engine([*SERVE, *words], env=[source]))
    if cause is None:
        assert injected(made, live(identity_map(**entries))) is not None
    else:
        assert left(made, live(identity_map(**entries))).cause is cause


def test_chunks_of_another_size_are_a_conflict() -> None:
    made = pod(engine(env=[{"name": "LMCACHE_CHUNK_SIZE", "value": "512"}]))
    found = left(made)
    assert (found.cause, "512" in str(found)) == (Cause.CONFLICT, True)
