"""``kvtier probe`` against an API server in memory, with an operator that is played."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from command_line import kvtier, one_line

from kvtier.cli import live, probe
from kvtier.cluster.fake import FakeCluster
from kvtier.cluster.protocol import EVENT, JOB, LEASE, POD, TIER, Forbidden, Unavailable
from kvtier.plan.probing import REQUESTED

Body = dict[str, Any]
Played = Callable[[Body], None]
NOW = datetime.now(UTC)


def rfc(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


OLD = rfc(NOW - timedelta(hours=7))
MEASURED = {
    "bytesPerSecond": 3200000000,
    "roundTripSeconds": 0.0002,
    "evidence": "Probed",
    "at": OLD,
    "ratio": 1.95,
    "node": "node-1",
}


def condition(name: str, status: str, message: str = "") -> Body:
    return {"type": name, "status": status, "reason": "Told", "message": message}


def pod(name: str, *, ready: bool = True, since: str = OLD) -> Body:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "serving",
            "labels": {"kvtier.dev/tier": "chat"},
        },
        "spec": {"nodeName": "node-1", "containers": [{"name": "engine"}]},
        "status": {
            "phase": "Running",
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True" if ready else "False",
                    "lastTransitionTime": since,
                }
            ],
        },
    }


def failed(count: int, message: str = "The probe has no figure from node-1: rank 0: away.") -> Body:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "chat.1", "namespace": "serving"},
        "involvedObject": {"kind": "KVCacheTier", "name": "chat", "namespace": "serving"},
        "reason": "ProbeFailed",
        "type": "Warning",
        "message": message,
        "count": count,
    }


class Operator:
    """A cluster with a tier; ``answer`` is done when somebody asks for a probe."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.asked: list[str] = []
        self.answer: Played = lambda _: None
        made = self.cluster.seed(
            {
                "apiVersion": "kvtier.dev/v1alpha1",
                "kind": "KVCacheTier",
                "metadata": {"name": "chat", "namespace": "serving"},
                "spec": {
                    "model": {"name": "org/model", "kvCacheDtype": "bfloat16"},
                    "pool": {"ranks": 1, "striping": "Hash"},
                },
                "status": {
                    "ranks": "1/1",
                    "verdict": "Pays",
                    "conditions": [condition("Ready", "True")],
                    "rankStates": [{"rank": 0, "ready": True, "node": "node-1"}],
                    "measured": MEASURED,
                },
            }
        )
        self.edit(status={"observedGeneration": made["metadata"].get("generation")})
        self.cluster.seed(pod("engine-0"))
        self.cluster.seed(
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {
                    "name": "kvtier",
                    "namespace": "kvtier-system",
                    "labels": {"app.kubernetes.io/name": "kvtier"},
                },
                "spec": {
                    "holderIdentity": "kvtier-0_x",
                    "renewTime": rfc(NOW + timedelta(hours=1)),
                },
            }
        )
        self.cluster.watch(self._changed)

    def edit(self, **patch: Any) -> None:
        self.cluster.edit(TIER, "serving", "chat", patch, manager="kvtier")

    def measure(self, at: str | None = None) -> None:
        at = at or rfc(datetime.now(UTC) + timedelta(seconds=5))
        self.edit(status={"measured": MEASURED | {"at": at}})

    def fail(self) -> None:
        self.cluster.seed(failed(1))

    def begin(self) -> None:
        self.cluster.seed(
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {
                    "name": "chat-probe",
                    "namespace": "serving",
                    "annotations": {"kvtier.dev/probe-node": "node-1"},
                },
                "spec": {},
            }
        )

    def _changed(self, _: str, body: Body) -> None:
        asked = body["metadata"].get("annotations", {}).get(REQUESTED)
        if body["kind"] == "KVCacheTier" and asked and asked not in self.asked:
            self.asked.append(asked)
            self.answer(body)


@pytest.fixture
def operator(monkeypatch: pytest.MonkeyPatch) -> Operator:
    played = Operator()

    @asynccontextmanager
    async def connect(**_: Any) -> AsyncIterator[FakeCluster]:
        yield played.cluster

    monkeypatch.setattr(live, "connect", connect)
    monkeypatch.setattr(live, "default_namespace", lambda **_: "serving")
    monkeypatch.setattr(probe, "POLL", 0.01)
    monkeypatch.setattr(probe, "SETTLED", 0.02)
    return played


def asked(operator: Operator, *arguments: str) -> tuple[int, str, list[str]]:
    done = kvtier("probe", "chat", *arguments)
    lines = done.stderr.decode().splitlines()
    assert all(line.startswith("kvtier: ") for line in lines), lines
    return done.returncode, done.stdout.decode(), [line[len("kvtier: ") :] for line in lines]


