"""A purge removes exactly what is its generation's, at a pace, and stops when it must."""

from collections.abc import Callable
from itertools import count
from math import inf

import pytest
from rank_under_test import RankUnderTest

from kvtier.store.fake import FakeServer, FakeStores, Fault
from kvtier.store.protocol import Address, Credentials, StoreUnreachable
from kvtier.store.purge import Pace, Purged, purge

ADDRESS = Address("127.0.0.1", 6379)
OPERATOR = Credentials("operator", "secret")
PREFIX = "kvt-0123456789ab-r3"
OTHERS = (b"kvt-0123456789ab-r30@0", b"kvt-0123456789ac-r3@0", b"kvt-0123456789ab-r3", b"xkvt@0")
FAST = Pace(share=1.0, small_share=1.0, scan=100)


def keys(prefix: str, number: int) -> set[bytes]:
    return {f"{prefix}@model@01000100@0@{index:08x}".encode() for index in range(number)}


async def test_it_removes_exactly_the_keys_of_its_prefix(rank: RankUnderTest) -> None:
    mine = keys(rank.prefix, 3000) | {rank.prefix.encode() + b"@\xff\xfe"}
    others = keys("kvt-aaaaaaaaaaaa-r3", 2000) | keys(f"{rank.prefix}0", 500)
    others |= {rank.prefix.encode(), b"x" + rank.prefix.encode() + b"@0"}
    rank.write_keys(mine | others)
    async with rank.session() as store:
        purged = await purge(store, prefix=rank.prefix, leads=lambda: True, pace=FAST)
        left = set[bytes]()
        cursor = 0
        while True:
            cursor, found = await store.scan(cursor, match="*", count=1000)
            left |= set(found)
            if cursor == 0:
                break
        assert left == others
        assert purged.keys == len(mine)
        assert purged.whole
        # About 5,500 keys at 100 a step.
        assert 40 <= purged.steps <= 80
        again = await purge(store, prefix=rank.prefix, leads=lambda: True, pace=FAST)
        assert (again.keys, again.whole) == (0, True)


async def test_a_prefix_is_no_pattern(rank: RankUnderTest) -> None:
    rank.write_keys([b"kvt-*@1", b"kvt-a@1"])
    async with rank.session() as store:
        assert (await purge(store, prefix="kvt-*", leads=lambda: True, pace=FAST)).keys == 1
        assert await store.unlink("kvt-a@1") == 1


class Time:
    """A clock that only waiting moves, and commands by what ``cost`` says of their keys."""

    def __init__(self, server: FakeServer, cost: Callable[[int], float]) -> None:
        self.now = 0.0
        self.busy = 0.0
        self.slept = 0.0
        self._server = server
        self._cost = cost
        self._seen = 0

    def clock(self) -> float:
        for call in self._server.calls[self._seen :]:
            if call.name in ("scan", "unlink"):
                number = len(call.arguments) if call.name == "unlink" else 0
                self.now += self._cost(number)
                self.busy += self._cost(number)
        self._seen = len(self._server.calls)
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.clock()
        self.now += seconds
        self.slept += seconds


def fake(number: int) -> FakeServer:
    server = FakeServer(acl_file="user operator on >secret ~* +scan +unlink +dbsize\n")
    server.keys = {key.decode() for key in keys(PREFIX, number) | set(OTHERS)}
    return server


async def run(
    server: FakeServer,
    *,
    time: Time,
    pace: Pace,
    leads: Callable[[], bool] = lambda: True,
    cursor: int = 0,
    most_seconds: float = inf,
) -> Purged:
    async with FakeStores({ADDRESS: server}).connect(ADDRESS, OPERATOR) as store:
        return await purge(
            store,
            prefix=PREFIX,
            leads=leads,
            pace=pace,
            cursor=cursor,
            most_seconds=most_seconds,
            clock=time.clock,
            sleep=time.sleep,
        )


def unlinks(server: FakeServer) -> list[int]:
    return [len(call.arguments) for call in server.calls if call.name == "unlink"]


@pytest.mark.parametrize("share", [0.05, 0.2, 0.9])
async def test_it_leaves_the_server_alone_for_the_rest_of_the_time(share: float) -> None:
    server = fake(1000)
    time = Time(server, lambda number: 0.0001 + number * 2e-6)
    purged = await run(server, time=time, pace=Pace(share=share, small_share=share))
    assert purged.keys == 1000
    assert time.busy / (time.busy + time.slept) == pytest.approx(share)
    assert purged.seconds == pytest.approx(time.busy + time.slept)


def test_waiting_for_a_slow_network_is_not_paid_for_by_pauses() -> None:
    pace = Pace(share=0.2, turn=0.001)
    assert [pace.pause(took, keys=1) for took in (0.0, 0.001, 0.002, 0.003, 5.0)] == pytest.approx(
        [0.0, 0.004, 0.008, 0.008, 0.008]
    )


