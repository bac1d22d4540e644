"""Commands for people on call, as somebody runs them who may only read, or less."""

import base64
import json
import subprocess
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from apiserver_process import ApiServer
from cli_reader import TIERS, account, kvtier, rule, running
from controller_process import apply_tier
from fault_proxy import FaultProxy, proxy, status, watch_error

from kvtier.redact import new_token
from livecluster.leaks import Needles

TIER = "chat"
SECONDS = 40.0


@dataclass(frozen=True, slots=True)
class Setup:
    """A tier with a status, and two people: ``reader`` with the rights of ``view``, ``poor`` who
    may read tiers and nothing else."""

    server: ApiServer
    namespace: str
    reader: Path
    poor: Path

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        answer = self.server.kubectl("-n", self.namespace, *arguments, stdin=stdin)
        assert answer.code == 0, answer.message
        return answer.out

    def set_status(self, **fields: object) -> None:
        patch = json.dumps({"status": fields})
        self.kubectl("patch", "kvt", TIER, "--subresource=status", "--type=merge", "-p", patch)

    def event(self, name: str, reason: str, message: str) -> None:
        uid = self.kubectl("get", "kvt", TIER, "-o", "jsonpath={.metadata.uid}")
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": self.namespace},
            "involvedObject": {
                "apiVersion": "kvtier.dev/v1alpha1",
                "kind": "KVCacheTier",
                "name": TIER,
                "namespace": self.namespace,
                "uid": uid,
            },
            "type": "Warning",
            "reason": reason,
            "message": message,
            "count": 1,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "source": {"component": "kvtier"},
        }
        self.kubectl("create", "-f", "-", stdin=json.dumps(event))


def condition(kind: str, value: str, reason: str, message: str = "") -> dict[str, object]:
    return {
        "type": kind,
        "status": value,
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-11-30T20:00:00Z",
        "observedGeneration": 1,
    }


READY = [condition("StoreReady", "True", "AllRanksReady"), condition("Ready", "True", "TierReady")]
LOST = [
    condition("StoreReady", "False", "RanksNotReady", "1 of 2 ranks are ready (rank 1: starting)"),
    condition("Ready", "False", "NotReady", "1 of 2 ranks are ready"),
]