def test_a_new_figure_ends_the_wait_with_the_screen_of_status(operator: Operator) -> None:
    operator.answer = lambda _: operator.measure()
    code, shown, said = asked(operator)
    assert code == 0, said
    assert shown == kvtier("status", "chat").stdout.decode()
    assert "a probe from node-1" in shown
    [at] = operator.asked
    assert said == [f"a probe was asked for at {at}; waiting for it"]
    assert NOW - timedelta(seconds=1) <= datetime.fromisoformat(at)


def test_a_figure_of_before_does_not_end_it(operator: Operator) -> None:
    operator.answer = lambda _: operator.edit(status={"ranks": "0/1"})
    code, shown, said = asked(operator, "--timeout", "1s")
    assert (code, shown) == (1, "")
    assert said[-1].startswith("no figure in time, and no Job chat-probe was seen: probes may be")


def test_a_request_is_later_than_the_last_figure_where_this_clock_is_behind(
    operator: Operator,
) -> None:
    ahead = NOW.replace(microsecond=0) + timedelta(hours=1)
    operator.measure(rfc(ahead))
    operator.answer = lambda _: operator.measure(rfc(ahead + timedelta(seconds=20)))
    code, _, _ = asked(operator)
    assert (code, operator.asked) == (0, [rfc(ahead + timedelta(seconds=1))])


def test_a_figure_counts_though_this_clock_is_ahead(operator: Operator) -> None:
    operator.answer = lambda _: operator.measure(rfc(NOW - timedelta(hours=1)))
    assert asked(operator)[0] == 0


def test_a_probe_without_a_figure_is_told_and_exits_1(operator: Operator) -> None:
    operator.answer = lambda _: operator.fail()
    code, shown, said = asked(operator)
    assert code == 1
    assert said[-1] == "The probe has no figure from node-1: rank 0: away."
    assert "Verdict: Pays" in shown


def test_the_same_failure_once_more_is_a_new_one(operator: Operator) -> None:
    operator.fail()
    operator.answer = lambda _: operator.cluster.edit(EVENT, "serving", "chat.1", {"count": 2})
    code, _, said = asked(operator)
    assert (code, said[-1]) == (1, "The probe has no figure from node-1: rank 0: away.")


def test_an_old_failure_does_not_end_the_wait(operator: Operator) -> None:
    operator.fail()
    code, _, said = asked(operator, "--timeout", "1s")
    assert (code, said[-1][:17]) == (1, "no figure in time")


def test_one_node_of_two_without_a_figure_is_told_beside_the_new_one(operator: Operator) -> None:
    def answer(_: Body) -> None:
        operator.measure()
        operator.fail()

    operator.answer = answer
    code, _, said = asked(operator)
    assert (code, said[-1]) == (0, "The probe has no figure from node-1: rank 0: away.")


def test_a_probe_that_runs_already_is_waited_for_before_another_is_asked(
    operator: Operator,
) -> None:
    operator.begin()
    looked = 0

    def ends(request: Any, _: str) -> None:
        nonlocal looked
        looked += request.kind == JOB and request.verb == "get"
        if looked == 6 and operator.cluster.peek(JOB, "serving", "chat-probe"):
            operator.cluster.remove(JOB, "serving", "chat-probe")
            operator.measure(rfc(NOW - timedelta(seconds=2)))

    operator.cluster.faults.append(ends)
    operator.answer = lambda _: operator.measure()
    code, _, said = asked(operator)
    assert code == 0
    assert said[0] == "a probe runs already; another is asked for once it has ended"
    assert len(operator.asked) == 1
    assert looked >= 6


def test_a_job_that_does_not_end_is_named(operator: Operator) -> None:
    operator.answer = lambda _: operator.begin()
    code, _, said = asked(operator, "--timeout", "1s")
    assert code == 1
    assert said[-1].startswith("no figure in time: Job chat-probe measures from node-1")


def test_no_wait_asks_and_is_gone(operator: Operator) -> None:
    code, shown, said = asked(operator, "--no-wait")
    [at] = operator.asked
    assert (code, said) == (0, [])
    assert shown == f"A probe of serving/chat was asked for at {at}.\n"
    document = json.loads(kvtier("probe", "chat", "--no-wait", "-o", "json").stdout)
    assert document == {
        "namespace": "serving",
        "name": "chat",
        "probeRequested": operator.cluster.peek(TIER, "serving", "chat")["metadata"]["annotations"][  # type: ignore[index]
            REQUESTED
        ],
    }


