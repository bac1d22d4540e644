"""``kvtier controller`` as a process of its own, against a real API server without kubelets."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from apiserver_process import ApiServer
from controller_process import apply_tier, controller, get, wait_for

from kvtier.cli.main import main


@pytest.fixture
def namespace(apiserver: ApiServer) -> Iterator[str]:
    name = f"process-{time.monotonic_ns()}"
    assert apiserver.kubectl("create", "namespace", name).code == 0
    yield name
    apiserver.kubectl("delete", "kvt", "--all", "-n", name)


def test_a_tier_gets_its_children_and_a_status_and_sigterm_ends_the_process(
    apiserver: ApiServer, namespace: str, tmp_path: Path
) -> None:
    with controller(apiserver, tmp_path) as process:
        wait_for(lambda: process.answers("/readyz") == 200)
        apply_tier(apiserver, namespace)
        wait_for(lambda: len(get(apiserver, "sts", "-n", namespace)["items"]) == 2)
        status = wait_for(lambda: get(apiserver, "kvt", "demo", "-n", namespace).get("status"))
        assert {c["type"]: c["status"] for c in status["conditions"]} == {
            "SpecValid": "True",
            "StoreReady": "False",
            "GenerationCurrent": "True",
            "Ready": "False",
            "PlacementAccepted": "Unknown",
            "EarningItsKeep": "Unknown",
            "Warm": "Unknown",
            "AdmissionEnforced": "False",
        }
        tier = get(apiserver, "kvt", "demo", "-n", namespace)
        assert "finalizers" not in tier["metadata"]
        assert not [key for key in tier["metadata"]["annotations"] if "kubectl" not in key]
        secret = get(apiserver, "secret", status["engineSecret"], "-n", namespace)
        assert set(secret["data"]) >= {"connection.json", "token", "env"}
        assert process.stop() == 0
        assert "Traceback" not in process.log.read_text()
        # Released, not left to expire: the next one starts at once.
        lease = get(apiserver, "lease", "kvtier", "-n", "default")
        assert not lease["spec"].get("holderIdentity")


def test_no_token_is_in_the_log(apiserver: ApiServer, namespace: str, tmp_path: Path) -> None:
    with controller(apiserver, tmp_path) as process:
        wait_for(lambda: process.answers("/readyz") == 200)
        apply_tier(apiserver, namespace)
        wait_for(lambda: "data" in get(apiserver, "secret", "demo-operator", "-n", namespace))
        process.stop()
        assert "kvtt-" not in process.log.read_text()


def test_a_second_controller_waits_and_takes_over_when_the_first_ends(
    apiserver: ApiServer, tmp_path: Path
) -> None:
    with (
        controller(apiserver, tmp_path, lease="pair") as first,
        controller(apiserver, tmp_path, lease="pair") as second,
    ):
        wait_for(lambda: 200 in (first.answers("/readyz"), second.answers("/readyz")))
        active, waiting = (first, second) if first.answers("/readyz") == 200 else (second, first)
        wait_for(lambda: waiting.answers("/healthz") == 200)
        assert waiting.answers("/readyz") == 503
        assert active.stop() == 0
        wait_for(lambda: waiting.answers("/readyz") == 200)
        assert waiting.stop() == 0


def test_a_controller_whose_lease_is_taken_ends_with_an_error(
    apiserver: ApiServer, tmp_path: Path
) -> None:
    with controller(apiserver, tmp_path, lease="stolen") as process:
        wait_for(lambda: process.answers("/readyz") == 200)
        patch = json.dumps({"spec": {"holderIdentity": "somebody-else"}})
        answer = apiserver.kubectl(
            "patch", "lease", "stolen", "-n", "default", "--type=merge", "-p", patch
        )
        assert answer.code == 0, answer.message
        assert process.process.wait(timeout=30) == 1
        assert "lease" in process.log.read_text()


def test_a_standby_ends_cleanly_while_it_waits(apiserver: ApiServer, tmp_path: Path) -> None:
    with (
        controller(apiserver, tmp_path, lease="standby") as first,
        controller(apiserver, tmp_path, lease="standby") as second,
    ):
        wait_for(lambda: 200 in (first.answers("/readyz"), second.answers("/readyz")))
        waiting = second if first.answers("/readyz") == 200 else first
        wait_for(lambda: waiting.answers("/healthz") == 200)
        assert waiting.stop() == 0


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--resync=5", "--resync: '5' is not a duration"),
        ("--resync=1ms", "--resync: 1ms is below 1s"),
        ("--listen=8080", "--listen: '8080' is not HOST:PORT"),
        ("--valkey-image=7.2=x", "--valkey-image: '7.2=x' is not SERIES=IMAGE"),
    ],
)
def test_a_bad_flag_is_one_line_that_names_it(
    flag: str, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["controller", flag]) == 2
    said = capfd.readouterr().err
    assert message in said
    assert len(said.splitlines()) == 1
