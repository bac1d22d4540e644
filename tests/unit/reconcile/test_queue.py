"""The keyed queue, on a clock that only the test moves."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from kvtier.cluster.protocol import TooManyRequests
from kvtier.reconcile.clock import FakeClock
from kvtier.reconcile.queue import KeyedQueue, Outcome, Pace, Result

Handler = Callable[[str, frozenset[str]], Awaitable[Result]]
FREE = Pace(interval=0.0)


class Recorder:
    """A handler that notes (time, key, dirty) of every run and does what the test says."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.runs: list[tuple[float, str, frozenset[str]]] = []
        self.outcomes: list[Exception | Result] = []
        self.gate: asyncio.Event | None = None
        self.at_work = 0
        self.most_at_work = 0

    async def __call__(self, key: str, dirty: frozenset[str]) -> Result:
        self.runs.append((round(self.clock.monotonic(), 6), key, dirty))
        self.at_work += 1
        self.most_at_work = max(self.at_work, self.most_at_work)
        try:
            if self.gate is not None:
                await self.gate.wait()
        finally:
            self.at_work -= 1
        outcome = self.outcomes.pop(0) if self.outcomes else Result()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    @property
    def times(self) -> list[float]:
        return [run[0] for run in self.runs]


@asynccontextmanager
async def working(
    queue: KeyedQueue[str], handler: Handler, workers: int = 2
) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(queue.run(workers, handler))
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def handler(clock: FakeClock) -> Recorder:
    return Recorder(clock)


async def test_many_events_of_one_key_make_one_run_with_all_that_is_dirty(clock, handler):
    queue = KeyedQueue(clock=clock, pace=FREE)
    for dirty in ("pods", "services", "pods"):
        queue.add("a", dirty=frozenset({dirty}), delay=0.1)
    async with working(queue, handler):
        await clock.advance(1)
    assert handler.runs == [(0.1, "a", frozenset({"pods", "services"}))]


async def test_the_earliest_request_of_a_key_stands_and_is_spent_by_its_run(clock, handler):
    queue = KeyedQueue(clock=clock, pace=FREE)
    queue.add_after("a", 5)
    queue.add_after("a", 2)
    queue.add_after("a", 9)
    async with working(queue, handler):
        await clock.advance(20)
    assert handler.times == [2]


async def test_an_event_overtakes_a_timer_that_workers_already_wait_for(clock, handler):
    queue = KeyedQueue(clock=clock, pace=FREE)
    queue.add_after("a", 300)
    async with working(queue, handler):
        await clock.advance(1)
        queue.add("a", dirty=frozenset({"pods"}))
        await clock.advance(1)
    assert handler.runs == [(1, "a", frozenset({"pods"}))]


async def test_a_key_never_runs_twice_at_once_and_what_came_meanwhile_runs_after(clock, handler):
    queue = KeyedQueue(clock=clock, pace=FREE)
    handler.gate = asyncio.Event()
    queue.add("a", dirty=frozenset({"pods"}))
    async with working(queue, handler, workers=4):
        await clock.advance(1)
        queue.add("a", dirty=frozenset({"secrets"}))
        await clock.advance(5)
        assert len(handler.runs) == 1
        handler.gate.set()
        await clock.advance(1)
    assert [run[2] for run in handler.runs] == [frozenset({"pods"}), frozenset({"secrets"})]
    assert handler.most_at_work == 1


async def test_different_keys_run_side_by_side_up_to_the_number_of_workers(clock, handler):
    queue = KeyedQueue(clock=clock, pace=FREE)
    handler.gate = asyncio.Event()
    for key in "abcde":
        queue.add(key)
    async with working(queue, handler, workers=3):
        await clock.advance(1)
        assert (queue.running, queue.depth) == (3, 2)
        handler.gate.set()
        await clock.advance(1)
    assert (handler.most_at_work, sorted(run[1] for run in handler.runs)) == (3, list("abcde"))


async def test_a_result_asks_for_the_next_run(clock, handler):
    queue = KeyedQueue(clock=clock, pace=FREE)
    handler.outcomes = [Result(requeue_after=30.0), Result()]
    queue.add("a", dirty=frozenset({"tier"}))
    async with working(queue, handler):
        await clock.advance(100)
    assert [(at, dirty) for at, _, dirty in handler.runs] == [
        (0, frozenset({"tier"})),
        (30, frozenset()),
    ]


