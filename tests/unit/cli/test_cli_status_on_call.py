"""What ``kvtier status`` says to whoever is on call: last changes, the next step, all tiers."""

import io
import json
import os
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from command_line import kvtier, one_line
from status_bodies import condition, lease, tier

from kvtier.api import reasons
from kvtier.cli import terminal
from kvtier.cli.active import Controller
from kvtier.cli.changes import History
from kvtier.cli.colour import coloured
from kvtier.cli.next_steps import next_step, steps
from kvtier.cli.status_generations import Pool
from kvtier.cli.status_report import text

Body = dict[str, Any]
NewConfig = Callable[..., Path]
NOW = datetime.now(UTC)
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def ago(**time: float) -> str:
    return (NOW - timedelta(**time)).strftime("%Y-%m-%dT%H:%M:%SZ")


def event(reason: str, message: str, *, at: str, kind: str = "Normal", count: int = 1) -> Body:
    return {
        "metadata": {"name": f"chat.{reason}", "namespace": "serving"},
        "involvedObject": {"kind": "KVCacheTier", "name": "chat"},
        "type": kind,
        "reason": reason,
        "message": message,
        "count": count,
        "lastTimestamp": at,
    }


EVENTS = [
    event("RankBack", "rank 1 is back", at=ago(minutes=1)),
    event("RankDown", "rank 1 is gone", at=ago(minutes=3), kind="Warning", count=4),
    event("Created", "long ago", at=ago(days=2)),
]


def test_last_changes_are_events_and_conditions_the_newest_first(kubeconfig: NewConfig) -> None:
    body = tier()
    for each, at in zip(body["status"]["conditions"], (9, 2, 1, 3), strict=True):
        each["lastTransitionTime"] = ago(days=at) if each["type"] != "Ready" else ago(minutes=2)
    done = kvtier("status", "chat", "--kubeconfig", kubeconfig(body, events=EVENTS))
    lines = done.stdout.decode().splitlines()
    found = lines[lines.index("Last changes") + 1 : lines.index("Next: Nothing to do.") - 1]
    assert found == [
        "  1 min  Normal RankBack: rank 1 is back",
        "  2 min  Ready is True (TierReady)",
        "  3 min  Warning RankDown x4: rank 1 is gone",
        "    1 d  PlacementAccepted is True (Accepted): No check found an error.",
        "    2 d  Normal Created: long ago",
        "    3 d  EarningItsKeep is True (Pays): A hit is faster. It needs 1.64 GB/s.",
    ]
    shown = kvtier("status", "chat", "-o", "json", "--kubeconfig", kubeconfig(body, events=EVENTS))
    events = json.loads(shown.stdout)["events"]
    assert [each["reason"] for each in events] == ["RankBack", "RankDown", "Created"]
    assert events[1] == {
        "lastTimestamp": EVENTS[1]["lastTimestamp"],
        "type": "Warning",
        "reason": "RankDown",
        "count": 4,
        "message": "rank 1 is gone",
    }


def every_reason() -> set[str]:
    of_conditions = {each for found in reasons.CONDITION_REASONS.values() for each in found}
    return of_conditions | {*reasons.FINDING_REASONS, *reasons.TOPOLOGY_REASONS}


def test_there_is_a_next_step_for_every_reason_and_for_no_other() -> None:
    assert set(steps()) == every_reason()
    for reason, said in steps().items():
        if said is not None:
            assert said.format(tier="t", namespace="n").endswith("."), reason


def step_of(*conditions: Body, active: bool | None = True, **status: Any) -> str:
    body = tier(conditions=list(conditions), **status)
    return next_step(body, active=active).reason


@pytest.mark.parametrize(
    ("conditions", "reason"),
    [
        ([], ""),
        ([condition("Warm", "False", "Cold")], "Cold"),
        (
            [
                condition("Warm", "False", "Storm"),
                condition("PlacementAccepted", "False", "BelowBreakEven"),
            ],
            "Storm",
        ),
        (
            [
                condition("Warm", "False", "Storm"),
                condition("AdmissionEnforced", "False", "NoLimiter"),
            ],
            "NoLimiter",
        ),
        (
            [
                condition("Warm", "False", "Storm"),
                condition("StoreReady", "False", "RanksNotReady"),
            ],
            "RanksNotReady",
        ),
        (
            [
                condition("SpecValid", "False", "InvalidSpec"),
                condition("StoreReady", "False", "RanksNotReady"),
            ],
            "InvalidSpec",
        ),
        # In Observe nobody has to hold a limit.
        ([condition("AdmissionEnforced", "False", "NoLimiter")], ""),
    ],
)
def test_the_next_step_is_of_what_weighs_most(conditions: list[Body], reason: str) -> None:
    assert step_of(*conditions) == reason