@pytest.fixture(scope="module")
def setup(apiserver: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    directory = tmp_path_factory.mktemp("people")
    namespace = f"people-{time.monotonic_ns()}"
    assert apiserver.kubectl("create", "namespace", namespace).code == 0
    apply_tier(apiserver, namespace, TIER)
    made = Setup(
        server=apiserver,
        namespace=namespace,
        reader=account(apiserver, namespace, "reader", TIERS, view=True, directory=directory),
        poor=account(
            apiserver,
            namespace,
            "poor",
            rule("get", "kvcachetiers", group="kvtier.dev"),
            view=False,
            directory=directory,
        ),
    )
    yield made
    apiserver.kubectl("delete", "namespace", namespace, "--wait=false")


@pytest.fixture(autouse=True)
def is_ready(setup: Setup) -> None:
    ranks = [{"rank": rank, "ready": True, "node": f"node-{rank}"} for rank in range(2)]
    setup.set_status(observedGeneration=1, ranks="2/2", conditions=READY, rankStates=ranks)


def test_status_works_with_the_rights_of_view(setup: Setup) -> None:
    setup.event("chat.seen", "RankBack", "rank 1 is back")
    shown, said = kvtier(setup.reader, "status", TIER)
    assert "Ready: 2/2 ranks\n" in shown
    assert "Warning RankBack: rank 1 is back\n" in shown
    assert "StoreReady is True (AllRanksReady)\n" in shown
    # What view does not give, in one line.
    assert "Whether a controller runs is not known: that takes the right to list leases" in shown
    assert said == ""
    table, _ = kvtier(setup.reader, "status")
    assert table.splitlines()[1].split() == [TIER, "yes", "2/2"]


def test_status_of_who_may_read_tiers_alone_names_what_is_missing(setup: Setup) -> None:
    shown, _ = kvtier(setup.poor, "status", TIER)
    for right in ("list leases", "list events in namespace", "Ready: 2/2"):
        assert right in shown
    _, said = kvtier(setup.poor, "status", code=2)
    assert said.count("\n") == 1
    assert f"KVCacheTiers of namespace {setup.namespace}: 403 Forbidden" in said


@pytest.fixture
def between(setup: Setup, tmp_path: Path) -> Iterator[FaultProxy]:
    """A proxy before the API server, for the reader."""
    with proxy(setup.server, tmp_path) as made:
        config = yaml.safe_load(made.kubeconfig.read_text())
        reader = yaml.safe_load(setup.reader.read_text())
        config["users"], config["contexts"] = reader["users"], reader["contexts"]
        made.kubeconfig.write_text(yaml.safe_dump(config))
        yield made


def test_watch_tells_of_changes_as_they_come_and_ends_quietly(setup: Setup, tmp_path: Path) -> None:
    with running(setup.reader, tmp_path, "watch", TIER) as watch:
        first = watch.wait_for("Ready, 2/2 ranks, verdict Unknown")
        assert first[2] == first[5] == ":"
        # It lists events by itself; what it prints afterwards has come since.
        time.sleep(1)
        setup.set_status(
            ranks="1/2",
            conditions=LOST,
            rankStates=[
                {"rank": 0, "ready": True, "node": "node-0"},
                {"rank": 1, "ready": False},
            ],
            admission={"state": "Storm", "reason": "RankLost"},
            verdict="Pays",
        )
        watch.wait_for("StoreReady is False (RanksNotReady): 1 of 2 ranks are ready")
        watch.wait_for("rank 1 is not ready")
        watch.wait_for("admission is Storm (RankLost)")
        watch.wait_for("the verdict is Pays, was Unknown")
        setup.event("chat.down", "RankDown", "rank 1 is gone")
        watch.wait_for("Warning RankDown: rank 1 is gone")
        setup.kubectl("patch", "kvt", TIER, "--type=merge", "-p", '{"spec":{"paused":true}}')
        watch.wait_for("paused")
        setup.kubectl("patch", "kvt", TIER, "--type=merge", "-p", '{"spec":{"paused":false}}')
        watch.wait_for("no longer paused")
        assert watch.interrupt() == 130
    said = watch.errors.read_text()
    assert said.count("\n") == 1, said
    assert said.startswith("kvtier: Whether a controller runs is not known")
    setup.set_status(admission=None, verdict=None)


def status_503() -> object:
    return status(503, "ServiceUnavailable")


def status_403() -> object:
    return status(403, "Forbidden")


def test_watch_goes_on_when_the_api_server_was_away_and_forgot_its_version(
    setup: Setup, between: FaultProxy, tmp_path: Path
) -> None:
    answers = [status_503, status_403]

    async def away(_: object) -> object:
        return answers[0]()

    with running(between.kubeconfig, tmp_path, "watch", "-o", "json") as watch:
        watch.wait_for("2/2 ranks")
        time.sleep(1)
        # The watch ends with 410, and nothing can be listed; meanwhile the tier changes.
        with between.failing(away):
            between.break_watches = watch_error(410, "Expired")
            watch.wait_for("the API server is away")
            between.break_watches = None
            # One that starts again does not know its roles for a moment.
            del answers[0]
            time.sleep(6)
            setup.set_status(ranks="1/2", conditions=LOST)
        watch.wait_for("the API server is back")
        line = json.loads(watch.wait_for("StoreReady is False (RanksNotReady)"))
        assert {name: line[name] for name in ("namespace", "tier", "kind", "type", "reason")} == {
            "namespace": setup.namespace,
            "tier": TIER,
            "kind": "Condition",
            "type": "Warning",
            "reason": "RanksNotReady",
        }
        begin = len(watch.lines)
        # Nothing that was told is told again, and the new watch sees what comes.
        setup.set_status(conditions=READY)
        watch.wait_for("StoreReady is True", begin=begin)
        setup.event("chat.again", "RankDown", "rank 0 is gone")
        watch.wait_for("rank 0 is gone", begin=begin)
        assert sum("is away" in line for line in watch.lines) == 1
        assert sum("StoreReady is False" in line for line in watch.lines) == 1
        assert watch.interrupt() == 130
    assert "Traceback" not in watch.errors.read_text()


def test_watch_waits_for_a_tier_that_is_not_there_and_tells_of_its_end(
    setup: Setup, tmp_path: Path
) -> None:
    with running(setup.reader, tmp_path, "watch", "later") as watch:
        watch.wait_for("no KVCacheTier later in namespace")
        apply_tier(setup.server, setup.namespace, "later")
        watch.wait_for("not Ready, no ranks, verdict Unknown")
        setup.kubectl("delete", "kvt", "later")
        watch.wait_for("the tier is deleted")
        assert watch.interrupt() == 130


def test_watch_without_the_right_to_events_goes_on_and_without_tiers_ends(
    setup: Setup, tmp_path: Path
) -> None:
    few = account(setup.server, setup.namespace, "few", TIERS, view=False, directory=tmp_path)
    with running(few, tmp_path, "watch", TIER) as watch:
        watch.wait_for("2/2 ranks")
        setup.set_status(conditions=LOST)
        watch.wait_for("StoreReady is False")
        assert watch.interrupt() == 130
    said = watch.errors.read_text()
    assert "takes the right to list and watch events in namespace" in said
    _, said = kvtier(setup.poor, "watch", code=2)
    assert "this takes the right to list and watch them in namespace" in said


# ------------------------------------------------------------------------------------- report

HIDDEN = "hunter2-of-the-hub"


def planted(setup: Setup) -> Needles:
    """Secrets of the tier as the operator makes them, and the same where they do not belong."""
    token, other = new_token(), new_token()
    key = subprocess.run(
        ["openssl", "genpkey", "-algorithm", "RSA"], capture_output=True, text=True, check=True
    ).stdout
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": f"{TIER}-acl", "labels": {"kvtier.dev/tier-name": TIER}},
        "stringData": {"token": token, "users": f"user {other} on", "tls.key": key},
    }
    encoded = base64.b64encode(f"user {other} on".encode()).decode()
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "engine",
            "labels": {"kvtier.dev/tier": TIER},
            "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": json.dumps(
                    {"kind": "Secret", "data": {"a": encoded}}
                ),
                "note": f"copied: {token[5:]}",
            },
        },
        "spec": {
            "containers": [
                {
                    "name": "vllm",
                    "image": "vllm",
                    "args": ["serve", "--api-key", HIDDEN, f"--kv-url=redis://x:{HIDDEN}@r0:6379"],
                    "env": [
                        {"name": "SOMETHING", "value": HIDDEN},
                        {"name": "VLLM_API_KEY", "value": HIDDEN},
                        {"name": "VLLM_LOGGING_LEVEL", "value": "DEBUG"},
                        {"name": "NCCL_NOTE", "value": base64.b64encode(key.encode()).decode()},
                    ],
                }
            ]
        },
    }
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{TIER}-valkey", "labels": {"kvtier.dev/tier-name": TIER}},
        "data": {"valkey.conf": f"maxmemory 1\nrequirepass {HIDDEN}\n# {other}\n", "k": key},
    }
    for each in (secret, pod, config):
        setup.kubectl("apply", "-f", "-", stdin=json.dumps(each))
    setup.event("chat.leak", "ApplyFailed", f"could not write {encoded}: {token}")
    needles = Needles()
    needles.learn([json.loads(setup.kubectl("get", "secret", f"{TIER}-acl", "-o", "json"))])
    assert len(needles.tokens) == 2
    body = "".join(key.splitlines()[1:-1])
    # Each part of the key's body by itself, and what is in it in base64 once more.
    needles.tokens |= {body[at : at + 48] for at in range(0, len(body) - 48, 48)} | {HIDDEN}
    return needles


