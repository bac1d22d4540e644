"""What holds for all figures, not only for those of the papers."""

import math

from hypothesis import assume, given
from hypothesis import strategies as st

from kvtier.breakeven import model

bytes_per_token = st.integers(1, 10**9)
rate = st.floats(0.1, 1e9)
bandwidth = st.floats(1e3, 1e15)
delay = st.floats(0, 100)
tokens = st.integers(1, 10**8)
compression = st.floats(1, 1000)


@given(tokens, bytes_per_token, rate, delay, delay, compression, st.floats(1e-6, 1e6))
def test_a_fetch_wins_exactly_above_the_exact_break_even(
    n: int, s: int, r: float, rtt: float, t0: float, c: float, factor: float
) -> None:
    figures = {"bytes_per_token": s, "rate": r, "round_trip": rtt, "fixed": t0, "compression": c}
    needed = model.break_even_bandwidth_at(tokens=n, **figures)
    if math.isinf(needed):
        assert not model.fetch_wins(tokens=n, bandwidth=1e300, **figures)
        return
    # Nearer than this the two sides are one number to a float.
    left = n / r - rtt - t0
    assume(abs(factor - 1) * left > 1e-9 * (n / r))
    assert model.fetch_wins(tokens=n, bandwidth=needed * factor, **figures) is (factor > 1)


@given(tokens, tokens, bytes_per_token, rate, delay, compression)
def test_the_exact_break_even_falls_towards_b_star_as_hits_grow(
    one: int, other: int, s: int, r: float, t0: float, c: float
) -> None:
    short, long = sorted((one, other))
    figures = {"bytes_per_token": s, "rate": r, "compression": c}
    limit = model.break_even_bandwidth(**figures)
    at_short = model.break_even_bandwidth_at(tokens=short, fixed=t0, **figures)
    at_long = model.break_even_bandwidth_at(tokens=long, fixed=t0, **figures)
    assert at_short >= at_long * (1 - 1e-12)
    assert at_long >= limit * (1 - 1e-12)
    far = model.break_even_bandwidth_at(tokens=1e30, fixed=t0, **figures)
    assert math.isclose(far, limit, rel_tol=1e-9)


@given(bytes_per_token, rate, bandwidth, delay, compression)
def test_the_minimum_hit_is_infinite_exactly_up_to_b_star(
    s: int, r: float, b: float, t0: float, c: float
) -> None:
    limit = model.break_even_bandwidth(bytes_per_token=s, rate=r, compression=c)
    found = model.minimum_hit_tokens(
        bytes_per_token=s, rate=r, bandwidth=b, fixed=t0, compression=c
    )
    assert math.isinf(found) is (b <= limit)
    at_limit = model.minimum_hit_tokens(
        bytes_per_token=s, rate=r, bandwidth=limit, fixed=t0, compression=c
    )
    assert math.isinf(at_limit)


@given(bytes_per_token, rate, st.floats(1.001, 1e6), st.floats(1e-6, 100), delay)
def test_hits_longer_than_the_minimum_win_and_shorter_ones_lose(
    s: int, r: float, above: float, t0: float, rtt: float
) -> None:
    figures = {
        "bytes_per_token": s,
        "rate": r,
        "bandwidth": above * s * r,
        "fixed": t0,
        "round_trip": rtt,
    }
    threshold = model.minimum_hit_tokens(**figures)
    assert model.fetch_wins(tokens=threshold * 1.0001, **figures)
    assert not model.fetch_wins(tokens=threshold * 0.9999, **figures)


@given(tokens, bytes_per_token, rate, bandwidth, delay, compression, compression)
def test_more_compression_never_hurts(
    n: int, s: int, r: float, b: float, t0: float, one: float, other: float
) -> None:
    less, more = sorted((one, other))
    figures = {"bytes_per_token": s, "fixed": t0}

    def fetch(c: float) -> float:
        return model.fetch_seconds(tokens=n, bandwidth=b, compression=c, **figures)

    def needed(c: float) -> float:
        return model.break_even_bandwidth_at(tokens=n, rate=r, compression=c, **figures)

    def shortest(c: float) -> float:
        return model.minimum_hit_tokens(rate=r, bandwidth=b, compression=c, **figures)

    assert fetch(more) <= fetch(less)
    assert needed(more) <= needed(less)
    assert shortest(more) <= shortest(less)
