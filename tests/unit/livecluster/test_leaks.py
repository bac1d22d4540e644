"""The search for tokens finds them in every form, and nothing else."""

import base64
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvtier.redact import new_token, redact
from livecluster.leaks import Leaks, Needles

TOKEN = new_token()
BARE = TOKEN.partition("-")[2]
KEY = "-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMGByqGSM49\n-----END PRIVATE KEY-----\n"

FORMS: dict[str, Callable[[str], str]] = {
    "as it is": lambda token: f"AUTH {token} failed",
    "in JSON": lambda token: json.dumps({"user": token}),
    "in base64": lambda token: base64.b64encode(token.encode()).decode(),
    "in base64, one further": lambda token: base64.b64encode(f"x{token}y".encode()).decode(),
    "in base64, two further": lambda token: base64.b64encode(f"xx{token}yy".encode()).decode(),
}


def secret(**data: str) -> dict[str, Any]:
    return {"data": {key: base64.b64encode(text.encode()).decode() for key, text in data.items()}}


@pytest.fixture
def needles() -> Needles:
    found = Needles()
    found.learn([secret(token=TOKEN, **{"users.acl": f"user {TOKEN} on"}), {"data": None}])
    return found


def test_the_tokens_of_a_session_are_learned_from_its_secrets(needles: Needles) -> None:
    assert needles.tokens == {BARE}


@pytest.mark.parametrize("form", FORMS)
def test_a_token_is_found(form: str) -> None:
    """Without having been learned: by its prefix."""
    assert Needles().search(FORMS[form](TOKEN).encode())


@pytest.mark.parametrize("form", FORMS)
def test_a_token_that_lost_its_prefix_is_found(form: str, needles: Needles) -> None:
    text = FORMS[form](BARE).encode()
    assert needles.search(text)
    assert not Needles().search(text)


@pytest.mark.parametrize("form", FORMS)
def test_a_private_key_is_found(form: str, needles: Needles) -> None:
    assert needles.search(FORMS[form](KEY).encode())


def test_what_was_found_is_not_given_away(needles: Needles) -> None:
    for text in (TOKEN, BARE, FORMS["in base64"](TOKEN)):
        assert BARE[:8] not in needles.search(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        redact(f"AUTH {TOKEN} failed"),
        hashlib.sha256(TOKEN.encode()).hexdigest(),
        "Secret chat-engine-318f5a80f171, key kvt-318f5a80f171-r0@model",
        "-----BEGIN CERTIFICATE-----\nMIIB",
    ],
    # The token is another one in every process.
    ids=["redacted", "digest", "names", "certificate"],
)
def test_what_is_no_secret_is_not_found(text: str, needles: Needles) -> None:
    assert needles.search(text.encode()) == ""
    assert needles.search(base64.b64encode(text.encode())) == ""


class NoObjects:
    def list(self, plural: str, namespace: str = "") -> list[dict[str, Any]]:
        return [secret(token=TOKEN)] if plural == "secrets" else []


@pytest.fixture
def leaks(tmp_path: Path) -> Leaks:
    """An instance with one container's log, one component's log and an audit log."""
    state = tmp_path / "state"
    log = state / "node-1" / "log" / "pods" / "ns_pod_uid" / "controller" / "0.log"
    for file in (log, state / "logs" / "kubelet-node-1.log", state / "audit.log"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("all is well\n")
    found = Leaks(facts={"state": str(state)}, api=NoObjects(), kept=tmp_path / "kept")  # type: ignore[arg-type]
    found.keep_namespace("ns", described="Name: chat")
    return found


@pytest.mark.parametrize(
    "place",
    ["node-1/log/pods/ns_pod_uid/controller/0.log", "logs/kubelet-node-1.log", "audit.log"],
)
def test_a_token_planted_in_a_log_of_the_instance_is_found(
    place: str, leaks: Leaks, tmp_path: Path
) -> None:
    assert leaks.found() == []
    with (tmp_path / "state" / place).open("a") as log:
        log.write(f"login as {TOKEN}\n")
    (line,) = leaks.found()
    assert TOKEN not in line


def test_a_log_that_is_gone_by_the_end_was_read_before(leaks: Leaks, tmp_path: Path) -> None:
    pods = tmp_path / "state" / "node-1" / "log" / "pods"
    (pods / "ns_pod_uid" / "controller" / "0.log").write_text(f"{TOKEN}\n")
    leaks.look()
    shutil.rmtree(pods)
    (line,) = leaks.found()
    assert "log-controller" in line


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "state" / "node-1" / "log" / "pods" / "ns_pod_uid" / "controller" / "0.log"


def test_a_token_at_the_beginning_of_a_rotated_log_is_found(leaks: Leaks, log: Path) -> None:
    log.write_text("all is well\n" * 20)
    leaks.look()
    log.write_text(f"{TOKEN}\n")
    leaks.look()
    log.write_text("")
    (line,) = leaks.found()
    assert "log-controller" in line


def test_a_token_in_a_new_log_that_is_longer_than_the_old_is_found(leaks: Leaks, log: Path) -> None:
    leaks.look()
    log.rename(log.with_suffix(".log.20270115"))
    log.write_text(f"{TOKEN}\n{'all is well' * 20}\n")
    leaks.look()
    log.write_text("")
    (line,) = leaks.found()
    assert "log-controller" in line
    assert leaks.seen["log-controller"] > 200


def test_a_token_of_which_two_looks_see_a_half_each_is_found(leaks: Leaks, log: Path) -> None:
    other = log.parents[1] / "agent" / "0.log"
    other.parent.mkdir()
    for part in (TOKEN[:9], TOKEN[9:]):
        with log.open("a") as file:
            file.write(part)
        other.write_text("all is well\n" * 5)
        leaks.look()
    log.write_text("")
    (line,) = leaks.found()
    assert "log-controller" in line


def test_a_token_in_a_description_or_in_an_artefact_is_found(leaks: Leaks, tmp_path: Path) -> None:
    artefacts = tmp_path / "artefacts" / "deep"
    artefacts.mkdir(parents=True)
    (artefacts / "report.json").write_text(json.dumps({"key": BARE}))
    leaks.keep("described", f"Args: --pass {TOKEN}")
    assert len(leaks.found(tmp_path / "artefacts")) == 2
