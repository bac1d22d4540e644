"""Bounds of R from what engines count, held against engines whose R is known."""

from dataclasses import replace
from itertools import accumulate
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtier.engines.exposition import Counters, Kind
from kvtier.engines.rates import Bounds, Work, between, bounds, together

R = 10_000.0
ZERO = Counters(kind=Kind.VLLM, series=1, requests=0, prompt=0, hits=0, computed=0, busy=0.0)


def served(
    arrivals: list[float], *, tokens: float = 8000, shared: int = 1, wall: float = 600.0
) -> Work:
    """An engine of rate R that prefills ``shared`` waiting requests in one step."""
    busy, free, steps = 0.0, 0.0, 0
    waiting = sorted(arrivals)
    while waiting:
        start = max(free, waiting[0])
        batch = [at for at in waiting[:shared] if at <= start]
        free = start + len(batch) * tokens / R
        busy += len(batch) * (free - start)
        steps += 1
        waiting = waiting[len(batch) :]
    count = float(len(arrivals))
    return Work(
        kind=Kind.VLLM,
        wall=max(wall, free),
        requests=count,
        prompt=count * tokens,
        hits=0.0,
        computed=count * tokens,
        busy=busy,
        ends=float(steps),
        generated=count,
    )


def of(work: Work) -> Bounds:
    found = bounds(work)
    assert found is not None
    return found


@pytest.mark.parametrize("gap", [1.0, 3.0, 10.0])
def test_requests_one_by_one_give_the_rate(gap: float) -> None:
    found = of(served([gap * i for i in range(60)]))
    assert found.at_least == pytest.approx(R, rel=0.01)
    assert found.at_most is not None
    assert found.at_most == pytest.approx(R + 60 * 8000 / 600)
    assert found.prompt_tokens == 8000


