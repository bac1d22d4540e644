"""The Lease elector, against the in-memory cluster and a clock that only the test moves."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime

import pytest

from kvtier.cluster.fake import FakeCluster
from kvtier.cluster.protocol import LEASE, Unavailable
from kvtier.reconcile.clock import FakeClock
from kvtier.reconcile.lease import Lease


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def cluster(clock: FakeClock) -> FakeCluster:
    return FakeCluster(clock=clock)


def elector(
    cluster: FakeCluster, clock: FakeClock, identity: str = "a", *, pod_uid: str = ""
) -> Lease:
    return Lease(
        cluster, namespace="ns", name="kvtier", identity=identity, pod_uid=pod_uid, clock=clock
    )


@asynccontextmanager
async def running(lease: Lease) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(lease.run())
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def spec(cluster: FakeCluster):
    return cluster.peek(LEASE, "ns", "kvtier")["spec"]


def theirs(cluster: FakeCluster, **extra):
    cluster.seed(
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "kvtier", "namespace": "ns"},
            "spec": {"holderIdentity": "other", "leaseDurationSeconds": 15, **extra},
        }
    )


def unavailable() -> Unavailable:
    return Unavailable(status=503, reason="ServiceUnavailable", message="later")


async def test_a_lease_that_nobody_has_is_ours_at_once(cluster, clock):
    lease = elector(cluster, clock)
    assert not lease.holds()
    async with running(lease):
        await clock.advance(0)
        assert lease.holds()
        assert lease.held.is_set()
    assert spec(cluster)["holderIdentity"].startswith("a_")
    assert spec(cluster)["leaseDurationSeconds"] == 15
    assert spec(cluster)["leaseTransitions"] == 0
    assert spec(cluster)["renewTime"] == "2026-01-01T00:00:00.000000Z"


async def test_at_rest_it_writes_every_five_seconds_and_only_the_lease(cluster, clock):
    lease = elector(cluster, clock)
    async with running(lease):
        await clock.advance(0)
        before = len(cluster.requests)
        await clock.advance(60)
        assert lease.holds()
        assert [(r.verb, r.kind.kind) for r in cluster.requests[before:]] == [
            ("replace", "Lease")
        ] * 12


async def test_of_two_only_one_holds_and_the_other_waits(cluster, clock):
    first, second = elector(cluster, clock, "a"), elector(cluster, clock, "b")
    async with running(first), running(second):
        for _ in range(60):
            await clock.advance(1)
            assert [first.holds(), second.holds()] == [True, False]


async def test_two_processes_of_one_name_are_two_holders(cluster, clock):
    first, second = elector(cluster, clock, "a"), elector(cluster, clock, "a")
    async with running(first), running(second):
        await clock.advance(60)
        assert [first.holds(), second.holds()] == [True, False]


async def crashed(cluster: FakeCluster, clock: FakeClock, *, pod_uid: str) -> None:
    """A process of pod ``a`` held the Lease, and released nothing."""
    async with running(elector(cluster, clock, pod_uid=pod_uid)):
        await clock.advance(1)
    assert spec(cluster)["holderIdentity"].startswith(f"a_{pod_uid}_")


async def test_a_container_that_starts_again_takes_the_lease_of_its_pod_at_once(cluster, clock):
    await crashed(cluster, clock, pod_uid="uid-1")
    again = elector(cluster, clock, pod_uid="uid-1")
    async with running(again):
        await clock.advance(0)
        assert again.holds()
    assert spec(cluster)["leaseTransitions"] == 1


@pytest.mark.parametrize("pod_uid", ["uid-2", "uid-", "uid", ""])
async def test_another_pod_of_the_same_name_waits_until_the_lease_is_over(cluster, clock, pod_uid):
    # The node of the first may be cut off, and its process alive.
    await crashed(cluster, clock, pod_uid="uid-1")
    other = elector(cluster, clock, pod_uid=pod_uid)
    async with running(other):
        await clock.advance(14)
        assert not other.holds()
        await clock.advance(4)
        assert other.holds()


async def test_a_process_whose_pod_took_the_lease_from_it_ends_at_its_next_renewal(cluster, clock):
    # No kubelet lets that happen; if one did, it would be told by the Lease itself.
    first, second = (elector(cluster, clock, pod_uid="uid-1") for _ in range(2))
    async with running(first):
        await clock.advance(1)
        async with running(second):
            await clock.advance(5)
            assert first.lost.is_set()
            assert [first.holds(), second.holds()] == [False, True]


async def test_a_lease_is_expired_only_once_it_was_seen_unchanged_for_its_duration(cluster, clock):
    theirs(cluster, renewTime="2001-01-01T00:00:00.000000Z", leaseTransitions=3)
    lease = elector(cluster, clock)
    async with running(lease):
        await clock.advance(14)
        assert not lease.holds()
        cluster.edit(LEASE, "ns", "kvtier", {"spec": {"renewTime": "2001-01-01T00:00:01.000000Z"}})
        await clock.advance(14)
        assert not lease.holds(), "it was renewed meanwhile"
        await clock.advance(4)
        assert lease.holds()
    assert spec(cluster)["leaseTransitions"] == 4


async def test_a_renew_time_in_the_future_of_another_machine_does_not_lock_us_out(cluster, clock):
    theirs(cluster, renewTime="2099-01-01T00:00:00.000000Z")
    lease = elector(cluster, clock)
    async with running(lease):
        await clock.advance(17)
        assert lease.holds()


async def test_a_jump_of_the_wall_clock_loses_nothing(cluster, clock):
    lease = elector(cluster, clock)
    async with running(lease):
        await clock.advance(1)
        clock._start = datetime(2040, 1, 1, tzinfo=UTC)
        await clock.advance(30)
        assert lease.holds()


async def test_while_the_server_is_away_it_holds_for_ten_seconds_and_not_one_more(cluster, clock):
    lease = elector(cluster, clock)
    async with running(lease):
        await clock.advance(0)
        cluster.fail(unavailable(), times=1000)
        await clock.advance(9.9)
        assert lease.holds()
        assert lease.remaining() == pytest.approx(0.1)
        await clock.advance(0.2)
        assert not lease.holds()
        assert lease.remaining() < 0


async def test_after_an_outage_in_which_nobody_took_it_it_is_held_again(cluster, clock):
    regained: list[float] = []
    lease = elector(cluster, clock)
    lease._on_regained = lambda: regained.append(clock.monotonic())
    async with running(lease) as task:
        await clock.advance(0)
        cluster.fail(unavailable(), times=90)
        await clock.advance(60)
        assert not lease.holds()
        await clock.advance(60)
        assert lease.holds()
        assert not task.done()
        assert len(regained) == 1
        before = len(cluster.requests)
        await clock.advance(60)
        assert len(cluster.requests) - before == 12, "as often as before"
        assert len(regained) == 1


async def test_who_comes_back_after_another_has_held_it_is_told_so_and_writes_nothing(
    cluster, clock
):
    first, second = elector(cluster, clock, "a"), elector(cluster, clock, "b")
    get, replace = cluster.get, cluster.replace
    async with running(first) as task:
        await clock.advance(0)

        async def away(*_):
            raise unavailable()

        cluster.get = cluster.replace = away
        await clock.advance(20)

        async def never(obj):
            raise AssertionError(f"wrote {obj}")

        cluster.get, cluster.replace = get, never
        taken = {**cluster.peek(LEASE, "ns", "kvtier")}
        cluster.edit(LEASE, "ns", "kvtier", {"spec": {"holderIdentity": second._identity}})
        await clock.advance(2)
        assert (first.holds(), first.lost.is_set(), task.done()) == (False, True, True)
        cluster.replace = replace
    assert taken["spec"]["holderIdentity"].startswith("a_")
    assert spec(cluster)["holderIdentity"] == second._identity


async def test_who_comes_back_to_a_lease_that_was_taken_and_released_is_told_so(cluster, clock):
    lease = elector(cluster, clock)
    async with running(lease) as task:
        await clock.advance(0)
        cluster.fail(unavailable(), times=12)
        await clock.advance(11)
        assert not lease.holds()
        cluster.edit(LEASE, "ns", "kvtier", {"spec": {"holderIdentity": None}})
        await clock.advance(20)
        assert lease.lost.is_set()
        assert task.done()


async def test_a_lease_that_ran_out_and_is_gone_is_not_made_again(cluster, clock):
    lease = elector(cluster, clock)
    async with running(lease):
        await clock.advance(0)
        cluster.fail(unavailable(), times=12)
        await clock.advance(11)
        assert not lease.holds()
        cluster.remove(LEASE, "ns", "kvtier")
        await clock.advance(20)
        assert lease.lost.is_set()
    assert cluster.peek(LEASE, "ns", "kvtier") is None


async def test_a_request_that_hangs_is_given_up_when_the_lease_runs_out(cluster, clock):
    lease = elector(cluster, clock)
    async with running(lease):
        await clock.advance(0)
        replace = cluster.replace

        async def hanging(obj):
            await asyncio.Event().wait()
            return await replace(obj)

        cluster.replace = hanging
        await clock.advance(10.1)
        assert not lease.holds()
        cluster.replace = replace
        await clock.advance(2)
        assert lease.holds()


async def test_a_short_outage_is_ridden_out_and_the_pace_is_as_before(cluster, clock):
    lease = elector(cluster, clock)
    async with running(lease):
        await clock.advance(0)
        cluster.fail(unavailable(), times=4)
        await clock.advance(20)
        before = len(cluster.requests)
        await clock.advance(60)
        assert lease.holds()
        assert len(cluster.requests) - before == 12


async def test_a_slow_renewal_counts_from_when_it_was_sent(cluster, clock):
    lease = elector(cluster, clock)
    async with running(lease):
        await clock.advance(0)
        replace = cluster.replace

        async def slow(obj):
            cluster.replace = replace
            answer = await replace(obj)
            await clock.wait(asyncio.Event(), 3)
            cluster.fail(unavailable(), times=1000)
            return answer

        cluster.replace = slow
        await clock.advance(14.9)
        assert lease.holds()
        await clock.advance(0.2)
        assert not lease.holds(), "sent at 5 s, answered at 8 s: good until 15 s"


async def test_a_renewal_whose_answer_was_lost_does_not_lose_the_lease(cluster, clock):
    lease = elector(cluster, clock)
    async with running(lease):
        await clock.advance(0)
        cluster.fail(unavailable(), verb="replace", when="after")
        await clock.advance(60)
        assert lease.holds()


async def test_an_acquisition_whose_answer_was_lost_is_recognised(cluster, clock):
    lease = elector(cluster, clock)
    cluster.fail(unavailable(), verb="post", when="after")
    async with running(lease):
        await clock.advance(2)
        assert lease.holds()


async def test_who_finds_another_holder_stops_at_once(cluster, clock):
    lease = elector(cluster, clock)
    async with running(lease) as task:
        await clock.advance(1)
        cluster.edit(LEASE, "ns", "kvtier", {"spec": {"holderIdentity": "other"}})
        await clock.advance(5)
        assert (lease.holds(), lease.lost.is_set(), task.done()) == (False, True, True)
    assert spec(cluster)["holderIdentity"] == "other"


async def test_a_deleted_lease_is_made_again(cluster, clock):
    lease = elector(cluster, clock)
    async with running(lease):
        await clock.advance(1)
        cluster.remove(LEASE, "ns", "kvtier")
        await clock.advance(5)
        assert lease.holds()
    assert spec(cluster)["holderIdentity"].startswith("a_")


async def test_stopping_releases_so_that_the_next_need_not_wait(cluster, clock):
    first, second = elector(cluster, clock, "a"), elector(cluster, clock, "b")
    async with running(first) as task, running(second):
        await clock.advance(7)
        first.stop()
        await clock.advance(0)
        assert (first.holds(), first.lost.is_set(), task.done()) == (False, True, True)
        assert "holderIdentity" not in spec(cluster)
        await clock.advance(1)
        assert second.holds()
        assert spec(cluster)["leaseTransitions"] == 1


async def test_stopping_before_it_was_held_writes_nothing(cluster, clock):
    theirs(cluster)
    lease = elector(cluster, clock)
    async with running(lease) as task:
        await clock.advance(2)
        lease.stop()
        await clock.advance(0)
        assert task.done()
    assert list(cluster.writes) == []


async def test_two_that_race_for_a_free_lease_do_not_both_get_it(cluster, clock):
    electors = [elector(cluster, clock, str(n)) for n in range(5)]
    tasks = [asyncio.create_task(each.run()) for each in electors]
    await clock.advance(3)
    assert sum(each.holds() for each in electors) == 1
    for each in electors:
        each.stop()
    await clock.advance(3)
    await asyncio.gather(*tasks)


LABELS = {"app.kubernetes.io/name": "kvtier"}


@pytest.mark.parametrize("before", [None, {"team": "x"}], ids=["new", "taken over"])
async def test_the_lease_has_the_label_by_which_kvtier_status_finds_it(cluster, clock, before):
    if before is not None:
        theirs(cluster, holderIdentity="")
        cluster.edit(LEASE, "ns", "kvtier", {"metadata": {"labels": before}})
    async with running(elector(cluster, clock)):
        await clock.advance(0)
    labels = cluster.peek(LEASE, "ns", "kvtier")["metadata"]["labels"]
    assert labels == LABELS | (before or {})
