"""The event recorder, against the in-memory cluster and a clock that only the test moves."""

import pytest

from kvtier.cluster.fake import FakeCluster
from kvtier.cluster.protocol import EVENT, Unavailable
from kvtier.plan.observed import EventSpec, EventType
from kvtier.reconcile.clock import FakeClock
from kvtier.reconcile.events import BURST, MAX_REMEMBERED, REFILL, RESERVE, STORY, Recorder
from kvtier.redact import new_token

TIER = {
    "apiVersion": "kvtier.dev/v1alpha1",
    "kind": "KVCacheTier",
    "metadata": {"name": "t", "namespace": "ns", "uid": "u-1", "resourceVersion": "7"},
}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def cluster(clock: FakeClock) -> FakeCluster:
    return FakeCluster(clock=clock)


@pytest.fixture
def recorder(cluster: FakeCluster, clock: FakeClock) -> Recorder:
    return Recorder(cluster, instance="kvtier-0", clock=clock)


def warning(message: str = "rank 0 is gone", reason: str = "RanksNotReady") -> EventSpec:
    return EventSpec(type=EventType.WARNING, reason=reason, message=message)


def writes(cluster: FakeCluster) -> int:
    return sum(write.kind == EVENT for write in cluster.writes)


async def test_an_event_says_what_happened_to_which_object_and_who_says_so(cluster, recorder):
    await recorder.record(TIER, warning())
    [event] = cluster.all(EVENT)
    assert event["metadata"]["namespace"] == "ns"
    assert event["metadata"]["name"].startswith("t.")
    assert event["involvedObject"] == {
        "apiVersion": "kvtier.dev/v1alpha1",
        "kind": "KVCacheTier",
        **TIER["metadata"],
    }
    told = {key: event[key] for key in ("type", "reason", "message", "count")}
    assert told == {
        "type": "Warning",
        "reason": "RanksNotReady",
        "message": "rank 0 is gone",
        "count": 1,
    }
    assert (event["reportingComponent"], event["reportingInstance"]) == ("kvtier", "kvtier-0")
    assert event["firstTimestamp"] == event["lastTimestamp"] == "2026-01-01T00:00:00Z"


async def test_the_same_again_adds_to_the_count(cluster, recorder, clock):
    for _ in range(3):
        await recorder.record(TIER, warning())
        await clock.advance(60)
    [event] = cluster.all(EVENT)
    assert (event["count"], event["lastTimestamp"]) == (3, "2026-01-01T00:02:00Z")
    assert event["firstTimestamp"] == "2026-01-01T00:00:00Z"


async def test_after_ten_quiet_minutes_it_is_a_new_event(cluster, recorder, clock):
    await recorder.record(TIER, warning())
    await clock.advance(601)
    await recorder.record(TIER, warning())
    assert [event["count"] for event in cluster.all(EVENT)] == [1, 1]


async def test_another_object_reason_type_or_message_is_another_event(cluster, recorder):
    other = {**TIER, "metadata": {**TIER["metadata"], "uid": "u-2"}}
    await recorder.record(TIER, warning())
    await recorder.record(other, warning())
    await recorder.record(TIER, warning(reason="NameConflict"))
    await recorder.record(TIER, warning(message="rank 1 is gone"))
    await recorder.record(
        TIER, EventSpec(type=EventType.NORMAL, reason="RanksNotReady", message="rank 0 is gone")
    )
    assert [event["count"] for event in cluster.all(EVENT)] == [1] * 5


async def test_an_event_that_the_server_let_expire_is_told_anew(cluster, recorder):
    await recorder.record(TIER, warning())
    [event] = cluster.all(EVENT)
    cluster.remove(EVENT, "ns", event["metadata"]["name"])
    await recorder.record(TIER, warning())
    [event] = cluster.all(EVENT)
    assert event["count"] == 1


async def test_of_many_figures_three_have_an_event_and_the_last_has_the_newest(
    cluster, recorder, clock
):
    for index in range(7):
        await recorder.record(TIER, warning(message=f"{index} of 8 are gone"))
    told = {event["message"]: event["count"] for event in cluster.all(EVENT)}
    assert told == {"0 of 8 are gone": 1, "1 of 8 are gone": 1, "6 of 8 are gone": 5}


async def test_one_object_gets_a_burst_and_then_a_trickle_and_others_are_not_held_back(
    cluster, recorder, clock
):
    for _ in range(100):
        await recorder.record(TIER, warning())
    assert writes(cluster) == BURST - RESERVE
    other = {**TIER, "metadata": {**TIER["metadata"], "uid": "u-2"}}
    await recorder.record(other, warning())
    assert writes(cluster) == BURST - RESERVE + 1
    await clock.advance(REFILL + 1)
    for _ in range(10):
        await recorder.record(TIER, warning())
    assert writes(cluster) == BURST - RESERVE + 2


