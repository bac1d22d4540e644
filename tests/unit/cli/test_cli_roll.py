"""``kvtier roll`` against an API server in memory, with an operator that is played."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from command_line import kvtier, one_line
from status_bodies import condition, lease, tier

from kvtier.cli import live, roll
from kvtier.cluster.fake import FakeCluster
from kvtier.cluster.protocol import LEASE, TIER, Forbidden
from kvtier.plan.planned import ROLL_REQUESTED

Body = dict[str, Any]
KEY = ("serving", "chat")
HELD = "2 of 2 ranks are to restart; 2 limiters are told first, which takes 30 s at most."


class Operator:
    """A cluster with a tier; ``answer`` is done when somebody asks for a roll."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.asked: list[str] = []
        self.answer: Callable[[], None] = lambda: None
        self.cluster.seed(tier(rankStates=self.ranks("2026-01-01T00:00:00Z")))
        held = lease()
        held["metadata"]["labels"] = {"app.kubernetes.io/name": "kvtier"}
        self.cluster.seed({"apiVersion": LEASE.api_version, "kind": LEASE.kind, **held})
        self.cluster.watch(self._changed)

    @staticmethod
    def ranks(started: str) -> list[Body]:
        return [{"rank": rank, "ready": True, "startedAt": started} for rank in (0, 1)]

    def store(self, status: str, reason: str, message: str, **more: Any) -> None:
        told = [condition("StoreReady", status, reason, message)]
        patch = {"status": {"conditions": told, **more}}
        self.cluster.edit(TIER, *KEY, patch, manager="kvtier")

    def rolls(self) -> None:
        started = datetime.now(UTC) + timedelta(seconds=3)
        ranks = self.ranks(started.strftime("%Y-%m-%dT%H:%M:%SZ"))
        self.store("True", "AllRanksReady", "All 2 ranks are ready.", rankStates=ranks)

    def _changed(self, _: str, body: Body) -> None:
        asked = body["metadata"].get("annotations", {}).get(ROLL_REQUESTED)
        if body["kind"] == TIER.kind and asked and asked not in self.asked:
            self.asked.append(asked)
            self.answer()


@pytest.fixture
def operator(monkeypatch: pytest.MonkeyPatch) -> Operator:
    played = Operator()

    @asynccontextmanager
    async def connect(**_: Any) -> AsyncIterator[FakeCluster]:
        yield played.cluster

    monkeypatch.setattr(live, "connect", connect)
    monkeypatch.setattr(live, "default_namespace", lambda **_: "serving")
    monkeypatch.setattr(roll, "POLL", 0.01)
    return played


def asked(*arguments: str) -> tuple[int, str, list[str]]:
    done = kvtier("roll", "chat", *arguments)
    return done.returncode, done.stdout.decode(), done.stderr.decode().splitlines()


def test_it_waits_until_every_rank_has_started_anew(operator: Operator) -> None:
    operator.answer = operator.rolls
    code, shown, said = asked()
    assert code == 0, said
    assert shown == "All ranks of serving/chat have restarted, empty.\n"
    [at] = operator.asked
    assert said == [f"kvtier: a roll was asked for at {at}; waiting for it"]
    assert [each.verb for each in operator.cluster.requests if each.writes] == ["merge_patch"]


def test_it_says_what_the_operator_waits_for_and_that_it_goes_on(operator: Operator) -> None:
    operator.answer = lambda: operator.store("False", "Rolling", HELD)
    code, shown, said = asked("--timeout", "1s")
    assert (code, shown) == (1, "")
    assert said[1:] == [f"kvtier: {HELD}", f"kvtier: not in time; it goes on: {HELD}"]


def test_without_waiting_it_only_asks(operator: Operator) -> None:
    code, shown, said = asked("--no-wait", "-o", "json")
    assert (code, said) == (0, [])
    assert json.loads(shown) == {
        "namespace": "serving",
        "name": "chat",
        "rollRequested": operator.asked[0],
    }


def test_a_paused_tier_is_not_asked(operator: Operator) -> None:
    operator.cluster.edit(TIER, *KEY, {"spec": {"paused": True}})
    code, _, said = asked()
    assert (code, operator.asked) == (1, [])
    assert "set spec.paused to false" in said[0]


def test_without_a_controller_nobody_is_asked(operator: Operator) -> None:
    for each in operator.cluster.all(LEASE):
        metadata = each["metadata"]
        operator.cluster.remove(LEASE, metadata["namespace"], metadata["name"])
    code, _, said = asked()
    assert (code, operator.asked) == (1, [])
    assert "no Lease" in said[0]


def test_without_the_right_to_patch_it_says_which_one(operator: Operator) -> None:
    refusal = Forbidden(status=403, reason="Forbidden", message="no")
    operator.cluster.faults.append(
        lambda request, _: refusal if request.verb == "merge_patch" else None
    )
    done = kvtier("roll", "chat")
    assert done.returncode == 2
    assert "takes the right to patch the tier" in one_line(done)


def test_a_time_that_is_too_long_is_refused(operator: Operator) -> None:
    code, _, said = asked("--timeout", "3h")
    assert code == 2
    assert "3h is not from 1s to 2h" in said[-1]
