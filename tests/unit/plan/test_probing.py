"""When a tier is probed, from which nodes, and what its status keeps of it."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtier.api.load import parse_tier
from kvtier.breakeven.assessment import Evidence, LinkFigures
from kvtier.breakeven.tier import assess
from kvtier.placement.topology import Engine, Level, Node, Topology
from kvtier.plan.observed import RankState
from kvtier.plan.probing import (
    REQUESTED,
    NodeResult,
    Places,
    as_kept,
    due_in,
    is_finished,
    link_of,
    places,
    result_of,
    retry_in,
    slowest,
    why_now,
)
from kvtier.probe.result import ProbeResult, parse
from small_tier import probe_message, spec

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
LEVELS = (
    Level("hostname", "kubernetes.io/hostname"),
    Level("rack", "example.com/rack"),
    Level("zone", "topology.kubernetes.io/zone"),
)


def rfc(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def tier(*, probed: datetime | None = None, node: str = "a1", **metadata: Any) -> Any:
    status: dict[str, Any] = {}
    if probed is not None:
        status["measured"] = {
            "evidence": "Probed",
            "at": rfc(probed),
            "node": node,
            "bytesPerSecond": 1_700_000_000,
            "roundTripSeconds": 0.0001,
        }
    return parse_tier(
        {
            "apiVersion": "kvtier.dev/v1alpha1",
            "kind": "KVCacheTier",
            "metadata": {"name": "demo", "namespace": "serving", **metadata},
            "spec": spec(),
            "status": status,
        }
    )


def topology(engines: dict[str, str], ranks: dict[int, str], *, ready: bool = True) -> Topology:
    """Nodes are named <zone><rack><number>: a1 and a2 of rack a, as far as the first letter."""
    names = {*engines.values(), *ranks.values()}
    nodes = {
        name: Node(
            labels={
                "kubernetes.io/hostname": name,
                "example.com/rack": name[:2],
                "topology.kubernetes.io/zone": name[0],
            }
        )
        for name in names
    }
    found = tuple(
        Engine(name=name, node=node, ready_since=rfc(NOW) if ready else None)
        for name, node in engines.items()
    )
    return Topology(levels=LEVELS, nodes=nodes, engines=found, ranks=ranks)


def test_a_node_is_of_the_class_of_its_farthest_rank() -> None:
    found = places(topology({"e0": "aa1", "e1": "aa2"}, {0: "aa1", 1: "aa1"}))
    assert found.engines == (("aa1", "hostname"), ("aa2", "rack"))
    assert found.ranks == ((0, "aa1"), (1, "aa1"))
    far = places(topology({"e0": "aa1"}, {0: "aa1", 1: "ab1"}))
    assert far.engines == (("aa1", "zone"),)


def test_ranks_that_share_no_level_with_an_engine_are_the_farthest_of_all() -> None:
    assert places(topology({"e0": "aa1"}, {0: "bb1"})).engines == (("aa1", "zone"),)


def test_of_many_nodes_of_a_class_three_are_measured() -> None:
    engines = {f"e{n}": f"aa{n}" for n in range(9)}
    assert [node for node, _ in places(topology(engines, {0: "ab1"})).engines] == [
        "aa0",
        "aa4",
        "aa8",
    ]
    engines |= {f"f{n}": f"ab{n}" for n in range(2, 6)}
    found = places(topology(engines, {0: "ab1"}))
    assert [level for _, level in found.engines] == ["rack"] * 3 + ["zone"] * 3


def test_engines_that_are_not_ready_are_not_measured_from() -> None:
    assert places(topology({"e0": "aa1"}, {0: "aa1"}, ready=False)) == Places(ranks=((0, "aa1"),))


HERE = Places(engines=(("a1", "zone"),), ranks=((0, "a2"),))
THERE = Places(engines=(("a1", "zone"),), ranks=((0, "a3"),))
OLD = (RankState(rank=0, started_at=rfc(NOW - 48 * HOUR)),)


def why(found: Any, **changes: Any) -> str | None:
    known: dict[str, Any] = {
        "wanted": HERE,
        "measured": HERE,
        "states": OLD,
        "began": None,
        "asked": None,
        "now": NOW,
    }
    return why_now(found, **(known | changes))


def test_a_tier_is_probed_first_then_when_it_moves_and_then_by_the_interval() -> None:
    assert why(tier()) == "it was never probed"
    recent = tier(probed=NOW - HOUR)
    assert why(recent) is None
    assert why(recent, measured=THERE) == "engines or ranks moved"
    assert why(tier(probed=NOW - 6 * HOUR)) == "its interval is over"
    assert why(tier(probed=NOW - 6 * HOUR + timedelta(seconds=1))) is None


def test_a_declared_link_is_no_probe() -> None:
    declared = tier()
    declared.status["measured"] = {"evidence": "Declared", "bytesPerSecond": 1, "ratio": 1.0}
    assert why(declared) == "it was never probed"
    assert link_of(declared.status, ranks=2) is None


def test_a_process_that_starts_probes_only_what_has_changed_without_it() -> None:
    recent = tier(probed=NOW - HOUR)
    assert why(recent, measured=None) is None
    started = (RankState(rank=0, started_at=rfc(NOW)),)
    assert why(recent, measured=None, states=started) == "a rank has started since"
    assert why(tier(probed=NOW - HOUR, node="gone"), measured=None) == "engines moved"


@pytest.mark.parametrize(
    ("asked_at", "heard", "is_one"),
    [
        (rfc(NOW), None, True),
        ("2026-11-30T13:00:00+01:00", None, True),
        (rfc(NOW - 2 * HOUR), None, False),
        (rfc(NOW), rfc(NOW), False),
        ("again", "earlier", True),
        ("whenever", None, False),
        ("", None, False),
    ],
)
def test_a_request_counts_once_and_only_if_it_is_newer_than_the_figures(
    asked_at: str, heard: str | None, is_one: bool
) -> None:
    asked = tier(probed=NOW - HOUR, annotations={REQUESTED: asked_at})
    assert (why(asked, asked=heard) == "it was asked for") is is_one


@pytest.mark.parametrize(("after", "is_one"), [(1, True), (0, False), (-1, False)])
def test_what_is_asked_for_while_a_probe_runs_is_not_answered_by_it(
    after: int, is_one: bool
) -> None:
    began = NOW - 2 * HOUR
    asked = tier(probed=NOW - HOUR, annotations={REQUESTED: rfc(began + timedelta(minutes=after))})
    assert (why(asked, began=began) == "it was asked for") is is_one


def test_a_time_that_is_still_to_come_is_measured_again() -> None:
    later = tier(probed=NOW + 80_000 * HOUR)
    assert why(later) == "it was probed in the future"
    assert due_in(later, now=NOW) is None
    assert why(tier(probed=NOW + timedelta(seconds=30))) is None


@settings(deadline=None)
@given(st.text())
def test_no_annotation_makes_it_raise(text: str) -> None:
    why(tier(probed=NOW - HOUR, annotations={REQUESTED: text}))


def test_the_next_look_comes_when_the_interval_is_over() -> None:
    assert due_in(tier(probed=NOW - HOUR), now=NOW) == 5 * 3600
    assert due_in(tier(probed=NOW - 9 * HOUR), now=NOW) == 0
    assert due_in(tier(), now=NOW) is None


def test_tries_become_rarer() -> None:
    assert [retry_in(n) for n in (1, 2, 3, 10, 1000)] == [60, 120, 240, 3600, 3600]


@settings(deadline=None, max_examples=30)
@given(st.floats(1000, 1e13), st.floats(1e-6, 10), st.booleans())
def test_a_process_that_reads_the_status_judges_by_the_same_figures(
    rate: float, round_trip: float, bound: bool
) -> None:
    link = LinkFigures(
        domain="zone",
        bytes_per_second=rate,
        round_trip_seconds=round_trip,
        evidence=Evidence.PROBED,
        at=rfc(NOW),
        node="a1",
        lower_bound=bound,
    )
    kept = as_kept(link, ranks=2)
    assert kept.bytes_per_second == pytest.approx(rate, rel=0.11 if bound else 0.06)
    assert kept.bytes_per_second <= rate or not bound
    shown = assess(tier().spec, link=kept).measured()
    assert shown is not None
    assert link_of({"measured": shown}, ranks=2) == kept
    assert as_kept(kept, ranks=2) == kept


def node_result(node: str, rate: float) -> NodeResult:
    return NodeResult(node, "zone", parse(probe_message(node, rate=rate, at=NOW)))


def test_the_slowest_node_counts_and_one_without_a_figure_does_not() -> None:
    failed = NodeResult("c", "zone", "its pod is gone")
    found = slowest([node_result("a", 2e9), failed, node_result("b", 1e9)])
    assert found is not None
    assert (found.node, found.bytes_per_second) == ("b", 2e9)
    assert slowest([failed]) is None
    assert failed.trouble == "from c: its pod is gone"
    assert node_result("a", 2e9).trouble is None


JOB: dict[str, Any] = {"metadata": {"uid": "job-1"}}


def pod(message: str | None, *, uid: str = "job-1", reason: str = "Completed") -> dict[str, Any]:
    ended = {"exitCode": 1, "reason": reason} | ({"message": message} if message else {})
    return {
        "metadata": {"ownerReferences": [{"uid": uid}]},
        "status": {"containerStatuses": [{"name": "probe", "state": {"terminated": ended}}]},
    }


def test_a_result_is_read_of_the_job_s_own_pod() -> None:
    message = probe_message("a1", rate=1e9, at=NOW)
    found = result_of(JOB, [pod("another's", uid="job-0"), pod(message)], now=NOW)
    assert isinstance(found, ProbeResult)
    assert found.node == "a1"


@pytest.mark.parametrize(
    ("node_s", "taken"),
    [
        (NOW - HOUR, NOW - HOUR),
        (NOW + 80_000 * HOUR, NOW),
        (NOW - 80_000 * HOUR, NOW - 2 * HOUR),
    ],
)
def test_a_node_s_clock_counts_only_between_the_job_s_begin_and_now(
    node_s: datetime, taken: datetime
) -> None:
    job = {"metadata": JOB["metadata"] | {"creationTimestamp": rfc(NOW - 2 * HOUR)}}
    found = result_of(job, [pod(probe_message("a1", rate=1e9, at=node_s))], now=NOW)
    assert isinstance(found, ProbeResult)
    assert found.at == rfc(taken)


@pytest.mark.parametrize(
    ("pods", "conditions", "says"),
    [
        ([pod(None, reason="OOMKilled")], [], "no result (OOMKilled, exit code 1)"),
        ([pod("Traceback", reason="Error")], [], "no JSON: Traceback (Error, exit code 1)"),
        ([{"metadata": {"ownerReferences": [{"uid": "job-1"}]}}], [], "(no status)"),
        (
            [{**pod(None), "status": {"phase": "Pending"}}],
            [],
            "(Pending)",
        ),
        ([], [], "its pod is gone"),
        (
            [],
            [{"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}],
            "no room on the node, or no image",
        ),
        (
            [],
            [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}],
            "its Job failed (BackoffLimitExceeded)",
        ),
    ],
)
def test_a_job_without_a_result_says_why(pods: list[Any], conditions: list[Any], says: str) -> None:
    found = result_of(JOB | {"status": {"conditions": conditions}}, pods, now=NOW)
    assert isinstance(found, str)
    assert says in found


def test_a_job_is_finished_by_its_conditions() -> None:
    def finished(*conditions: dict[str, str]) -> bool:
        return is_finished({"status": {"conditions": list(conditions)}})

    assert finished({"type": "Complete", "status": "True"})
    assert finished({"type": "Failed", "status": "True"})
    assert not finished({"type": "Suspended", "status": "True"})
    assert not finished({"type": "Failed", "status": "False"})
    assert not is_finished({})
