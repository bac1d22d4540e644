"""What ``kvtier watch`` says of two looks at a tier, and of alerts."""

import json
import threading
from collections.abc import Callable, Iterator
from copy import deepcopy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from command_line import kvtier, one_line
from status_bodies import condition, tier

from kvtier.cli import alerts
from kvtier.cli.colour import of_line
from kvtier.cli.watch_changes import between, first

Body = dict[str, Any]


def told(change: Callable[[Body], None], before: Body | None = None) -> list[tuple[str, str]]:
    """Severity and text of each line about a change of a tier."""
    was = deepcopy(before or tier())
    now = deepcopy(was)
    change(now)
    return [(line.severity, line.message) for line in between(was, now)]


def test_nothing_that_changed_is_no_line() -> None:
    assert told(lambda body: None) == []


def test_a_write_that_changes_nothing_for_people_is_no_line() -> None:
    def change(body: Body) -> None:
        body["metadata"]["resourceVersion"] = "2"
        body["status"]["conditions"][0]["lastTransitionTime"] = "2026-11-30T20:00:00Z"
        body["status"]["breakEven"]["chunkBytes"] = 1

    assert told(change) == []


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        (
            lambda body: body["spec"].update(paused=True),
            [("Normal", "paused")],
        ),
        (
            lambda body: body["metadata"].update(generation=2),
            [("Normal", "the spec changed (generation 2)")],
        ),
        (
            lambda body: body["metadata"].update(deletionTimestamp="x"),
            [("Warning", "the tier is being deleted")],
        ),
        (
            lambda body: body["metadata"].update(annotations={"kvtier.dev/roll-requested": "T"}),
            [("Normal", "a roll was asked for at T")],
        ),
        (
            lambda body: body["status"]["conditions"].__setitem__(
                1, condition("Ready", "False", "NotReady", "repeats another")
            ),
            [("Warning", "Ready is False (NotReady)")],
        ),
        (
            lambda body: body["status"]["rankStates"][0].update(ready=False),
            [("Warning", "rank 0 is not ready on node-1")],
        ),
        (
            lambda body: body["status"]["rankStates"][1].update(node="node-9"),
            [("Normal", "rank 1 is on node-9")],
        ),
        (
            lambda body: body["status"]["rankStates"].pop(),
            [("Normal", "rank 1 is gone")],
        ),
        (
            lambda body: body["status"].update(verdict="NeverPays"),
            [("Normal", "the verdict is NeverPays, was Pays")],
        ),
        (
            lambda body: body["status"]["measured"].update(at="later", ratio=0.5),
            [("Normal", "the link gives 25.6 Gb/s from node-3, 0.5 x break-even")],
        ),
        (
            lambda body: body["status"]["generations"].append(
                {"id": "ffff", "state": "Contaminated", "cause": "Pod", "message": "pod x"}
            ),
            [("Warning", "generation ffff is Contaminated (Pod): pod x")],
        ),
        (
            lambda body: body["status"].update(
                admission={"state": "Storm", "reason": "RankLost", "zeroHitTokensPerSecond": 6400}
            ),
            [
                (
                    "Warning",
                    "admission is Storm (RankLost): engines take 6,400 tokens/s while nothing hits",
                )
            ],
        ),
        (
            lambda body: body["status"].update(
                findings=[{"severity": "Warning", "reason": "ChunksUneven", "message": "1.8"}]
            ),
            [("Warning", "finding Warning ChunksUneven: 1.8")],
        ),
    ],
)
def test_each_change_is_a_line(
    change: Callable[[Body], None], lines: list[tuple[str, str]]
) -> None:
    assert told(change) == lines


def test_a_rank_that_restarted_and_a_generation_that_went_are_told_of() -> None:
    before = tier()
    before["status"]["rankStates"][0]["startedAt"] = "2026-11-30T20:00:00Z"
    before["status"]["generations"].append({"id": "old", "state": "Fenced"})

    def change(body: Body) -> None:
        body["status"]["rankStates"][0]["startedAt"] = "2026-11-30T21:00:00Z"
        body["status"]["generations"].pop()

    assert told(change, before) == [
        ("Warning", "rank 0 has restarted on node-1, empty"),
        ("Normal", "generation old is gone"),
    ]


def test_how_far_a_store_is_is_told_while_it_is_not_ready_only() -> None:
    before = tier(conditions=[condition("StoreReady", "False", "RanksNotReady", "0 of 2")])

    def change(body: Body) -> None:
        body["status"]["conditions"][0]["message"] = "1 of 2"

    assert told(change, before) == [("Warning", "StoreReady is False (RanksNotReady): 1 of 2")]
    before["status"]["conditions"][0]["status"] = "True"
    assert told(change, before) == []


def test_the_first_look_is_a_line_and_what_is_not_true() -> None:
    body = tier(conditions=[condition("Warm", "False", "Cold", "no hits")])
    assert [line.message for line in first(body)] == [
        "not Ready, 2/2 ranks, verdict Pays",
        "Warm is False (Cold): no hits",
    ]
    body = tier(admission={"state": "Open"})
    body["spec"]["paused"] = True
    assert first(body)[0].message == "Ready, 2/2 ranks, verdict Pays, admission Open, paused"


