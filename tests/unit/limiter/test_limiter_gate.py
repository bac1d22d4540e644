"""One tier's gate: limits, modes, queues, peers."""

import json
from dataclasses import replace
from typing import Any

import pytest

from kvtier.limiter.answer import refusal, retry_after, state_of
from kvtier.limiter.bounds import STALE_SECONDS
from kvtier.limiter.gate import ADMITTED, SHED, WOULD_SHED, Gate
from kvtier.limiter.gates import Gates
from kvtier.limiter.report import BadReport, Report, TierReport, from_json, to_json
from limiter_process import TIER, FixedTiers, view_of

KEY = ("prod", "llama")
PEER = TierReport(
    namespace="prod",
    name="llama",
    demand=0.0,
    offered=0.0,
    queued=0.0,
    mode="Enforce",
    state="Open",
    age=100.0,
    mean_prompt=1000.0,
)


def gate_of(**told: Any) -> Gate:
    gate = Gate(namespace="prod", name="llama", now=0.0, denied=lambda: None)
    gate.renew(view_of(TIER, told, now=0.0), 0.0)
    return gate


def offer(gate: Gate, *, rate: float, size: float, begin: float, end: float) -> None:
    """Evenly spaced requests, and five looks a second."""
    now, look = begin, begin
    while now < end:
        if now >= look:
            if gate.view is not None:
                gate.view = replace(gate.view, known_at=now)
            gate.look(now)
            look += 0.2
        gate.decide(size, now)
        now += size / rate


def test_without_a_limit_all_is_admitted() -> None:
    gate = gate_of()
    offer(gate, rate=1e6, size=1000.0, begin=0.0, end=2.0)
    assert gate.passed[SHED].requests == 0
    assert gate.passed[ADMITTED].tokens == pytest.approx(2e6, rel=0.01)


def test_enforce_admits_the_limit() -> None:
    gate = gate_of(limit=50_000.0)
    offer(gate, rate=200_000.0, size=500.0, begin=0.0, end=10.0)
    assert gate.passed[ADMITTED].tokens == pytest.approx(500_000, rel=0.02)
    assert gate.passed[SHED].tokens == pytest.approx(1_500_000, rel=0.02)


def test_observe_admits_all_and_counts_what_enforce_would_have_shed() -> None:
    enforce, observe = gate_of(limit=50_000.0), gate_of(limit=50_000.0, mode="Observe")
    for gate in (enforce, observe):
        offer(gate, rate=200_000.0, size=500.0, begin=0.0, end=10.0)
    assert observe.passed[SHED].requests == 0
    assert observe.passed[WOULD_SHED].requests == enforce.passed[SHED].requests > 0
    assert observe.passed[ADMITTED].tokens == enforce.passed[ADMITTED].tokens
    assert observe.decide(500.0, 10.0) == 0.0


def test_more_tokens_in_the_queue_than_may_wait_are_shed_until_they_are_drained() -> None:
    gate = gate_of(limit=10_000.0, max_queued=5000.0, queued_seen=8000.0)
    gate.renew(gate.view, 1.0)
    assert gate.decide(100.0, 1.0) == pytest.approx(0.3)
    assert gate.decide(100.0, 1.29) > 0
    assert gate.decide(100.0, 1.31) == 0.0


def test_what_was_let_in_before_anybody_knew_waits_when_the_limit_begins() -> None:
    gate = gate_of()
    offer(gate, rate=15_000.0, size=500.0, begin=0.0, end=5.0)
    limited = {"limit": 3_000.0, "max_queued": 8_000.0}
    # What engines told last is of before.
    gate.renew(view_of(TIER, {**limited, "queued_seen": 500.0}, now=5.0), 5.0)
    assert gate.queued(5.0) == pytest.approx(24_000, rel=0.05)
    offer(gate, rate=15_000.0, size=500.0, begin=5.0, end=6.0)
    assert gate.passed[SHED].tokens == pytest.approx(15_000, rel=0.05)
    gate.renew(view_of(TIER, {**limited, "queued_seen": 500.0}, now=6.0), 6.0)
    assert gate.queued(6.0) == pytest.approx(500)


def test_what_waits_at_other_replicas_counts_too() -> None:
    gate = gate_of(limit=10_000.0, max_queued=5000.0)
    gate.hear([replace(PEER, queued=6000.0)], 0.0)
    assert gate.decide(100.0, 1.0) > 0
    gate.hear([replace(PEER, queued=4000.0)], 1.0)
    assert gate.decide(100.0, 1.0) == 0.0


def test_what_has_no_prompt_passes_while_all_else_is_shed() -> None:
    gate = gate_of(limit=1000.0)
    assert gate.decide(500.0, 0.0) > 0
    assert gate.decide(0.0, 0.0) == 0.0


def test_a_view_that_nobody_renews_limits_nothing() -> None:
    gate = gate_of(limit=1000.0)
    gate.look(STALE_SECONDS - 1)
    assert gate.bucket is not None
    gate.look(STALE_SECONDS + 1)
    assert gate.bucket is None
    assert gate.decide(1e6, STALE_SECONDS + 1) == 0.0


@pytest.mark.parametrize("limit", [0.0, -1.0])
def test_a_limit_of_nothing_is_no_limit(limit: float) -> None:
    assert gate_of(limit=limit).decide(500.0, 0.0) == 0.0