async def test_a_requeue_does_not_delay_an_event_that_came_during_the_run(clock, handler):
    queue = KeyedQueue(clock=clock, pace=FREE)
    handler.gate = asyncio.Event()
    handler.outcomes = [Result(requeue_after=300.0)]
    queue.add("a")
    async with working(queue, handler):
        await clock.advance(1)
        queue.add("a", delay=0.1)
        handler.gate.set()
        await clock.advance(1)
    assert handler.times == [0, 1.1]


async def test_errors_back_off_exponentially_up_to_a_minute_and_success_resets(clock, handler):
    queue = KeyedQueue(clock=clock, pace=FREE, jitter=lambda: 1.0, on_error=lambda *_: None)
    handler.outcomes = [RuntimeError("no")] * 9 + [Result(), RuntimeError("again")]
    queue.add("a")
    async with working(queue, handler):
        await clock.advance(300)
        queue.add("a")
        await clock.advance(0.6)
    waits = [round(b - a, 6) for a, b in zip(handler.times, handler.times[1:], strict=False)]
    assert waits[:9] == [0.5, 1, 2, 4, 8, 16, 32, 60, 60]
    assert waits[-1] == 0.5


async def test_jitter_takes_up_to_half_of_the_backoff(clock, handler):
    queue = KeyedQueue(clock=clock, pace=FREE, jitter=lambda: 0.0, on_error=lambda *_: None)
    handler.outcomes = [RuntimeError("no")]
    queue.add("a")
    async with working(queue, handler):
        await clock.advance(1)
    assert handler.times == [0, 0.25]


async def test_what_was_dirty_is_dirty_again_after_an_error(clock, handler):
    seen: list[tuple[str, str, int]] = []
    queue = KeyedQueue(
        clock=clock,
        pace=FREE,
        on_error=lambda key, error, failures: seen.append((key, str(error), failures)),
    )
    handler.gate = asyncio.Event()
    handler.outcomes = [RuntimeError("no")]
    queue.add("a", dirty=frozenset({"pods"}))
    async with working(queue, handler):
        await clock.advance(1)
        queue.add("a", dirty=frozenset({"secrets"}), delay=50)
        handler.gate.set()
        await clock.advance(2)
    assert handler.runs[1][2] == frozenset({"pods", "secrets"})
    assert seen == [("a", "no", 1)]


async def test_the_server_s_retry_after_holds_even_against_events(clock, handler):
    queue = KeyedQueue(clock=clock, pace=FREE, on_error=lambda *_: None)
    handler.outcomes = [
        TooManyRequests(status=429, reason="TooManyRequests", message="later", retry_after=7)
    ]
    queue.add("a")
    async with working(queue, handler):
        await clock.advance(1)
        queue.add("a")
        await clock.advance(20)
    assert handler.times == [0, 7]


async def test_a_server_that_asks_for_an_hour_is_asked_again_after_a_minute(clock, handler):
    queue = KeyedQueue(clock=clock, pace=FREE, on_error=lambda *_: None)
    handler.outcomes = [
        TooManyRequests(status=429, reason="TooManyRequests", message="later", retry_after=3600)
    ]
    queue.add("a")
    async with working(queue, handler):
        await clock.advance(100)
    assert handler.times == [0, 60]


async def test_after_an_outage_all_that_failed_is_tried_at_once(clock, handler):
    queue = KeyedQueue(clock=clock, pace=FREE, jitter=lambda: 1.0, on_error=lambda *_: None)
    handler.outcomes = [RuntimeError("no")] * 12
    queue.add("a")
    queue.add("b")
    queue.add("fine", delay=500)
    async with working(queue, handler):
        await clock.advance(20)
        assert len(handler.runs) == 12, "both wait for their next try"
        queue.retry_now()
        await clock.advance(0)
        assert [run[:2] for run in handler.runs[12:]] == [(20, "a"), (20, "b")]
        await clock.advance(100)
        assert len(handler.runs) == 14, "what did not fail is not brought forward"


