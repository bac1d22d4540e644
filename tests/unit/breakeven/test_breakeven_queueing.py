"""Queues: the formula against a simulation of every request, and the paper's figures."""

import math
import random
from collections.abc import Sequence

import pytest

from kvtier.breakeven.queueing import Duplex, Service, gpu_seconds, service, threshold_rate

REQUESTS = 60_000


def simulated(stages: Sequence[Sequence[float]], *, rate: float, seed: int = 1) -> float:
    """Mean seconds in the system of requests that pass single servers one after the other.

    ``stages`` has, for each server, equally likely service times. Every request is followed: it
    starts when it has come and the one before it is done.
    """
    dice = random.Random(seed)
    arrival = total = 0.0
    free = [0.0] * len(stages)
    for _ in range(REQUESTS):
        arrival += dice.expovariate(rate)
        at = arrival
        for index, times in enumerate(stages):
            free[index] = max(at, free[index]) + dice.choice(times)
            at = free[index]
        total += at - arrival
    return total / REQUESTS


@pytest.mark.parametrize("times", [[0.3], [0.1, 0.5], [0.02, 0.02, 0.02, 1.2]])
@pytest.mark.parametrize("rho", [0.3, 0.7])
def test_the_wait_is_that_of_a_simulated_queue(times: list[float], rho: float) -> None:
    known = service(times)
    rate = rho / known.mean
    assert known.utilisation(rate) == pytest.approx(rho)
    expected = simulated([times], rate=rate)
    assert known.mean + known.wait(rate) == pytest.approx(expected, rel=0.06)


def test_the_busier_way_of_a_link_decides_how_full_it_is() -> None:
    reads, writes = service([0.1, 0.3]), service([0.5])
    for link in (Duplex(read=reads, written=writes), Duplex(read=writes, written=reads)):
        assert link.utilisation(1) == 0.5
        assert link.limit == 2
        assert link.utilisation(link.limit) == 1
    nothing = service([0.0])
    assert Duplex(read=nothing, written=nothing).limit == math.inf


def test_a_queue_at_its_limit_grows_without_end() -> None:
    half = service([0.5])
    assert half.wait(0) == 0
    assert half.wait(1.999) > 100
    assert half.wait(2) == half.wait(3) == math.inf


@pytest.mark.parametrize(
    ("local", "link", "gpu", "fixed"),
    [
        # arXiv 2610.21500, 16k tokens: 0.314 s to recompute; 74 ms of link, and a T0 of 0.33 s.
        ([16384 / 52200], [16384 * 48400 / 10.76e9], [0.08], 0.25),
        # Prompts of two lengths, half of each a hit, on a link of 0.7 B*.
        ([0.2, 1.0], [0.143, 0.714], [0.11, 0.51], 0.05),
    ],
)
def test_the_threshold_is_where_two_simulated_fleets_are_equally_fast(
    local: list[float], link: list[float], gpu: list[float], fixed: float
) -> None:
    threshold = threshold_rate(service(local), stages=(service(link), service(gpu)), fixed=fixed)
    assert threshold is not None
    for factor, tier_is_faster in ((0.7, False), (1.25, True)):
        rate = factor * threshold
        assert rate < 1 / service(local).mean
        tier = fixed + simulated([link, gpu], rate=rate)
        assert (tier < simulated([local], rate=rate)) is tier_is_faster


def test_the_threshold_solves_its_equation() -> None:
    local, link, gpu = service([0.2, 1.0]), service([0.3, 0.5]), service([0.1, 0.4])
    threshold = threshold_rate(local, stages=(link, gpu), fixed=0.05)
    assert threshold is not None
    hit = 0.05 + sum(stage.mean + stage.wait(threshold) for stage in (link, gpu))
    assert hit == pytest.approx(local.mean + local.wait(threshold))


def test_a_hit_that_is_faster_on_an_idle_engine_needs_no_load() -> None:
    assert threshold_rate(service([1.0]), stages=(service([0.2]),), fixed=0.1) == 0