def test_a_fresh_replica_takes_the_limit_of_a_storm_that_began_before_it() -> None:
    gate = gate_of()
    storm = replace(PEER, state="Storm", limit=30_000.0, age=100.0)
    gate.hear([storm, None], 1.0)
    assert gate.bucket is not None
    assert gate.bounds.limit == 30_000.0
    assert gate.decide(500.0, 1.0) > 0
    assert state_of(gate, now=1.0)["state"] == "Storm"
    # And does not hand it on: two that heard it of each other would never open again.
    assert gate.report(1.0).limit is None
    gate.hear([replace(storm, state="Open", limit=None), None], 2.0)
    assert gate.decide(500.0, 2.0) == 0.0


def test_a_replica_that_saw_no_storm_itself_does_not_believe_one_that_began_later() -> None:
    gate = gate_of()
    gate.view = view_of(TIER, {}, now=50.0)
    gate.hear([replace(PEER, state="Storm", limit=30_000.0, age=10.0)], 50.0)
    assert gate.decide(500.0, 50.0) == 0.0


def test_a_replica_that_knows_nothing_takes_what_peers_know_of_a_tier() -> None:
    gates = Gates(FixedTiers(), clock=lambda: 5.0)
    assert gates.find(*KEY) is None
    assert gates.unknown == 1
    storm = replace(PEER, state="Storm", limit=30_000.0)
    gates.hear([Report(replica="b", run="1", tiers={KEY: storm}), None])
    gate = gates.find(*KEY)
    assert gate is not None
    assert gate.decide(500.0, 5.0) > 0
    gates.hear([])
    gates.look()
    assert gates.find(*KEY) is None


def test_demand_of_all_replicas_is_told_to_the_machine() -> None:
    tiers = FixedTiers()
    tiers.tell({TIER: {}}, now=0.0)
    now = [0.0]
    gates = Gates(tiers, clock=lambda: now[0])
    gates.hear([Report(replica="b", run="1", tiers={KEY: replace(PEER, offered=5000.0)})])
    gate = gates.find(*KEY)
    assert gate is not None
    gate.decide(400.0, 0.0)
    now[0] = 0.2
    gates.look()
    assert tiers.offered[KEY] == pytest.approx(5000.0 + gate.meter.offered)
    assert gate.meter.offered > 300.0


def test_a_denial_is_told_at_once_where_demand_has_risen_and_else_with_the_next_exchange() -> None:
    tiers = FixedTiers()
    tiers.tell({TIER: {"limit": 1000.0}}, now=0.0)
    now = [0.0]
    gates = Gates(tiers, clock=lambda: now[0])
    told: list[int] = []
    gates.denied = lambda: told.append(1)
    gate = gates.find(*KEY)
    assert gate is not None
    assert gate.decide(500.0, 0.0) > 0
    # One request is no rate.
    assert len(told) == 0
    for _ in range(40):
        gate.decide(500.0, 0.0)
    assert len(told) == 1
    now[0] = 0.2
    gates.look()
    gates.are_told()
    for number in range(40):
        gate.decide(500.0, 0.2 + number / 200)
    assert len(told) == 1
    for _ in range(40):
        gate.decide(500.0, 0.4)
    assert len(told) == 2


def test_any_number_of_unknown_tiers_leaves_nothing_behind() -> None:
    gates = Gates(FixedTiers(), clock=lambda: 0.0)
    for number in range(1000):
        assert gates.find("prod", f"tier-{number}") is None
    assert gates.all() == []


def test_a_report_is_read_as_it_was_written() -> None:
    document = json.loads(json.dumps(to_json(replica="a", run="1", tiers=[PEER])))
    assert from_json(document) == Report(replica="a", run="1", tiers={KEY: PEER})
    document["tiers"][0]["later"] = 1
    assert from_json(document).tiers[KEY] == PEER


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {"replica": "a", "run": "1"},
        {"replica": "a", "tiers": []},
        {"replica": "a", "run": "1", "tiers": [3]},
        *(
            to_json(replica="a", run="1", tiers=[replace(PEER, **{field: value})])
            for field, value in [
                ("demand", -1.0),
                ("demand", float("nan")),
                ("demand", float("inf")),
                ("demand", None),
                ("demand", True),
                ("queued", "7"),
                ("limit", "7"),
                ("name", 7),
            ]
        ),
    ],
)
def test_what_is_no_report_is_one_line(document: object) -> None:
    with pytest.raises(BadReport) as refused:
        from_json(document)
    assert len(str(refused.value).splitlines()) == 1


def test_retry_after_spreads_those_who_were_shed() -> None:
    seconds = [
        retry_after(wait=0.4, offered=5000.0, rate=1000.0, random=lambda part=part: part / 100)
        for part in range(100)
    ]
    assert min(seconds) == 1
    assert max(seconds) == 6
    assert retry_after(wait=0.0, offered=0.0, rate=1.0, random=lambda: 0.0) == 1
    assert retry_after(wait=1e9, offered=1e9, rate=1.0, random=lambda: 1.0) == 30
    assert retry_after(wait=0.0, offered=1.0, rate=0.0, random=lambda: 1.0) == 15


def test_a_refusal_is_what_clients_of_the_openai_api_read() -> None:
    error = json.loads(refusal(7))["error"]
    assert error["code"] == "kvtier_storm"
    assert "7 s" in error["message"]