def test_a_line_names_its_tier_where_there_are_several() -> None:
    line = first(tier())[0]
    assert line.text("12:00:00", named=True).startswith("12:00:00  serving/chat  Ready, ")
    assert line.text("12:00:00", named=False).startswith("12:00:00  Ready, ")
    assert of_line("12:00:00  lost", warns=True) == ("\x1b[2m12:00:00\x1b[0m  \x1b[33mlost\x1b[0m")


# ------------------------------------------------------------------------------------- alerts

STORM = {"alertname": "KVTierStorm", "namespace": "serving", "tier": "chat", "severity": "warning"}
OTHER = STORM | {"tier": "other"}
DOWN = {"alertname": "KVTierOperatorDown", "severity": "critical"}
FOREIGN = {"alertname": "NodeDown"}


def prometheus_answer(*found: tuple[Body, str]) -> Body:
    rows = [
        {"labels": labels, "annotations": {"summary": f"of {labels['alertname']}"}, "state": state}
        for labels, state in found
    ]
    return {"status": "success", "data": {"alerts": rows}}


def alertmanager_answer(*found: tuple[Body, str]) -> list[Body]:
    return [
        {"labels": labels, "annotations": {}, "status": {"state": state}} for labels, state in found
    ]


@pytest.fixture
def server() -> Iterator[tuple[str, list[tuple[int, bytes]]]]:
    """Its URL, and what it answers next; the last answer is given again and again."""
    answers: list[tuple[int, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, body = answers.pop(0) if len(answers) > 1 else answers[0]
            self.send_response(code)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{made.server_port}", answers
    made.shutdown()
    made.server_close()


@pytest.mark.parametrize(
    ("source", "answer"),
    [
        (alerts.prometheus, prometheus_answer((STORM, "firing"), (OTHER, "firing"),
                                              (DOWN, "pending"), (FOREIGN, "firing"))),
        (alerts.alertmanager, alertmanager_answer((STORM, "active"), (OTHER, "active"),
                                                  (DOWN, "suppressed"), (FOREIGN, "active"))),
    ],
    ids=["prometheus", "alertmanager"],
)  # fmt: skip
async def test_alerts_of_the_tier_and_of_the_operator_are_read(
    server: tuple[str, list[tuple[int, bytes]]],
    source: Callable[[str], alerts.Source],
    answer: Any,
) -> None:
    url, answers = server
    answers.append((200, json.dumps(answer).encode()))
    found = await alerts.read(source(url), namespace="serving", tier="chat")
    states = {each.name: each.state for each in found.values()}
    assert states.keys() == {"KVTierStorm", "KVTierOperatorDown"}
    assert states["KVTierStorm"] == "firing"
    everywhere = await alerts.read(source(f"{url}/"), namespace="", tier="")
    assert len(everywhere) == 3


@pytest.mark.parametrize(
    ("code", "body"), [(500, b""), (200, b"<html>"), (404, b"{}")], ids=["500", "html", "404"]
)
async def test_what_is_no_answer_is_one_line(
    server: tuple[str, list[tuple[int, bytes]]], code: int, body: bytes
) -> None:
    url, answers = server
    answers.append((code, body))
    with pytest.raises(alerts.NoAlerts) as refused:
        await alerts.read(alerts.prometheus(url), namespace="", tier="")
    assert str(refused.value).startswith("Prometheus: ")
    assert url in str(refused.value)


async def test_a_password_in_the_url_is_not_shown_again() -> None:
    with pytest.raises(alerts.NoAlerts) as refused:
        await alerts.read(alerts.prometheus("http://me:mine@127.0.0.1:1"), namespace="", tier="")
    assert "Prometheus: http://127.0.0.1:1 cannot be read" in str(refused.value)
    assert "mine" not in str(refused.value)
    said = one_line(kvtier("watch", "--prometheus", "me:mine@prometheus:9090"))
    assert said == "--prometheus: it is no URL; write one such as http://127.0.0.1:9090"


async def test_a_server_that_is_not_there_is_one_line() -> None:
    with pytest.raises(alerts.NoAlerts) as refused:
        await alerts.read(alerts.alertmanager("http://127.0.0.1:1"), namespace="", tier="")
    assert "Alertmanager: http://127.0.0.1:1 cannot be read" in str(refused.value)


def test_alerts_are_told_of_when_they_begin_change_and_end() -> None:
    def known(*found: tuple[Body, str]) -> dict[object, alerts.Alert]:
        parsed = alerts.alerts(prometheus_answer(*found))
        return {(each.name, each.labels): each for each in parsed}

    pending, firing = known((STORM, "pending")), known((STORM, "firing"))
    said = [
        (line.severity, line.message)
        for before, after in (({}, pending), (pending, firing), (firing, firing), (firing, {}))
        for line in alerts.changes(before, after)
    ]
    assert said == [
        ("Warning", "alert KVTierStorm is pending (warning): of KVTierStorm"),
        ("Warning", "alert KVTierStorm is firing (warning): of KVTierStorm"),
        ("Normal", "alert KVTierStorm is over: of KVTierStorm"),
    ]


def test_what_is_no_alert_is_left_out() -> None:
    assert list(alerts.alerts({"data": None})) == []
    assert list(alerts.alerts([{"labels": {}}])) == []


def test_an_address_that_is_none_and_a_name_with_all_are_one_line() -> None:
    line = one_line(kvtier("watch", "--prometheus", "prometheus:9090"))
    assert line.startswith("--prometheus: 'prometheus:9090' is no URL; write one such as http://")
    assert one_line(kvtier("watch", "chat", "-A")) == "-A: and a name too; leave out one of them"
