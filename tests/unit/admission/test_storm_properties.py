"""The storm machine under signals of any kind."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from timeline import SIZES

from kvtier.admission.signals import RankSignal, Signals, Sizes, TokenSignal
from kvtier.admission.storm import Cause, State, Storm, advance, limit

Ranks = st.builds(
    RankSignal,
    rank=st.integers(0, 3),
    asked=st.floats(-100, 4000),
    answers=st.booleans(),
    at=st.none() | st.floats(-100, 4000),
    run_id=st.sampled_from(["", "a", "b"]),
    keys=st.integers(0, 10**6),
    used_bytes=st.integers(0, 10**12),
    uptime=st.none() | st.floats(0, 1e6),
)
Tokens = st.builds(
    TokenSignal,
    prompt=st.floats(0, 1e9),
    hit=st.floats(0, 1e9),
    computed=st.floats(0, 1e9),
    seconds=st.floats(0, 60),
    engines=st.integers(0, 100),
    waiting=st.none() | st.floats(0, 1e4),
    busy=st.none() | st.floats(0, 1e3),
)
Anything = st.builds(
    Signals,
    ranks=st.lists(Ranks, max_size=4, unique_by=lambda each: each.rank).map(tuple),
    engines=st.none() | st.integers(0, 100),
    engines_at=st.none() | st.floats(-100, 4000),
    tokens=st.none() | Tokens,
    counts_tokens=st.booleans(),
    offered=st.none() | st.floats(0, 1e9),
    planned=st.booleans(),
)
Steps = st.lists(st.tuples(st.floats(-1000, 1000), Anything), max_size=30)
Any = Sizes(**SIZES)


@given(steps=Steps, expected=st.none() | st.floats(0, 1), target=st.none() | st.floats(0.01, 60))
def test_whatever_it_is_told_a_limit_is_positive_and_not_below_the_floor(
    steps: list[tuple[float, Signals]], expected: float | None, target: float | None
) -> None:
    sizes = replace(Any, expected_hit=expected, target_ttft=target)
    storm, now = Storm(), 1000.0
    for passed, signals in steps:
        now += passed
        storm = advance(storm, now=now, signals=signals, sizes=sizes)
        limited = limit(storm, now=now, signals=signals, sizes=sizes)
        assert (storm.cause is None) == (storm.state is State.OPEN)
        assert 0 <= (storm.hit_low or 0.0) <= 1
        if limited.tokens_per_second is None:
            assert limited.max_queued is None
            continue
        assert storm.state is not State.OPEN
        assert signals.engines
        assert limited.tokens_per_second >= sizes.floor * storm.peak
        assert limited.tokens_per_second >= limited.capacity > 0
        assert limited.max_queued is not None
        assert limited.max_queued > 0
        assert limited.why


@settings(max_examples=60)
@given(
    hits=st.lists(st.floats(0, 1), min_size=1, max_size=6),
    loads=st.lists(st.floats(0, 1), min_size=1, max_size=6),
    engines=st.integers(1, 50),
    grown=st.integers(0, 1000),
    waiting=st.none() | st.floats(0, 1.9),
    expected=st.none() | st.floats(0, 1),
)
def test_without_a_cause_nothing_is_ever_limited(
    hits: list[float],
    loads: list[float],
    engines: int,
    grown: int,
    waiting: float | None,
    expected: float | None,
) -> None:
    """All ranks are well, and engines can do what does not hit: no mix of hits and load limits.

    ``waiting`` are requests per engine: with two in each of them engines would be full, and what
    they compute all that they can.
    """
    sizes = replace(Any, expected_hit=expected)
    # The most that may be offered so that even the fewest of these hits leave rho below one.
    most = 0.95 * engines * sizes.engine_rate / max(1 - min(hits), 1e-3)
    storm, keys = Storm(), 1000
    for second in range(20 * max(len(hits), len(loads))):
        hit = hits[second // 20 % len(hits)]
        offered = most * loads[second // 20 % len(loads)]
        now, keys = float(second), keys + grown
        signals = Signals(
            ranks=tuple(
                RankSignal(rank, now, True, now, "run", keys, 1000 * keys) for rank in range(2)
            ),
            engines=engines,
            engines_at=now,
            tokens=TokenSignal(
                prompt=offered,
                hit=hit * offered,
                computed=(1 - hit) * offered,
                seconds=1.0,
                engines=engines,
                waiting=None if waiting is None else engines * waiting,
            ),
            counts_tokens=True,
            offered=offered,
        )
        storm = advance(storm, now=now, signals=signals, sizes=sizes)
        assert storm.state is State.OPEN
        assert limit(storm, now=now, signals=signals, sizes=sizes).tokens_per_second is None


@given(engines=st.integers(1, 100), rate=st.floats(1, 1e6), more=st.floats(1, 10))
def test_more_engines_and_faster_ones_never_lower_a_storms_limit(
    engines: int, rate: float, more: float
) -> None:
    storm = Storm(state=State.STORM, cause=Cause.RANK_LOST, rank=1, looked=0.0, struck=0.0)
    limits = []
    for count, speed in ((engines, rate), (engines + 1, rate), (engines + 1, rate * more)):
        limited = limit(
            storm,
            now=1.0,
            signals=Signals(engines=count, engines_at=1.0),
            sizes=replace(Any, engine_rate=speed),
        )
        assert limited.tokens_per_second is not None
        limits.append(limited.tokens_per_second)
    assert limits == sorted(limits)


@settings(max_examples=30)
@given(hit=st.floats(0.3, 0.95), seed=st.integers(0, 1000))
def test_with_hits_back_for_two_minutes_it_is_open(hit: float, seed: int) -> None:
    storm = Storm()
    for second in range(300):
        now, now_hits = float(second), 0.0 if 60 <= second < 90 + seed % 60 else hit
        run = "a" if second < 60 else "b"
        signals = Signals(
            ranks=(
                RankSignal(0, now, True, now, run, 1000, 10**6),
                RankSignal(1, now, True, now, "a", 1000, 10**6),
            ),
            engines=4,
            engines_at=now,
            tokens=TokenSignal(90_000, now_hits * 90_000, 9000, 1.0, 4),
            counts_tokens=True,
            offered=90_000.0,
        )
        storm = advance(storm, now=now, signals=signals, sizes=Any)
        if second == 61:
            assert storm.state is State.STORM
    assert storm.state is State.OPEN
