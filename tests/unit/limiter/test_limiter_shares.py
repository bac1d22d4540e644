"""How a limit is split, and how demand is measured."""

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvtier.limiter.membership import Peer, counts, is_over, said
from kvtier.limiter.report import Report, TierReport
from kvtier.limiter.shares import FLOOR, Meter, share

DEMANDS = st.lists(st.floats(0.0, 1e6), min_size=1, max_size=8)
LIMITS = st.floats(1.0, 1e6)


def shares(limit: float, demands: list[float]) -> list[float]:
    return [
        share(limit=limit, own=demand, others=[*demands[:index], *demands[index + 1 :]])
        for index, demand in enumerate(demands)
    ]


@given(limit=LIMITS, demands=DEMANDS)
@example(limit=1.0, demands=[0.0, 1.0])
def test_shares_sum_to_the_limit_and_none_is_nothing(limit: float, demands: list[float]) -> None:
    found = shares(limit, demands)
    assert sum(found) == pytest.approx(limit)
    assert min(found) >= FLOOR * limit / len(demands) * (1 - 1e-9)
    assert max(found) <= limit * (1 + 1e-9)


@given(limit=LIMITS, demands=DEMANDS)
def test_whoever_asks_for_less_than_the_limit_allows_gets_it(
    limit: float, demands: list[float]
) -> None:
    if sum(demands) <= (1 - FLOOR) * limit:
        for demand, got in zip(demands, shares(limit, demands), strict=True):
            assert got >= demand * (1 - 1e-9)


@given(limit=LIMITS, part=st.floats(0.0, 1.0))
def test_a_share_does_not_jump_where_demands_come_near_the_limit(limit: float, part: float) -> None:
    full = (1 - FLOOR) * limit
    below, above = (
        shares(limit, [part * total, (1 - part) * total])
        for total in (full * (1 - 1e-9), full * (1 + 1e-9))
    )
    assert below == pytest.approx(above, rel=1e-6)


def test_all_traffic_on_one_of_three_gets_all_but_the_floors() -> None:
    assert share(limit=300.0, own=600.0, others=[0.0, 0.0]) == pytest.approx(
        300 * (1 - FLOOR * 2 / 3)
    )
    assert share(limit=300.0, own=0.0, others=[600.0, 0.0]) == pytest.approx(300 * FLOOR / 3)


@given(limit=LIMITS, own=st.floats(0.0, 1e6), replicas=st.integers(1, 8))
def test_a_partition_lets_in_a_limit_for_each_part_at_most(
    limit: float, own: float, replicas: int
) -> None:
    alone = share(limit=limit, own=own, others=[])
    assert alone == pytest.approx(limit)
    assert alone * replicas <= limit * replicas * (1 + 1e-9)


def measured(meter: Meter, *, rate: float, size: float, begin: float, seconds: float) -> None:
    """Poisson arrivals of requests of ``size`` tokens, looked at five times a second."""
    chance = random.Random(7)
    now, look = begin, begin + 0.2
    while now < begin + seconds:
        now += chance.expovariate(rate / size)
        while look <= now:
            meter.look(look)
            look += 0.2
        meter.add(size)


def test_demand_rises_within_one_look_and_falls_within_three() -> None:
    meter = Meter(now=0.0)
    for _ in range(120):
        meter.add(1.0)
    meter.look(0.2)
    assert 500 <= meter.demand <= 600
    for tick in range(2, 12):
        for _ in range(120):
            meter.add(1.0)
        meter.look(0.2 * tick)
    for tick in range(12, 15):
        meter.look(0.2 * tick)
    assert meter.demand < 0.02 * 600
    assert meter.offered > 0.3 * 600


def test_a_few_large_prompts_are_no_rate() -> None:
    """8 requests/s of 4,000 tokens: windows of 0.2 s have 0 to 5 of them."""
    meter = Meter(now=0.0)
    chance = random.Random(7)
    demands = []
    now, look = 0.0, 0.2
    while now < 60:
        now += chance.expovariate(8.0)
        while look <= now:
            meter.look(look)
            demands.append(meter.demand)
            look += 0.2
        meter.add(4000.0)
    assert sum(demands) / len(demands) < 1.1 * 32_000
    assert sorted(demands)[len(demands) * 95 // 100] < 2 * 32_000
    assert meter.typical == pytest.approx(4000.0)


def test_what_is_offered_is_the_mean_rate() -> None:
    meter = Meter(now=0.0)
    measured(meter, rate=100_000.0, size=500.0, begin=0.0, seconds=20.0)
    assert meter.offered == pytest.approx(100_000, rel=0.15)
    assert meter.demand == pytest.approx(100_000, rel=0.2)


def test_a_clock_that_goes_back_measures_nothing() -> None:
    meter = Meter(now=100.0)
    meter.add(50.0)
    meter.look(90.0)
    assert meter.demand == 0.0
    meter.look(91.0)
    assert 0 < meter.offered <= 50.0


REPORT = Report(replica="a", run="1", tiers={})


@pytest.mark.parametrize(
    ("peer", "expected"),
    [
        (Peer(report=REPORT, heard=9.5), True),
        # Terminating, and answers yet.
        (Peer(report=REPORT, heard=9.5, listed=False), True),
        # Behind a partition: its pod is there.
        (Peer(report=REPORT, heard=2.0), True),
        (Peer(report=REPORT, heard=2.0, listed=False), False),
        # Its process is gone, its pod not yet.
        (Peer(report=REPORT, heard=8.5, refused=8.6), False),
        (Peer(report=REPORT, heard=9.4, refused=9.6), True),
        (Peer(report=REPORT, heard=2.0, refused=9.5), True),
        # New, and not heard yet.
        (Peer(), True),
        (Peer(refused=9.9), False),
        (Peer(report=REPORT, heard=9.9, ours=True), False),
    ],
)
def test_a_silent_replica_has_a_share_for_as_long_as_its_pod_may_admit(
    peer: Peer, expected: bool
) -> None:
    assert counts(peer, now=10.0) is expected
    assert is_over(peer, now=10.0) is (not peer.listed and not expected)


def test_what_a_silent_replica_said_lapses_but_for_its_demand() -> None:
    key = ("prod", "llama")
    tier = TierReport(
        *key,
        demand=5.0,
        offered=5.0,
        queued=90_000.0,
        mode="Enforce",
        state="Storm",
        age=3600.0,
        mean_prompt=700.0,
        limit=10.0,
    )
    peer = Peer(report=Report(replica="a", run="1", tiers={key: tier}), heard=100.0)
    at = {now: said(peer, now=now) for now in (100.5, 120.0, 131.0)}
    found = {now: report.tiers[key] for now, report in at.items() if report is not None}
    assert found[100.5] is tier
    # What waited by its word would refuse all that comes to others for as long as DNS has its pod.
    assert (found[120.0].queued, found[120.0].demand, found[120.0].limit) == (0.0, 5.0, 10.0)
    # The storm began when it began.
    assert 120.0 - found[120.0].age == 100.0 - 3600.0
    assert found[131.0].limit is None
    assert said(Peer(), now=1.0) is None