def test_errors_come_before_verdicts_and_warnings_after() -> None:
    error = {"severity": "Error", "reason": "HitsDoNotFit", "message": ""}
    warning = {"severity": "Warning", "reason": "ChunksUneven", "message": ""}
    lost = condition("EarningItsKeep", "False", "LinkQueueUnstable")
    assert step_of(lost, findings=[warning, error]) == "HitsDoNotFit"
    assert step_of(lost, findings=[warning]) == "LinkQueueUnstable"
    assert step_of(findings=[warning]) == "ChunksUneven"


def test_an_operator_that_is_away_comes_before_all() -> None:
    assert step_of(condition("SpecValid", "False", "InvalidSpec"), active=False) == (
        "KVTierOperatorDown"
    )


def test_the_link_is_where_the_organisation_serves_its_runbooks(kubeconfig: NewConfig) -> None:
    body = tier()
    body["spec"]["paused"] = True
    with mock.patch.dict(os.environ, KVTIER_RUNBOOKS="https://wiki.example/runbooks.html"):
        done = kvtier("status", "chat", "--kubeconfig", kubeconfig(body))
    assert done.stdout.decode().endswith("\n  https://wiki.example/runbooks.html#paused\n")


def test_all_tiers_of_a_namespace_are_a_line_each_those_not_ready_first(
    kubeconfig: NewConfig,
) -> None:
    bodies = [tier(), tier(), tier()]
    bodies[1]["metadata"]["name"] = "other"
    bodies[1]["status"]["conditions"] = [
        condition("StoreReady", "False", "RanksNotReady"),
        condition("Ready", "False", "NotReady"),
    ]
    bodies[2]["metadata"] = {"name": "third", "namespace": "elsewhere", "generation": 1}
    config = kubeconfig(None, tiers=bodies)
    done = kvtier("status", "--kubeconfig", config)
    assert done.returncode == 1
    assert done.stdout.decode().splitlines() == [
        "TIER   READY  RANKS  VERDICT  RATIO  WHY",
        "other  no     2/2    Pays     1.95   RanksNotReady",
        "chat   yes    2/2    Pays     1.95   -",
    ]
    done = kvtier("status", "-A", "--kubeconfig", config)
    assert [line.split()[:2] for line in done.stdout.decode().splitlines()] == [
        ["NAMESPACE", "TIER"],
        ["serving", "other"],
        ["elsewhere", "third"],
        ["serving", "chat"],
    ]
    found = json.loads(kvtier("status", "-o", "json", "--kubeconfig", config).stdout)
    assert found["kind"] == "List"
    assert [each["name"] for each in found["items"]] == ["other", "chat"]
    assert kvtier("status", "-n", "elsewhere", "--kubeconfig", config).returncode == 0


def test_without_any_tier_it_says_so(kubeconfig: NewConfig) -> None:
    done = kvtier("status", "--kubeconfig", kubeconfig(None, tiers=[]))
    assert (done.returncode, done.stdout) == (0, b"")
    assert b"no KVCacheTier in namespace serving; -A shows" in done.stderr


def test_a_cluster_without_kvtier_and_a_name_with_all_are_one_line(kubeconfig: NewConfig) -> None:
    said = one_line(kvtier("status", "-A", "--kubeconfig", kubeconfig(None)))
    assert said.startswith("this cluster does not know KVCacheTiers; see whether it is the one")
    said = one_line(kvtier("status", "chat", "-A", "--kubeconfig", kubeconfig(tier())))
    assert said == "-A: and a name too; leave out one of them"


def test_a_controller_that_is_away_is_told_beside_the_table(kubeconfig: NewConfig) -> None:
    config = kubeconfig(None, [lease(holder=None)], tiers=[tier()])
    done = kvtier("status", "--kubeconfig", config)
    assert b"is held by nobody. All of this is old\n" in done.stderr
    assert done.stdout.startswith(b"TIER")


def screen(width: int | None) -> str:
    body = tier(findings=[{"severity": "Warning", "reason": "ChunksUneven", "message": "a " * 80}])
    body["status"]["rankStates"][0]["node"] = "node-" + "x" * 40
    return text(
        body,
        now=NOW,
        runs=Controller(True),
        pool=Pool(()),
        history=History(EVENTS),
        width=width,
    )