async def test_what_is_new_may_take_what_repeats_may_not(cluster, recorder):
    for _ in range(100):
        await recorder.record(TIER, warning())
    for index in range(10):
        await recorder.record(TIER, warning(reason="Other", message=f"no {index}"))
    for index in range(10):
        await recorder.record(TIER, warning(reason="Third", message=f"no {index}"))
    assert writes(cluster) == BURST
    told = sorted(event["reason"] for event in cluster.all(EVENT))
    assert told == [*["Other"] * 3, "RanksNotReady", "Third"]


async def test_the_first_of_a_story_is_told_whatever_was_written_before(cluster, recorder):
    for index in range(3 * BURST):
        await recorder.record(TIER, warning(reason=f"Reason{index}"))
    assert len(cluster.all(EVENT)) == 3 * BURST
    await recorder.record(TIER, warning(reason="Reason0", message="another"))
    assert len(cluster.all(EVENT)) == 3 * BURST, "others pay for it"


async def test_what_the_limit_kept_back_is_counted_in_the_next_one(cluster, recorder, clock):
    for _ in range(40):
        await recorder.record(TIER, warning())
    [event] = cluster.all(EVENT)
    assert event["count"] == BURST - RESERVE
    await clock.advance(REFILL + 1)
    await recorder.record(TIER, warning())
    [event] = cluster.all(EVENT)
    assert event["count"] == 41


async def test_of_two_that_alternate_each_second_none_starves(cluster, recorder, clock):
    for _ in range(1800):
        await recorder.record(TIER, warning(reason="RankDown"))
        await recorder.record(TIER, warning(reason="RankBack"))
        clock._seconds += 2
    assert writes(cluster) <= 20
    told = {event["reason"]: event["count"] for event in cluster.all(EVENT)}
    assert min(told.values()) > 1000, told


async def test_what_has_ended_is_told_to_its_end(cluster, recorder, clock):
    for _ in range(50):
        await recorder.record(TIER, warning(reason="Ended"))
    for _ in range(3):
        await clock.advance(REFILL + 1)
        await recorder.record(TIER, warning(reason="GoesOn"))
    told = {event["reason"]: event["count"] for event in cluster.all(EVENT)}
    assert told == {"Ended": 50, "GoesOn": 3}


async def test_an_hour_without_a_word_ends_a_story(cluster, recorder, clock):
    for index in range(5):
        await recorder.record(TIER, warning(message=f"no {index}"))
    await clock.advance(STORY + 1)
    await recorder.record(TIER, warning(message="no 5"))
    assert sorted(event["count"] for event in cluster.all(EVENT)) == [1, 1, 1, 3]
    told = {event["message"]: event["count"] for event in cluster.all(EVENT)}
    assert told["no 4"] == 3


@pytest.mark.parametrize(
    "failure",
    [Unavailable(status=503, reason="ServiceUnavailable", message="later"), KeyError("bug")],
    ids=["refused", "bug"],
)
async def test_an_event_that_cannot_be_written_costs_no_reconcile(
    cluster, recorder, failure, caplog
):
    cluster.fail(failure)
    await recorder.record(TIER, warning())
    assert cluster.all(EVENT) == []
    assert "RanksNotReady" in caplog.text
    await recorder.record(TIER, warning())
    [event] = cluster.all(EVENT)
    assert event["count"] == 2


async def test_no_token_gets_into_an_event(cluster, recorder):
    token = new_token()
    await recorder.record(TIER, warning(message=f"user {token} is unknown"))
    [event] = cluster.all(EVENT)
    assert token not in str(event)
    assert event["message"] == "user <redacted> is unknown"


async def test_a_long_message_is_cut_to_what_the_server_takes(cluster, recorder):
    await recorder.record(TIER, warning(message="x" * 5000))
    [event] = cluster.all(EVENT)
    assert (len(event["message"]), event["message"][-4:]) == (1024, "x...")


async def test_an_event_of_a_node_lives_in_default(cluster, recorder):
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "uid": "u-3"}}
    await recorder.record(node, warning())
    [event] = cluster.all(EVENT)
    assert event["metadata"]["namespace"] == "default"
    assert "namespace" not in event["involvedObject"]


async def test_what_is_remembered_is_bounded(recorder, clock):
    for index in range(MAX_REMEMBERED + 100):
        other = {**TIER, "metadata": {**TIER["metadata"], "uid": str(index)}}
        await recorder.record(other, warning())
        await clock.advance(0) if index % 1000 == 0 else None
    assert len(recorder._stories) <= MAX_REMEMBERED
    await clock.advance(8000)
    await recorder.record(TIER, warning())
    assert len(recorder._stories) == 1
    assert len(recorder._buckets) == 1