def test_the_document_is_that_of_status(operator: Operator) -> None:
    operator.answer = lambda _: operator.measure()
    code, shown, _ = asked(operator, "-o", "json")
    assert code == 0
    assert json.loads(shown) == json.loads(kvtier("status", "chat", "-o", "json").stdout)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"spec": {"paused": True}}, "paused, and a paused tier is not probed"),
        (
            {"status": {"conditions": [condition("Ready", "False", "rank 0: no place")]}},
            "not Ready, and only a Ready tier is probed: rank 0: no place",
        ),
        ({"status": {"observedGeneration": 77}}, "not Ready, and only a Ready tier is probed"),
    ],
    ids=["paused", "not ready", "another spec"],
)
def test_why_none_can_come_is_one_line_and_asks_for_none(
    operator: Operator, change: Body, line: str
) -> None:
    operator.edit(**change)
    code, shown, said = asked(operator)
    assert (code, shown, operator.asked) == (1, "", [])
    [told] = said
    assert told.startswith(f"KVCacheTier serving/chat: {line}")


@pytest.mark.parametrize("ready", [False, None])
def test_without_a_ready_engine_none_can_come(operator: Operator, ready: bool | None) -> None:
    operator.cluster.remove(POD, "serving", "engine-0")
    if ready is not None:
        operator.cluster.seed(pod("engine-1", ready=ready))
    code, _, [told] = asked(operator)
    assert (code, operator.asked) == (1, [])
    count = 0 if ready is None else 1
    assert f"no Ready engine to measure from among {count} pods with the label" in told


def test_probes_that_seem_to_be_turned_off_are_told_at_once(operator: Operator) -> None:
    operator.edit(status={"measured": None})
    code, _, said = asked(operator, "--timeout", "1s")
    assert code == 1
    assert said[0].startswith("nothing was ever measured, though an engine has been Ready for long")
    operator.cluster.remove(POD, "serving", "engine-0")
    operator.cluster.seed(pod("engine-0", since=rfc(datetime.now(UTC))))
    _, _, said = asked(operator, "--timeout", "1s")
    assert said[0].startswith("a probe was asked for")


def test_rights_that_are_missing_cost_only_what_they_tell(operator: Operator) -> None:
    def forbid(request: Any, _: str) -> Exception | None:
        hidden = request.kind in (POD, JOB, EVENT)
        return Forbidden(status=403, reason="Forbidden", message="no") if hidden else None

    operator.cluster.faults.append(forbid)
    operator.answer = lambda _: operator.measure()
    assert asked(operator)[0] == 0


def test_who_may_not_patch_the_tier_gets_one_line(operator: Operator) -> None:
    operator.cluster.fail(
        Forbidden(status=403, reason="Forbidden", message="bob may not"), verb="merge_patch"
    )
    said = one_line(kvtier("probe", "chat"))
    assert said.startswith("KVCacheTier serving/chat: 403 Forbidden: bob may not; ")


def test_a_server_that_goes_away_meanwhile_is_one_line(operator: Operator) -> None:
    operator.answer = lambda _: operator.cluster.fail(
        Unavailable(status=0, reason="Timeout", message="it did not answer"), kind=TIER
    )
    done = kvtier("probe", "chat")
    assert done.returncode == 2
    assert done.stderr.decode().splitlines()[-1] == (
        "kvtier: it did not answer; check the kubeconfig and its context"
    )


@pytest.mark.parametrize("timeout", ["0s", "2h", "soon"])
def test_a_timeout_out_of_bounds_is_refused(operator: Operator, timeout: str) -> None:
    assert kvtier("probe", "chat", "--timeout", timeout).returncode == 2
    assert operator.asked == []


def test_without_a_controller_nobody_waits_for_a_probe(operator: Operator) -> None:
    lease = {"spec": {"holderIdentity": None}}
    operator.cluster.edit(LEASE, "kvtier-system", "kvtier", lease)
    code, shown, said = asked(operator)
    assert (code, shown, operator.asked) == (1, "", [])
    assert len(said) == 1
    assert said[0] == "No controller runs: Lease kvtier-system/kvtier is held by nobody"


def test_a_controller_that_goes_away_ends_the_wait(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "LOOK", 0.1)
    lease = {"spec": {"holderIdentity": None}}
    operator.answer = lambda _: operator.cluster.edit(LEASE, "kvtier-system", "kvtier", lease)
    code, _, said = asked(operator, "--timeout", "60s")
    assert (code, len(operator.asked)) == (1, 1)
    assert said[-1] == "No controller runs: Lease kvtier-system/kvtier is held by nobody"
