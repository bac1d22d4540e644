"""When a rank is asked, when it is not, and how often it is tried."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kvtier_lmcache.breaker import FIRST_WAIT, LASTING, LONGEST_WAIT, Breaker, State

EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["request failed", "attempt failed", "attempt succeeded"]),
        st.floats(min_value=0, max_value=30),
        st.floats(min_value=0, max_value=1),
    ),
    max_size=60,
)


@given(EVENTS)
def test_it_closes_only_by_an_attempt_that_succeeded_and_attempts_are_rare(
    events: list[tuple[str, float, float]],
) -> None:
    jitter = [0.0]
    breaker = Breaker(jitter=lambda: jitter[0])
    now, answers, attempts = 0.0, False, []
    for event, later, chance in events:
        now += later
        jitter[0] = chance
        if event == "request failed":
            # A request is only made of a rank that answers, or that was not tried yet.
            if breaker.state is State.CLOSED:
                breaker.failed(now)
                answers = False
                due = breaker.seconds_to_attempt(now)
                assert due is not None
                assert FIRST_WAIT / 2 <= due <= LONGEST_WAIT
        elif breaker.seconds_to_attempt(now) == 0:
            attempts.append(now)
            breaker.trying()
            assert breaker.state in (State.STARTING, State.HALF_OPEN)
            answers = event == "attempt succeeded"
            if answers:
                breaker.succeeded(now)
            else:
                breaker.failed(now)
        assert (breaker.state is State.CLOSED) == answers
    gaps = [second - first for first, second in pairwise(attempts)]
    assert all(gap >= FIRST_WAIT / 2 for gap in gaps)


def test_waits_double_up_to_the_longest() -> None:
    breaker, now, waits = Breaker(jitter=lambda: 0.0), 0.0, []
    for _ in range(5):
        breaker.trying()
        breaker.failed(now)
        waits.append(breaker.seconds_to_attempt(now))
        now += waits[-1] or 0
    assert waits == [0.5, 1.0, 2.0, 2.0, 2.0]


def test_jitter_takes_half_of_a_wait_at_most() -> None:
    breaker = Breaker(jitter=lambda: 1.0)
    breaker.failed(10.0)
    assert breaker.seconds_to_attempt(10.0) == FIRST_WAIT / 2


def test_waits_begin_anew_only_after_the_rank_answered_for_a_while() -> None:
    for answered, wait in ((LASTING - 1, 1.0), (LASTING, 0.5)):
        breaker = Breaker(jitter=lambda: 0.0)
        breaker.failed(0.0)
        breaker.trying()
        breaker.succeeded(1.0)
        breaker.failed(1.0 + answered)
        assert breaker.seconds_to_attempt(1.0 + answered) == wait


def test_late_failures_of_earlier_requests_do_not_put_the_next_attempt_off() -> None:
    breaker = Breaker(jitter=lambda: 0.0)
    breaker.failed(0.0)
    breaker.failed(0.4)
    assert breaker.seconds_to_attempt(0.4) == FIRST_WAIT - 0.4