@pytest.mark.parametrize("width", [50, 70, 120])
def test_a_terminal_s_width_is_kept_to_and_used(width: int) -> None:
    longest = max(map(len, screen(width).splitlines()))
    assert width - 25 < longest <= width
    assert ("…" in screen(width)) == (width < 70)


def test_what_nobody_looks_at_is_cut_nowhere() -> None:
    assert "node-" + "x" * 40 in screen(None)


def test_colours_change_no_letter() -> None:
    for width in (None, 60):
        plain = screen(width)
        assert ESCAPE.sub("", coloured(plain)) == plain
    painted = coloured(screen(None))
    assert "Verdict: \x1b[32mPays\x1b[0m" in painted
    assert "  \x1b[33mWarning\x1b[0m ChunksUneven" in painted
    assert "\x1b[33mWarning\x1b[0m RankDown x4" in painted
    assert "\x1b[32mLive\x1b[0m" in painted


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environment", "shown"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
        ({}, False),
    ],
)
def test_colours_are_for_terminals_that_want_them(environment: Body, shown: bool) -> None:
    with mock.patch.dict(os.environ, environment, clear=True):
        with mock.patch("sys.stdout", Terminal()):
            assert terminal.colours() is shown
        with mock.patch("sys.stdout", io.StringIO()):
            assert terminal.colours() is False


def test_a_bar_is_drawn_on_a_terminal_only_and_leaves_nothing() -> None:
    for stream, drawn in ((Terminal(), True), (io.StringIO(), False)):
        with mock.patch("sys.stderr", stream):
            with terminal.bar("reads", total=4) as bar:
                bar.at(2, "halves")
                terminal.clear()
            text_ = stream.getvalue()
        assert ("[############............]  50 %  0 s  halves" in text_) is drawn
        assert text_ == "" or text_.endswith("\r\x1b[K")


def test_words_of_others_steer_no_terminal(kubeconfig: NewConfig) -> None:
    body = tier()
    body["spec"]["model"]["name"] = "a\x1b[31mRED\x07\u202etxt\x9b2J"
    shown = kvtier("status", "chat", "--kubeconfig", kubeconfig(body)).stdout.decode()
    assert shown.startswith(r"Tier serving/chat: a\x1b[31mRED\x07\u202etxt\x9b2J, KV in")


@pytest.mark.parametrize("command", ["status", "watch", "report", "probe", "roll"])
def test_a_name_that_is_empty_is_refused(command: str) -> None:
    # Such as "$TIER", which nobody has set.
    done = kvtier(command, "--", "")
    assert done.returncode == 2
    assert done.stderr.decode().endswith(": error: argument NAME: it is empty; name a tier\n")


@pytest.mark.parametrize(
    "text", [b"", b"hello", b"[]", b"\xff\xfe\x00", b"a: [", b"a: 1\n---\nb: 2"]
)
def test_a_kubeconfig_that_is_none_is_one_line(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "config"
    file.write_bytes(text)
    said = one_line(kvtier("status", "--kubeconfig", file))
    assert said.startswith(f"kubeconfig {file}: ")
    assert said.endswith("; name a kubeconfig and one of its contexts")


@pytest.mark.parametrize(
    ("mode", "reason"), [("Enforce", "Recovering"), ("Observe", "ChunksUneven")]
)
def test_hits_that_come_back_are_waited_for_where_something_is_limited(
    mode: str, reason: str
) -> None:
    finding = {"reason": "ChunksUneven", "severity": "Warning", "message": "1.8"}
    body = tier(conditions=[condition("Warm", "False", "Recovering")], findings=[finding])
    body["spec"]["admission"] = {"mode": mode}
    assert next_step(body, active=True).reason == reason


def test_a_record_that_is_lost_is_no_spec_that_is_refused(kubeconfig: NewConfig) -> None:
    lost = condition("SpecValid", "False", "RecordUnreadable", "its Secrets are gone")
    pays = condition("EarningItsKeep", "True", "Pays", "old")
    shown = kvtier(
        "status", "chat", "--kubeconfig", kubeconfig(tier(conditions=[pays, lost]))
    ).stdout.decode()
    assert "\nThe tier's record cannot be read: verdict, figures and other findings are of" in shown
    assert "The spec is refused" not in shown