def members(file: Path) -> dict[str, bytes]:
    found = {}
    with tarfile.open(file) as archive:
        for each in archive:
            content = archive.extractfile(each)
            assert content is not None
            found[each.name.partition("/")[2]] = content.read()
    return found


def test_report_has_what_a_reader_may_see_and_no_secret(setup: Setup, tmp_path: Path) -> None:
    needles = planted(setup)
    everything = setup.kubectl("get", "pods,configmaps,events", "-o", "json").encode()
    assert needles.search(everything), "the search does not find what is there"
    shown, said = kvtier(setup.reader, "report", TIER, cwd=tmp_path)
    (file,) = tmp_path.glob("kvtier-report-*.tar.gz")
    assert shown.startswith(f"{file.name}: ")
    assert file.stat().st_mode & 0o777 == 0o600
    found = members(file)
    assert {
        "README.txt",
        "tier.yaml",
        "status.txt",
        "status.json",
        "plan.txt",
        "events.txt",
        "versions.yaml",
        "objects/engines.yaml",
        "objects/configmaps.yaml",
    } <= found.keys()
    leaked = {name: hit for name, text in found.items() if (hit := needles.search(text))}
    assert leaked == {}
    engines = found["objects/engines.yaml"].decode()
    assert "DEBUG" in engines, "what helps is to stay"
    assert "serve" in engines
    assert b"maxmemory 1" in found["objects/configmaps.yaml"]
    assert b"Warning ApplyFailed: could not write <redacted>: <redacted>" in found["events.txt"]
    assert b"Verdict: " in found["plan.txt"]
    assert json.loads(found["status.json"])["name"] == TIER
    # What this person may not read is named, with the right that it takes.
    readme = found["README.txt"].decode()
    for right in ("list pods in namespace kvtier-system", "list leases in namespace kvtier-system"):
        assert right in readme
        assert right in said
    # Whoever may read pods may read logs; here no kubelet has any.
    assert "secrets" not in readme


def test_report_of_who_may_read_tiers_alone_is_a_report(setup: Setup, tmp_path: Path) -> None:
    file = tmp_path / "few.tar.gz"
    kvtier(setup.poor, "report", TIER, "-o", str(file))
    found = members(file)
    assert {"tier.yaml", "status.txt", "plan.txt"} <= found.keys()
    for right in ("list statefulsets", "list events", "list configmaps"):
        assert f"that takes the right to {right} in namespace {setup.namespace}" in (
            found["README.txt"].decode()
        )


def test_report_never_asks_for_a_secret(setup: Setup, between: FaultProxy, tmp_path: Path) -> None:
    kvtier(between.kubeconfig, "report", TIER, "-o", str(tmp_path / "a.tar.gz"))
    assert any("/pods" in each.path for each in between.seen)
    assert [each.path for each in between.seen if "secrets" in each.path] == []
    assert {each.method for each in between.seen} == {"GET"}


def test_report_into_what_cannot_be_written_is_one_line(setup: Setup, tmp_path: Path) -> None:
    file = tmp_path / "none" / "a.tar.gz"
    _, said = kvtier(setup.poor, "report", TIER, "-o", str(file), code=2)
    assert said.splitlines()[-1] == (
        f"kvtier: {file}: No such file or directory; name a file that can be written"
    )
