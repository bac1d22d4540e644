"""A tier that flaps for an hour: at most twenty writes of events, and nothing new goes unsaid."""

from collections.abc import Awaitable, Callable

import pytest
from admission_harness import ENFORCE, Admitted, FakeLimiters, serving
from pool_harness import add_engine
from tier_harness import KEY, Operator, spec

from kvtier.api import reasons
from kvtier.breakeven.assessment import Evidence, LinkFigures
from kvtier.cluster.protocol import EVENT, POD
from kvtier.reconcile.events import Recorder

MOST = 20
HOUR = 3600.0
STEP = 150.0
"""Seconds between two changes."""
STORM = {"state": "Storm", "cause": "RankLost", "limitTokensPerSecond": 8000.0}


def recorded(operator: Operator) -> Operator:
    """The operator with a recorder that writes to its cluster, beside the one that keeps all."""
    writing = Recorder(operator.cluster, instance="kvtier-0", clock=operator.clock)
    kept = operator.recorder

    class Both:
        async def record(self, obj: object, event: object) -> None:
            await kept.record(obj, event)  # type: ignore[arg-type]
            await writing.record(obj, event)  # type: ignore[arg-type]

    operator.reconciler._recorder = Both()  # type: ignore[assignment]
    return operator


def writes(operator: Operator) -> int:
    return sum(write.kind == EVENT for write in operator.cluster.writes)


Change = Callable[[int], Awaitable[None]]


async def flap(operator: Operator, *changes: Change, seconds: float = HOUR) -> dict[str, int]:
    """Change again and again; how often each reason was told of meanwhile."""
    operator.recorder.events.clear()
    for number in range(int(seconds / STEP)):
        for change in changes:
            await change(number)
        await operator.clock.advance(STEP)
        operator.queue.add(KEY)
        await operator.settle()
    happened = operator.recorder.reasons()
    return {reason: happened.count(reason) for reason in happened}


def ranks(operator: Operator) -> Change:
    """A rank is gone, and back."""

    async def change(number: int) -> None:
        if number % 2 == 0:
            operator.cluster.remove(POD, KEY[0], f"{KEY[1]}-r{number // 2 % 2}-0")
            operator.queue.add(KEY, dirty=frozenset({"StatefulSet"}))
            await operator.settle(kubelets=False, rounds=1)

    return change


def storms(found: Admitted) -> Change:
    """A storm begins and ends, with other figures each time."""

    async def change(number: int) -> None:
        assert found.limiters is not None
        offered = {"offeredTokensPerSecond": 20_000.0 + 100 * number}
        said = {**STORM, **offered} if number % 2 == 0 else offered
        found.limiters.says = dict.fromkeys(found.limiters.says, said)
        await found.looks(1)

    return change


def verdicts(operator: Operator) -> Change:
    """Probes that find a fast link, and a slow one."""

    async def change(number: int) -> None:
        rate = (9e6 if number % 8 < 4 else 1e6) + 1e4 * number
        operator.reconciler.memory.of(KEY).link = LinkFigures(
            domain="",
            bytes_per_second=rate,
            round_trip_seconds=50e-6,
            evidence=Evidence.PROBED,
            at=operator.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ"),
            node="n1",
            slowest_rank_bytes_per_second=rate / 2,
        )

    return change


def engines(operator: Operator) -> Change:
    """Engines come and go."""

    async def change(number: int) -> None:
        if number % 2 == 0:
            add_engine(operator, "engine-9", "n1")
        else:
            operator.cluster.remove(POD, KEY[0], "engine-9")
        await operator.settle()

    return change


def pays() -> dict[str, object]:
    body = {**spec(), "admission": ENFORCE["admission"]}
    body["pool"] = {**body["pool"], "hitLatency": "1ms", "hitEngineTime": "1ms"}
    return body


@pytest.fixture
async def flapping(operator: Operator) -> Operator:
    await serving(operator, pays())
    return recorded(operator)


def limited(operator: Operator) -> Admitted:
    return Admitted(operator, FakeLimiters(operator, "10.0.0.1"))


def counted(operator: Operator, reason: str) -> int:
    """Of how many times all its events tell."""
    return sum(each["count"] for each in operator.cluster.all(EVENT) if each["reason"] == reason)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("ranks", {reasons.RANK_DOWN, reasons.RANK_BACK}),
        ("storms", {reasons.STORM_BEGAN, reasons.STORM_OVER}),
        ("verdicts", {reasons.VERDICT_CHANGED}),
    ],
)
async def test_an_hour_of_flapping_is_twenty_writes_and_the_first_of_each_story_is_told_at_once(
    flapping: Operator, kind: str, told: set[str]
) -> None:
    kinds = {
        "ranks": ranks(flapping),
        "storms": storms(limited(flapping)),
        "verdicts": verdicts(flapping),
    }
    before = writes(flapping)
    happened = await flap(flapping, kinds[kind])
    assert told <= set(happened)
    assert all(happened[reason] >= 5 for reason in told), happened
    assert writes(flapping) - before <= MOST
    events = flapping.cluster.all(EVENT)
    assert {each["reason"] for each in events} == set(happened)
    assert {each["type"] for each in events} <= {"Normal", "Warning"}
    # What the last write does not tell of yet happened since it.
    for reason, count in happened.items():
        assert 0.6 * count <= counted(flapping, reason) <= count


async def test_all_of_it_at_once_is_twenty_writes_as_well(flapping: Operator) -> None:
    before = writes(flapping)
    happened = await flap(
        flapping,
        ranks(flapping),
        storms(limited(flapping)),
        verdicts(flapping),
        engines(flapping),
    )
    assert len(happened) >= 5
    assert sum(happened.values()) > 50
    assert writes(flapping) - before <= MOST
    assert {each["reason"] for each in flapping.cluster.all(EVENT)} == set(happened)


async def test_in_the_midst_of_it_something_new_is_told_at_once(flapping: Operator) -> None:
    await flap(flapping, storms(limited(flapping)), seconds=HOUR / 3)
    body = pays()
    flapping.apply({**body, "store": {"memoryPerRank": "300Mi"}})
    await flapping.settle()
    new = {each["reason"] for each in flapping.cluster.all(EVENT)}
    assert reasons.APPLIED in new