async def test_the_age_of_the_oldest_key_counts_its_wait_and_its_run(clock, handler):
    queue = KeyedQueue(clock=clock, pace=FREE)
    handler.gate = asyncio.Event()
    assert queue.oldest == 0
    queue.add("later", delay=60)
    queue.add("a")
    async with working(queue, handler, workers=1):
        await clock.advance(10)
        queue.add("b")
        await clock.advance(5)
        assert queue.oldest == 15, "a is at work since then"
        handler.gate.set()
        await clock.advance(0)
        assert queue.oldest == 0


async def test_what_waits_for_its_pace_is_told_and_nothing_else_is(clock, handler):
    throttled: list[str] = []
    pace = Pace(interval=1.0, burst=3)
    queue = KeyedQueue(clock=clock, pace=pace, on_throttled=throttled.append)
    async with working(queue, handler):
        queue.add("calm")
        for _ in range(50):
            queue.add("a")
            await clock.advance(0.1)
    assert len(throttled) == len([key for _, key, _ in handler.runs if key == "a"]) - 3
    assert set(throttled) == {"a"}


async def test_an_event_brings_a_failed_key_forward_but_not_below_the_interval(clock, handler):
    queue = KeyedQueue(
        clock=clock, pace=Pace(interval=1.0, burst=100), jitter=lambda: 1.0, on_error=lambda *_: 0
    )
    handler.outcomes = [RuntimeError("no")] * 20
    queue.add("a")
    async with working(queue, handler):
        for _ in range(100):
            queue.add("a")
            await clock.advance(0.1)
    assert 9 <= len(handler.runs) <= 12


async def test_a_storm_of_events_is_thinned_to_the_interval_after_the_burst(clock, handler):
    queue = KeyedQueue(clock=clock, pace=Pace(interval=1.0, burst=5))
    async with working(queue, handler):
        for _ in range(200):
            queue.add("a", dirty=frozenset({"pods"}))
            await clock.advance(0.1)
        storm = len(handler.runs)
        await clock.advance(10)
    assert handler.times[:5] == [0, 0.1, 0.2, 0.3, 0.4]
    assert storm in (24, 25)
    assert handler.times[-1] == pytest.approx(20), "the last event is not lost"


async def test_stop_lets_handlers_finish_and_starts_no_more(clock, handler):
    queue = KeyedQueue(clock=clock, pace=FREE)
    handler.gate = asyncio.Event()
    queue.add("a")
    async with working(queue, handler, workers=1) as task:
        await clock.advance(1)
        queue.add("b")
        queue.stop()
        await clock.advance(5)
        assert not task.done()
        handler.gate.set()
        await clock.advance(1)
        assert task.done()
        assert task.exception() is None
    assert [run[1] for run in handler.runs] == ["a"]


async def test_a_cancelled_run_keeps_the_key_and_its_dirt_for_the_next_run(clock, handler):
    queue = KeyedQueue(clock=clock, pace=FREE)
    handler.gate = asyncio.Event()
    queue.add("a", dirty=frozenset({"pods"}))
    async with working(queue, handler):
        await clock.advance(1)
    assert handler.at_work == 0
    handler.gate.set()
    async with working(queue, handler):
        await clock.advance(1)
    assert [run[2] for run in handler.runs] == [frozenset({"pods"})] * 2


async def test_every_run_is_reported_with_its_duration_and_outcome(clock, handler):
    done: list[tuple[str, float, Outcome]] = []
    queue = KeyedQueue(
        clock=clock,
        pace=FREE,
        on_error=lambda *_: None,
        on_done=lambda key, seconds, outcome: done.append((key, seconds, outcome)),
    )
    handler.gate = asyncio.Event()
    handler.outcomes = [RuntimeError("no")]
    queue.add("a")
    async with working(queue, handler):
        await clock.advance(3)
        handler.gate.set()
        await clock.advance(2)
    assert done == [("a", 3, Outcome.ERROR), ("a", 0, Outcome.SUCCESS)]


async def test_keys_that_went_quiet_are_forgotten_once_others_come(clock, handler):
    queue = KeyedQueue(clock=clock, pace=Pace(interval=1.0, burst=3))
    async with working(queue, handler):
        for index in range(50):
            queue.add(f"tier-{index}")
            await clock.advance(2)
    assert len(queue._entries) <= 2