def test_a_burst_bounds_the_rate_from_below_only() -> None:
    """Eight prompts a step, once a minute: each is counted for all eight."""
    found = of(served([60.0 * (i // 8) for i in range(64)], tokens=1200, shared=8))
    assert found.at_least == pytest.approx(R / 8, rel=0.01)
    assert found.at_most is None


def test_an_engine_that_never_rests_is_known_by_the_clock() -> None:
    work = served([0.0] * 800, tokens=8000, shared=8)
    assert work.wall == pytest.approx(640)
    assert of(work).at_least == pytest.approx(R, rel=0.01)


@settings(deadline=None, max_examples=50)
@given(
    seed=st.integers(0, 2**32),
    rate=st.floats(0.01, 5),
    tokens=st.integers(1024, 32_000),
    shared=st.integers(1, 8),
)
def test_the_lower_bound_is_one_whatever_comes(
    seed: int, rate: float, tokens: int, shared: int
) -> None:
    arrivals = at_random(seed, rate, count=80)
    found = bounds(served(arrivals, tokens=tokens, shared=shared, wall=arrivals[-1]))
    if found is not None:
        assert found.at_least <= R * 1.000001


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 2**32), rate=st.floats(0.01, 5))
def test_one_by_one_the_rate_is_within_the_bounds(seed: int, rate: float) -> None:
    arrivals = at_random(seed, rate, count=100)
    found = of(served(arrivals, wall=arrivals[-1]))
    assert found.at_most is not None
    assert found.at_least <= R * 1.000001 <= found.at_most * 1.00001


def at_random(seed: int, rate: float, *, count: int) -> list[float]:
    source = Random(seed)
    return list(accumulate(source.expovariate(rate) for _ in range(count)))


def test_hits_leave_no_upper_bound() -> None:
    """A connector may load in those seconds."""
    work = served([3.0 * i for i in range(60)])
    some = replace(work, hits=0.05 * work.prompt, computed=0.95 * work.prompt)
    many = replace(work, hits=0.2 * work.prompt, computed=0.8 * work.prompt)
    assert of(some).at_most is not None
    assert of(many).at_most is None
    assert of(many).at_least == pytest.approx(0.8 * R)


def test_an_engine_that_decodes_has_no_upper_bound() -> None:
    work = served([3.0 * i for i in range(60)])
    assert of(replace(work, generated=100 * 60.0, ends=100 * 60.0)).at_most is None


@pytest.mark.parametrize(
    "change",
    [
        {"requests": 49.0},
        {"prompt": 60 * 1000.0},
        {"busy": 9.0},
        {"wall": 5.0},
        {"computed": 0.0},
        {"computed": 1e15},
    ],
)
def test_too_little_says_nothing(change: dict[str, float]) -> None:
    work = served([3.0 * i for i in range(60)])
    assert bounds(work) is not None
    assert bounds(replace(work, **change)) is None


def test_without_seconds_only_the_clock_is_left() -> None:
    work = replace(served([3.0 * i for i in range(60)]), busy=None)
    assert of(work) == Bounds(at_least=800.0, at_most=None, prompt_tokens=8000)


def test_seconds_of_the_gpu_are_the_rate() -> None:
    """Nothing overlaps in them, whatever the clock says."""
    work = replace(served([3.0 * i for i in range(60)]), kind=Kind.SGLANG, ends=0.0, generated=0.0)
    assert of(work).at_least == of(work).at_most == pytest.approx(R)
    many = replace(work, hits=work.computed)
    assert of(many).at_most is None


def grown(**more: float) -> Counters:
    counts = {"requests": 60.0, "prompt": 480_000.0, "computed": 480_000.0, "busy": 48.0}
    counts |= {"ends": 60.0, "generated": 60.0} | more
    return replace(ZERO, **counts)  # type: ignore[arg-type]


def test_two_readings_are_what_was_done_between_them() -> None:
    work = between(ZERO, grown(), seconds=60.0)
    assert work is not None
    assert (work.wall, work.computed, work.busy, work.requests) == (60.0, 480_000.0, 48.0, 60.0)


@pytest.mark.parametrize("name", ["requests", "prompt", "computed", "busy", "ends"])
def test_a_counter_that_shrank_belongs_to_another_process(name: str) -> None:
    before = replace(ZERO, **{name: 1e9})
    assert between(before, grown(), seconds=60.0) is None


@pytest.mark.parametrize(
    "change", [{"started": 5.0}, {"series": 2}, {"kind": Kind.SGLANG}], ids=lambda each: str(each)
)
def test_another_process_is_seen_though_it_counted_more(change: dict[str, object]) -> None:
    assert between(ZERO, replace(grown(), **change), seconds=60.0) is None  # type: ignore[arg-type]


def test_data_parallel_ranks_are_engines_of_their_own() -> None:
    one = between(ZERO, grown(), seconds=60.0)
    four = between(
        replace(ZERO, series=4),
        replace(
            grown(
                requests=240.0,
                prompt=1_920_000.0,
                computed=1_920_000.0,
                busy=192.0,
                ends=240.0,
                generated=240.0,
            ),
            series=4,
        ),
        seconds=60.0,
    )
    assert one is not None
    assert four is not None
    assert of(one) == of(four)


def test_engines_are_put_together_by_tokens() -> None:
    """A quick one of 10,000 tokens/s that did nine tenths of the work, and one of 1,000."""
    quick = served([1.0 * i for i in range(90)], wall=100.0)
    slow = replace(served([9.0 * i for i in range(10)], wall=100.0), busy=80.0)
    whole = together([quick, slow])
    assert whole is not None
    assert whole.computed / (whole.busy or 0) == pytest.approx(100 * 8000 / (72 + 80))
    assert together([]) is None
    assert together([quick, replace(slow, kind=Kind.SGLANG)]) is None
    no_seconds = together([quick, replace(slow, busy=None)])
    assert no_seconds is not None
    assert no_seconds.busy is None