def test_a_hit_that_falls_behind_before_it_wins_has_its_threshold_after_that() -> None:
    """Ahead by 10 ms on an idle engine, but two queues grow faster than one."""
    local, gpu, link = service([1.0]), service([0.9]), service([0.94])
    threshold = threshold_rate(local, stages=(gpu,), queues=(link,), fixed=0.09)
    assert threshold is not None

    def ahead(rate: float) -> float:
        hit = 0.09 + gpu.mean + gpu.wait(rate) + link.wait(rate)
        return local.mean + local.wait(rate) - hit

    assert ahead(0) > 0 > ahead(0.5 * threshold)
    assert ahead(threshold) == pytest.approx(0, abs=1e-6)
    assert ahead(1.01 * threshold) > 0


def test_a_queue_as_slow_as_the_prefill_has_no_threshold() -> None:
    local = service([1.0])
    for mean, some in ((0.99, True), (1.0, False)):
        queues = (service([mean]),)
        found = threshold_rate(local, stages=(service([0.5]),), queues=queues, fixed=0.6)
        assert (found is not None) is some


def test_what_a_hit_does_not_wait_for_only_bounds_the_rate() -> None:
    local, stages = service([1.0]), (service([0.5]),)
    free = threshold_rate(local, stages=stages, fixed=0.6)
    assert free is not None
    for time, found in ((0.99 / free, free), (1.01 / free, None)):
        bounds = (service([time]),)
        assert threshold_rate(local, stages=stages, bounds=bounds, fixed=0.6) == found


@pytest.mark.parametrize("stage", [1.0, 1.5])
def test_a_stage_as_slow_as_the_prefill_adds_no_capacity(stage: float) -> None:
    assert threshold_rate(service([1.0]), stages=(service([stage]),), fixed=0.1) is None


@pytest.mark.parametrize("time", [0.1, 0.3, 1 / 3, 0.7, 1.1, 16384 / 52200])
def test_a_hit_that_needs_the_link_for_exactly_as_long_adds_none_either(time: float) -> None:
    assert threshold_rate(service([time]), stages=(service([time]),), fixed=1e-9) is None


def test_an_evener_stage_with_a_lower_limit_has_no_threshold() -> None:
    """At most rates it waits less than prefills of two lengths do, but is full before they are."""
    local, stage = service([0.0, 2.0]), service([1.001])
    assert stage.mean + stage.wait(0.9) + 0.01 < local.mean + local.wait(0.9)
    assert threshold_rate(local, stages=(stage,), fixed=0.01) is None


def test_the_threshold_is_close_to_the_limit_for_a_hit_that_takes_for_ever() -> None:
    threshold = threshold_rate(service([1.0]), stages=(service([0.5]),), fixed=1e6)
    assert threshold is not None
    assert 0.999 < threshold < 1
    assert threshold_rate(service([1.0]), stages=(service([0.5]),), fixed=1e300) is None


def test_times_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="times"):
        service([])
    with pytest.raises(ValueError, match="time "):
        service([1.0, -1.0])
    with pytest.raises(ValueError, match="hit_rate"):
        gpu_seconds(hit_rate=1.1, recompute=1, held=0)
    with pytest.raises(ValueError, match="rate"):
        Service(mean=1, square=1).wait(-1)
    with pytest.raises(ValueError, match="fixed"):
        threshold_rate(service([1.0]), stages=(), fixed=-1)


def test_a_synchronous_load_holds_the_gpu_for_the_whole_fetch() -> None:
    """rho of the hit path in arXiv 2610.21500: 1.13 with one Valkey, 0.09 with eight.

    The paper states both rho and these times: a 16k hit took 0.83 to 0.88 s from one Valkey, and
    loads held the GPU throughout; a rank's batch took 70 ms from eight. It does not state the
    request rate of that stream. So the rate is taken from the first, and the second must follow.
    """
    one_valkey = gpu_seconds(hit_rate=1, recompute=16384 / 52200, held=0.88)
    rate = 1.13 / one_valkey
    assert rate == pytest.approx(1.284, abs=1e-3)
    assert service([one_valkey]).utilisation(rate) == pytest.approx(1.13)
    assert service([one_valkey]).wait(rate) == math.inf
    eight = service([0.070])
    assert round(eight.utilisation(rate), 2) == 0.09
    assert eight.wait(rate) < 0.01


def test_misses_are_still_prefilled() -> None:
    assert gpu_seconds(hit_rate=0.75, recompute=2.0, held=0.1) == pytest.approx(0.6)