def test_fewer_than_one_in_a_hundred_short_reads_meets_a_command_on_many_keys() -> None:
    pace = Pace()
    for keys in (pace.few + 1, pace.unlink, pace.scan):
        took = pace.small_turn
        assert took / (took + pace.pause(took, keys=keys)) <= 0.01 + 1e-9
        # Whatever a busy machine adds: so many keys are no more work.
        assert pace.pause(0.1, keys=keys) == pace.pause(took, keys=keys)
    assert 0.001 / (0.001 + pace.pause(0.001, keys=1)) == pytest.approx(pace.share)


async def test_small_values_go_many_at_a_time_and_large_ones_one_by_one() -> None:
    small, large = fake(2000), fake(50)
    await run(small, time=Time(small, lambda number: 0.0005 + number * 2e-6), pace=Pace())
    await run(large, time=Time(large, lambda number: 0.0005 + number * 0.0012), pace=Pace())
    assert max(unlinks(small)) > 50
    assert sum(unlinks(small)) == 2000
    assert set(unlinks(large)) == {1}


async def test_few_keys_among_many_others_go_together() -> None:
    server = fake(200)
    server.keys |= {f"other@{number}" for number in range(3_000)}
    purged = await run(server, time=Time(server, lambda number: 0.0005), pace=Pace(scan=20))
    assert purged.steps > 150
    assert sum(unlinks(server)) == 200
    assert len(unlinks(server)) < 15


async def test_a_slow_network_does_not_count_as_a_slow_server() -> None:
    server = fake(2000)
    await run(server, time=Time(server, lambda number: 0.05 + number * 2e-6), pace=Pace())
    assert max(unlinks(server)) > 50


def test_values_that_become_larger_shrink_the_batches_again() -> None:
    pace = Pace(turn=0.001, unlink=64)
    batches = [1]
    for longer in [0.0] * 8 + [0.0007] * 2 + [0.005] * 8:
        batches.append(pace.batch(batches[-1], longer=longer))
    assert batches == [1, 2, 4, 8, 16, 32, 64, 64, 64, 64, 64, 32, 16, 8, 4, 2, 1, 1, 1]


@pytest.mark.parametrize("asked", [0, 1, 2, 7, 20])
async def test_whoever_leads_no_more_removes_nothing_more(asked: int) -> None:
    server = fake(1000)
    answers = count()
    purged = await run(
        server,
        time=Time(server, lambda number: 0.0005),
        pace=Pace(scan=200),
        leads=lambda: next(answers) < asked,
    )
    assert not purged.whole
    assert purged.keys == 1000 + len(OTHERS) - len(server.keys)
    assert len([call for call in server.calls if call.name != "connect"]) == asked


async def test_a_lease_that_comes_back_resumes_no_purge_that_skipped_keys() -> None:
    server = fake(1000)
    answers = count()
    purged = await run(
        server,
        time=Time(server, lambda number: 0.0005),
        pace=Pace(),
        leads=lambda: next(answers) != 2,
    )
    assert not purged.whole
    assert len(server.keys) > len(OTHERS)


async def test_a_broken_session_ends_it_and_another_purge_does_the_rest() -> None:
    server = fake(1000)
    time = Time(server, lambda number: 0.0005)
    server.faults.append(Fault("unlink", StoreUnreachable("reset"), after=True))
    with pytest.raises(StoreUnreachable):
        await run(server, time=time, pace=Pace())
    left = len(server.keys) - len(OTHERS)
    assert 900 < left < 1000
    purged = await run(server, time=time, pace=Pace())
    assert (purged.keys, purged.whole) == (left, True)
    assert server.keys == {key.decode() for key in OTHERS}


@pytest.mark.parametrize("asked", range(24))
async def test_a_purge_that_was_stopped_anywhere_goes_on_and_skips_no_key(asked: int) -> None:
    server = fake(60)
    server.keys |= {f"other@{number}" for number in range(300)}
    time = Time(server, lambda number: 0.0005)
    answers = count()
    pace = Pace(scan=20)
    first = await run(server, time=time, pace=pace, leads=lambda: next(answers) < asked)
    assert not first.whole
    rest = await run(server, time=time, pace=pace, cursor=first.cursor)
    assert rest.whole
    assert first.keys + rest.keys == 60
    assert not {key for key in server.keys if key.startswith(f"{PREFIX}@")}


async def test_a_purge_in_short_slices_removes_all() -> None:
    server = fake(500)
    time = Time(server, lambda number: 0.0005)
    cursor, slices, removed, whole = 0, 0, 0, False
    while not whole:
        found = await run(server, time=time, pace=Pace(scan=50), cursor=cursor, most_seconds=0.003)
        cursor, whole, removed = found.cursor, found.whole, removed + found.keys
        slices += 1
    assert removed == 500
    assert slices > 3
