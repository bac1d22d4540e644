"""A rank that is asked each second: a real Valkey that is killed, stopped and started again."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from signals_kit import ACL
from valkey import Valkey
from valkey_servers import Server, free_port, running_server

from kvtier.limiter.ranks import FAILURES, TIMEOUT, RankWatch, is_refused
from kvtier.reconcile.clock import FakeClock, SystemClock
from kvtier.redact import new_token
from kvtier.store.client import connector
from kvtier.store.protocol import Address, Credentials, StoreUnreachable

TOKEN = new_token()


class Login:
    def __init__(self, port: int, token: str = TOKEN) -> None:
        self.port = port
        self.token = token
        self.refusals = 0

    def get(self, rank: int) -> tuple[Address, Credentials] | None:
        return Address("127.0.0.1", self.port), Credentials("limiter", self.token)

    def refused(self) -> None:
        self.refusals += 1


class Rank:
    """A rank, and who watches it."""

    def __init__(self, directory: Path, **options) -> None:
        self.directory = directory
        self.port = free_port()
        self.login = Login(self.port)
        self.clock = FakeClock()
        self.changes = 0
        self.watch = RankWatch(
            1,
            login=self.login,
            connect=connector(connect_seconds=TIMEOUT, reply_seconds=TIMEOUT),
            clock=self.clock,
            changed=self._changed,
            **options,
        )
        self._stack = ExitStack()
        self.server = self.start()

    def _changed(self) -> None:
        self.changes += 1

    def start(self) -> Server:
        self.server = self._stack.enter_context(
            running_server(
                "9.1", directory=self.directory, acl=ACL.format(token=TOKEN), port=self.port
            )
        )
        return self.server

    def kill(self) -> None:
        self._stack.close()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        os.kill(self.server.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.server.pid, signal.SIGCONT)

    async def look(self):
        await self.watch.look()
        found = self.watch.signal()
        assert found is not None
        return found

    async def close(self) -> None:
        stop = asyncio.Event()
        stop.set()
        await self.watch.run(stop)


@pytest.fixture
async def rank(tmp_path: Path):
    found = Rank(tmp_path)
    try:
        yield found
    finally:
        await found.close()
        found.kill()


def writer(rank: Rank) -> Valkey:
    return Valkey(port=rank.port, username="writer", password="x")


async def test_a_rank_tells_its_run_its_keys_its_memory_and_its_age(rank: Rank):
    assert rank.watch.signal() is None
    first = await rank.look()
    with writer(rank) as client:
        client.mset({f"key-{each}": "x" * 10_000 for each in range(200)})
        run = client.info("server")["run_id"]
    second = await rank.look()
    assert (first.rank, first.answers, first.keys) == (1, True, 0)
    assert (second.run_id, second.keys) == (run, 200)
    assert second.used_bytes > first.used_bytes + 1_500_000
    assert first.uptime is not None
    assert first.uptime < 60
    assert rank.changes == 1


async def test_one_session_serves_all_looks(rank: Rank):
    for _ in range(5):
        await rank.look()
    with writer(rank) as client:
        users = [each["user"] for each in client.client_list()]
    assert users.count("limiter") == 1


async def test_a_rank_that_is_killed_is_lost_at_the_next_look(rank: Rank):
    before = await rank.look()
    rank.kill()
    after = await rank.look()
    assert not after.answers
    assert (after.run_id, after.at) == (before.run_id, before.at)
    assert rank.changes == 2
    await rank.look()
    assert rank.changes == 2


async def test_a_rank_that_is_back_is_another_run(rank: Rank):
    before = await rank.look()
    rank.kill()
    await rank.look()
    rank.start()
    after = await rank.look()
    assert after.answers
    assert after.run_id not in ("", before.run_id)
    assert rank.changes == 3


async def test_a_rank_that_restarted_between_two_looks_is_found_by_the_second(rank: Rank):
    before = await rank.look()
    rank.kill()
    rank.start()
    after = await rank.look()
    assert after.answers
    assert after.run_id != before.run_id
    assert rank.changes == 2


async def test_a_rank_that_stands_still_is_lost_after_two_looks_and_then_the_same_run(rank: Rank):
    before = await rank.look()
    with rank.stopped():
        assert (await rank.look()).answers
        assert not (await rank.look()).answers
        assert FAILURES == 2
    after = await rank.look()
    assert (after.answers, after.run_id) == (True, before.run_id)


async def test_a_limiter_that_stood_still_itself_blames_no_rank(tmp_path: Path):
    seconds = iter(range(0, 1000, 10))
    rank = Rank(tmp_path, monotonic=lambda: float(next(seconds)))
    try:
        await rank.look()
        with rank.stopped():
            for _ in range(FAILURES + 1):
                assert (await rank.look()).answers
    finally:
        await rank.close()
        rank.kill()


async def test_a_rank_that_refuses_the_token_is_there_and_the_token_is_read_again(rank: Rank):
    rank.login.token = new_token()
    found = await rank.look()
    assert (found.answers, found.run_id, rank.login.refusals) == (True, "", 1)
    rank.login.token = TOKEN
    assert (await rank.look()).run_id


async def test_a_rank_that_nobody_can_log_in_to_yet_is_not_told_of(rank: Rank):
    rank.login.get = lambda rank: None  # type: ignore[method-assign]
    await rank.watch.look()
    assert rank.watch.signal() is None


async def test_a_rank_is_asked_once_a_second_and_its_session_is_closed_at_the_end(rank: Rank):
    stop = asyncio.Event()
    rank.watch._clock = SystemClock()
    task = asyncio.create_task(rank.watch.run(stop, delay=0.1))
    await asyncio.sleep(2.6)
    with writer(rank) as client:
        calls = client.info("commandstats")["cmdstat_info"]["calls"]
        assert [each["user"] for each in client.client_list()].count("limiter") == 1
    # The run once, then memory and keys each second; and the test's own.
    assert 4 <= calls <= 6
    stop.set()
    await asyncio.wait_for(task, 5)
    with writer(rank) as client:
        assert [each["user"] for each in client.client_list()].count("limiter") == 0


async def test_whether_a_port_refused_is_known_whatever_the_error_was_made_to():
    with pytest.raises(StoreUnreachable) as refused:
        async with connector()(Address("127.0.0.1", free_port()), Credentials("a", "b")):
            pass
    assert is_refused(refused.value)
    assert not is_refused(StoreUnreachable("no answer in time"))
    assert not is_refused(None)
