"""What the storm machine is told of tokens, from readings of engines."""

import pytest

from kvtier.engines.hits import TokenCounters
from kvtier.limiter.tokens import (
    BUSY_WINDOW,
    LEAST_BUSY,
    LEAST_PROMPTS,
    TELLS,
    PoolTokens,
    Reading,
    believed,
)


def reading(at: float, **fields) -> Reading:
    counters = {"source": "s", "prompt": 0.0, "hit": 0.0, "computed": 0.0} | fields
    return Reading(TokenCounters(**counters), at)


def busy(at: float, *, rate: float, prompts: float) -> Reading:
    """An engine that has computed ``rate`` tokens/s since 0, with more waiting."""
    return reading(
        at, prompt=rate * at, computed=rate * at, requests=prompts * at, waiting=3.0, held=3.0
    )


def test_sums_are_of_all_engines_and_over_the_time_between() -> None:
    pool = PoolTokens()
    pool.take({"a": reading(0), "b": reading(0.5)}, alive=["a", "b"], now=1)
    assert pool.fresh() is None
    later = {
        "a": reading(2, prompt=1000, hit=600, computed=400, waiting=3.0, prefill=1.0),
        "b": reading(2.7, prompt=500, hit=100, computed=400, waiting=4.0, prefill=2.0),
    }
    pool.take(later, alive=["a", "b"], now=3)
    found = pool.fresh()
    assert found is not None
    assert (found.prompt, found.hit, found.computed) == (1500, 700, 800)
    assert (found.engines, found.waiting, found.source) == (2, 7, "s")
    assert found.seconds == pytest.approx(2.1)
    # They told no seconds of prefill before.
    assert found.busy is None
    assert pool.fresh() is None


def test_engines_that_were_not_asked_do_as_the_others_do() -> None:
    pool = PoolTokens()
    alive = [str(each) for each in range(40)]
    for at in (0, 2):
        found = {str(each): reading(at, prompt=100 * at, waiting=1.0) for each in range(32)}
        pool.take(found, alive=alive, now=at)
    told = pool.fresh()
    assert told is not None
    assert (told.prompt, told.engines, told.waiting) == (32 * 200 * 40 / 32, 40, 40)


@pytest.mark.parametrize("hung", [100.0, 1e18])
def test_what_waits_for_an_engine_that_hangs_is_no_queue(hung: float) -> None:
    pool = PoolTokens()
    names = [str(each) for each in range(8)]
    found = {name: reading(0, waiting=0.0) for name in names}
    pool.take(found | {"0": reading(0, waiting=hung)}, alive=names, now=0)
    # Less than two in each engine, which is the least that a limit lets wait.
    assert pool.waiting == 2
    found = {name: reading(2, waiting=20.0 + int(name)) for name in names}
    pool.take(found, alive=names, now=2)
    assert pool.waiting == sum(range(20, 28))


def test_looks_between_two_calls_count_together() -> None:
    pool = PoolTokens()
    for at in (0, 2, 4):
        found = reading(at, prompt=100 * at, hit=10 * at, computed=90 * at, prefill=0.5 * at)
        pool.take({"a": found}, alive=["a"], now=at)
    told = pool.fresh()
    assert told is not None
    assert (told.prompt, told.hit, told.seconds, told.busy) == (400, 40, 4, 2)


def test_a_reading_that_is_no_newer_says_nothing_and_is_not_lost() -> None:
    pool = PoolTokens()
    pool.take({"a": reading(10)}, alive=["a"], now=1)
    pool.take({"a": reading(10)}, alive=["a"], now=2)
    assert pool.fresh() is None
    pool.take({"a": reading(20, prompt=50)}, alive=["a"], now=3)
    told = pool.fresh()
    assert told is not None
    assert (told.prompt, told.seconds) == (50, 10)


def test_engines_without_a_tier_s_hits_are_left_out_and_where_all_are_it_is_said() -> None:
    pool = PoolTokens()
    for at in (0.0, 2.0):
        found = {"a": reading(at, prompt=at, source=""), "b": reading(at, prompt=at)}
        pool.take(found, alive=["a", "b"], now=at)
    told = pool.fresh()
    assert told is not None
    assert (told.prompt, told.engines) == (2, 1)
    assert pool.tells(now=2.0 + TELLS)
    assert not pool.tells(now=2.1 + TELLS)
    assert not PoolTokens().tells(now=0.0)


def test_an_engine_that_is_gone_is_forgotten_and_counts_anew_if_it_is_back() -> None:
    pool = PoolTokens()
    pool.take({"a": reading(0)}, alive=["a"], now=0)
    pool.take({}, alive=[], now=1)
    pool.take({"a": reading(2, prompt=1000)}, alive=["a"], now=2)
    assert pool.fresh() is None


def test_r_is_what_busy_engines_compute_in_wall_time_and_the_median_of_them() -> None:
    pool = PoolTokens()
    rates = {"a": 1000.0, "b": 5000.0, "c": 5200.0}
    for at in range(0, 24, 2):
        found = {name: busy(at, rate=rate, prompts=1.0) for name, rate in rates.items()}
        pool.take(found, alive=rates, now=at)
        if at < LEAST_BUSY:
            assert pool.computed_rate() is None
    assert pool.computed_rate() == pytest.approx(5000)


def test_few_long_prompts_say_nothing_of_r() -> None:
    pool = PoolTokens()
    for at in range(0, 60, 2):
        pool.take({"a": busy(at, rate=5000, prompts=0.1)}, alive=["a"], now=at)
    assert LEAST_PROMPTS > 0.1 * 60
    assert pool.computed_rate() is None


def test_an_engine_that_pauses_starts_anew() -> None:
    pool = PoolTokens()
    for at in range(0, 40, 2):
        found = busy(at, rate=5000, prompts=1.0)
        if at == 30:
            idle = reading(at, prompt=5000.0 * at, computed=5000.0 * at, requests=at, held=0.0)
            found = idle
        pool.take({"a": found}, alive=["a"], now=at)
    assert pool.computed_rate() is None


def test_what_was_long_ago_does_not_count_for_r() -> None:
    pool = PoolTokens()
    total = 0.0
    for at in range(0, int(2 * BUSY_WINDOW), 2):
        total += 2 * (8000 if at < BUSY_WINDOW else 2000)
        found = reading(at, prompt=total, computed=total, requests=at, waiting=1.0, held=1.0)
        pool.take({"a": found}, alive=["a"], now=at)
    assert pool.computed_rate() == pytest.approx(2000)


@pytest.mark.parametrize(
    ("seen", "rate"), [(None, 5000), (3750, 5000), (3700, 3700), (6250, 5000), (9000, 5000)]
)
def test_the_smaller_rate_counts_while_two_disagree(seen: float | None, rate: float) -> None:
    assert believed(5000, seen) == rate
