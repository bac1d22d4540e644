"""A storm on paper holds what the issue asks of a real one, and diverges without admission."""

import random
from dataclasses import replace

import pytest

from kvtier.admission.fleet import Fleet, Kind, Request
from kvtier.admission.signals import Sizes
from kvtier.admission.simulate import Plan, quantile, simulate
from kvtier.admission.storm import State
from kvtier.breakeven.queueing import service
from kvtier.cli.simulate_report import Report

ENGINES = 8
TOKENS = 8192
RATE = 5000.0
SIZES = Sizes(
    ranks=8, engine_rate=RATE, utilization=0.8, mean_prompt=TOKENS, target_ttft=2.0, floor=0.1
)


def plan(*, factor: float = 1.0, hit: float = 0.9, busy: float = 0.75, engines: int = 8) -> Plan:
    """Engines that are ``factor`` as fast as declared, ``busy`` of the time while all is well."""
    kind = Kind(tokens=TOKENS, prefix=round(hit * TOKENS), prefill=TOKENS / RATE / factor)
    miss = (kind.tokens - kind.prefix) / kind.tokens
    return Plan(
        kinds=(kind,),
        sizes=SIZES,
        engines=engines,
        requests_per_second=busy * engines / (miss * kind.prefill),
        prefixes=round(75 * engines / (hit * kind.prefill)),
        wipe_at=60.0,
        duration=300.0,
    )


def played(asked: Plan, *, seed: int = 1) -> Report:
    run = simulate(asked, chance=random.Random(seed))
    return Report(name="tier", plan=asked, run=run, seed=seed, step=10.0)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_with_admission_ttft_and_goodput_hold_also_where_the_rate_is_not_as_declared(
    factor: float, seed: int
) -> None:
    report = played(plan(factor=factor), seed=seed)
    assert report.first_shed is not None
    assert report.first_shed - 60 <= 3.1
    assert report.ttft_p99 is not None
    assert report.ttft_p99 < report.ttft_bound
    assert report.goodput is not None
    assert report.goodput >= 0.8
    assert report.opened is not None
    assert report.opened < 300
    assert report.rows[-1].state is State.OPEN
    assert report.rows[-1].shed == 0


def test_without_admission_the_queue_grows_and_outlasts_the_storm() -> None:
    report = played(replace(plan(), admission=False))
    queues = [row.queue_seconds for row in report.rows if 60 < row.at <= 100]
    assert queues == sorted(queues)
    assert report.worst_queue > 60
    assert report.ttft_p99 is not None
    assert report.ttft_p99 > 10 * report.ttft_bound
    last = report.rows[-1]
    assert last.hit_rate == pytest.approx(0.9, abs=0.02)
    assert last.ttft_p50 is not None
    assert last.ttft_p50 > 10


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("busy", [0.5, 0.9])
@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_without_a_wipe_nothing_is_ever_refused(factor: float, busy: float, seed: int) -> None:
    """Whole prompts hit or miss here, so that windows of few prompts differ widely."""
    asked = plan(factor=factor, busy=busy)
    whole = replace(asked.kinds[0], prefix=TOKENS - 1)
    kinds = (*(9 * (whole,)), replace(whole, prefix=0))
    asked = replace(asked, kinds=kinds, prefixes=500, wipe_at=1e9, duration=600.0)
    report = played(asked, seed=seed)
    assert report.run.shed == []
    assert all(look.state is State.OPEN for look in report.run.looks)


def test_in_the_storm_engines_are_as_busy_as_utilization_says() -> None:
    report = played(plan())
    assert report.began is not None
    looks = [look for look in report.run.looks if report.began + 20 <= look.at <= 160]
    computed = sum(look.computed for look in looks) / len(looks)
    assert computed / (ENGINES * RATE) == pytest.approx(0.75, abs=0.08)


def test_one_engine_waits_as_the_formula_of_the_queue_says() -> None:
    """M/D/1 at rho = 0.7 (kvtier.breakeven.queueing): nothing hits and nothing is limited."""
    kind = Kind(tokens=1000, prefix=0, prefill=0.1)
    asked = Plan(
        kinds=(kind,),
        sizes=replace(SIZES, engine_rate=10_000.0, mean_prompt=1000.0),
        engines=1,
        requests_per_second=7.0,
        prefixes=1,
        wipe_at=1e9,
        duration=6000.0,
        admission=False,
    )
    run = simulate(asked, chance=random.Random(7))
    ttfts = [request.ttft for request in run.admitted if request.ttft is not None]
    expected = 0.1 + service([0.1]).wait(7.0)
    assert len(ttfts) == len(run.admitted)
    assert sum(ttfts) / len(ttfts) == pytest.approx(expected, rel=0.05)


def test_the_same_seed_gives_the_same_run_and_another_does_not() -> None:
    first, again, other = (played(plan(), seed=seed).rows for seed in (5, 5, 6))
    assert first == again
    assert first != other


def test_a_prefix_hits_once_it_is_stored_and_not_after_the_wipe() -> None:
    fleet = Fleet(engines=1)
    kind = Kind(tokens=1000, prefix=900, prefill=1.0, held=0.05, fetch=0.3)

    def served(now: float) -> Request:
        request = Request(kind=kind, prefix=7, arrived=now)
        began = fleet.arrive(request, now)
        assert began is not None
        fleet.end(*began)
        return request

    assert (served(0.0).ttft, served(10.0).ttft) == pytest.approx((1.0, 0.1 + 0.05 + 0.3))
    fleet.wipe()
    assert served(20.0).ttft == pytest.approx(1.0)
    counted = fleet.counters
    assert (counted.prompt, counted.hit) == (3000, 900)
    assert counted.computed == pytest.approx(2100)
    assert counted.busy == pytest.approx(2.15)


def test_requests_go_to_the_engine_with_the_fewest_and_wait_in_line() -> None:
    fleet = Fleet(engines=2)
    kind = Kind(tokens=1000, prefix=0, prefill=1.0)
    ends = [fleet.arrive(Request(kind=kind, prefix=0, arrived=0.0), 0.0) for _ in range(4)]
    assert ends == [(0, 1.0), (1, 1.0), None, None]
    assert fleet.waiting == 2
    assert fleet.queue_seconds() == 1.0
    done, following = fleet.end(0, 1.0)
    assert (done.ttft, following) == (1.0, 2.0)
    with pytest.raises(ValueError, match="prefills nothing"):
        Fleet(engines=1).end(0, 0.0)


def test_quantiles_are_values_that_were_there() -> None:
    values = [float(value) for value in range(1, 101)]
    assert (quantile(values, 0.5), quantile(values, 0.99), quantile(values, 0)) == (50, 99, 1)
