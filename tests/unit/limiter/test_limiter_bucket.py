"""What passes a bucket, over any sequence of requests and moments."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtier.limiter.bucket import BURST_SECONDS, DEBT_SECONDS, Bucket, Queue

RATES = st.floats(10.0, 1e6)
SIZES = st.floats(1.0, 1e5)
STEPS = st.lists(st.tuples(st.floats(0.0, 5.0), SIZES), min_size=1, max_size=200)


def let_through(bucket: Bucket, steps: list[tuple[float, float]]) -> tuple[float, float]:
    """Tokens that passed, and the seconds that it took."""
    now = passed = 0.0
    for pause, tokens in steps:
        now += pause
        if bucket.passes(now):
            bucket.charge(tokens)
            passed += tokens
    return passed, now


@given(rate=RATES, mean=SIZES, steps=STEPS)
def test_no_more_passes_than_the_rate_the_burst_and_one_request(
    rate: float, mean: float, steps: list[tuple[float, float]]
) -> None:
    bucket = Bucket(rate=rate, prompt=mean, now=0.0)
    largest_charge = bucket.burst + DEBT_SECONDS * rate
    steps = [(pause, min(tokens, largest_charge)) for pause, tokens in steps]
    passed, seconds = let_through(bucket, steps)
    largest = max(tokens for _, tokens in steps)
    assert passed <= rate * seconds + bucket.burst + largest + 1e-6 * passed


@pytest.mark.parametrize("sizes", [[100.0], [1000.0], [8000.0], [100.0, 8000.0]])
def test_under_overload_as_much_passes_as_the_rate_whatever_the_sizes_are(
    sizes: list[float],
) -> None:
    chance = random.Random(1)
    typical = sum(size * size for size in sizes) / sum(sizes)
    asked, now = 0.0, 0.0
    bucket = Bucket(rate=10_000.0, prompt=typical, now=0.0)
    passed = dict.fromkeys(sizes, 0)
    came = dict(passed)
    while now < 300:
        size = chance.choice(sizes)
        now += chance.expovariate(30_000.0 * len(sizes) / sum(sizes))
        came[size] += 1
        asked += size
        if bucket.passes(now):
            bucket.charge(size)
            passed[size] += 1
    assert asked > 2.8 * 10_000 * now
    tokens = sum(size * count for size, count in passed.items())
    assert tokens == pytest.approx(10_000 * now, rel=0.03)
    # A large prompt has the chance of a small one.
    shares = [passed[size] / came[size] for size in sizes]
    assert max(shares) < 1.15 * min(shares)


def test_a_request_above_the_burst_passes_and_shuts_the_bucket_for_its_tokens() -> None:
    bucket = Bucket(rate=1000.0, prompt=500.0, now=0.0)
    assert bucket.passes(10.0)
    bucket.charge(3500.0)
    assert not bucket.passes(10.0)
    assert bucket.wait() == pytest.approx(3.0)
    assert not bucket.passes(12.99)
    assert bucket.passes(13.01)


def test_no_request_shuts_the_bucket_for_longer_than_five_seconds() -> None:
    bucket = Bucket(rate=1000.0, prompt=100.0, now=0.0)
    assert bucket.passes(10.0)
    bucket.charge(1e9)
    assert bucket.wait() == pytest.approx(DEBT_SECONDS)
    bucket.change(rate=10.0, prompt=100.0, now=10.0)
    assert bucket.wait() == pytest.approx(DEBT_SECONDS)


def test_a_bucket_begins_empty_and_holds_the_burst_at_most() -> None:
    bucket = Bucket(rate=1000.0, prompt=100.0, now=0.0)
    assert not bucket.passes(0.0)
    assert bucket.passes(1000.0)
    assert bucket.level == pytest.approx(BURST_SECONDS * 1000)
    assert Bucket(rate=1.0, prompt=700.0, now=0.0).burst == 700.0


@given(rates=st.lists(RATES, min_size=1, max_size=50))
def test_changes_of_the_rate_let_nothing_through_by_themselves(rates: list[float]) -> None:
    bucket = Bucket(rate=100.0, prompt=100.0, now=0.0)
    for rate in rates:
        bucket.change(rate=rate, prompt=100.0, now=0.0)
        assert not bucket.passes(0.0)


def test_a_new_rate_holds_at_once() -> None:
    bucket = Bucket(rate=1000.0, prompt=1.0, now=0.0)
    assert bucket.passes(5.0)
    bucket.change(rate=100.0, prompt=1.0, now=5.0)
    assert bucket.level == pytest.approx(30.0)
    bucket.charge(40.0)
    assert bucket.wait() == pytest.approx(0.1)


@given(moments=st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=50))
def test_a_clock_that_jumps_fills_a_bucket_once_at_most(moments: list[float]) -> None:
    bucket = Bucket(rate=100.0, prompt=100.0, now=0.0)
    for now in moments:
        bucket.passes(now)
        assert 0 <= bucket.level <= bucket.burst


def test_a_queue_drains_at_its_rate_and_never_below_nothing() -> None:
    queue = Queue(drain=100.0, now=0.0, tokens=50.0)
    queue.tokens += 250.0
    assert queue.at(1.0) == pytest.approx(200.0)
    queue.change(drain=10.0, now=1.0)
    assert queue.at(2.0) == pytest.approx(190.0)
    assert queue.at(1.0) == pytest.approx(190.0)
    assert queue.at(100.0) == 0.0
    queue.correct(seen=70.0, now=100.0)
    assert queue.at(101.0) == pytest.approx(60.0)
