"""What a load test sees of ranks that die, hang, deny, or hand out the wrong bytes."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from driving import BUSY, LOAD, SIZE, Watch, drive, until_read
from local_tier import LocalTier, NewLocalTier
from valkey_servers import running_server

from kvtier.generation.acl import acl_file
from kvtier.loadtest.connection import load
from kvtier.loadtest.engine import Engine
from kvtier.loadtest.measures import Outage
from kvtier.loadtest.report import Results, exit_code
from kvtier.store.failure import Kind
from kvtier.store.values import header, identity, payload


def foreign_value(local: LocalTier, at: int, under: bytes, /, **other: str | int | bytes) -> None:
    """Store a whole value under a rank's key that says it is ``other``'s."""
    connection = load(local.secret)
    fields: dict[str, Any] = {
        "tier": f"{connection.namespace}/{connection.tier}",
        "generation": connection.generation,
        "rank": at,
        "key": under,
    }
    owner = identity(**{**fields, **other})
    head = header(owner, writer="test", size=SIZE)
    local.engine(at).set(under, head + b"".join(payload(owner, SIZE - len(head))))


def wrong(results: Results) -> tuple[int, int, int]:
    """Corrupt, foreign and stale values over all ranks."""
    ranks = results.ranks
    return (
        sum(rank.corrupt for rank in ranks),
        sum(rank.foreign for rank in ranks),
        sum(rank.stale for rank in ranks),
    )


ONE = replace(LOAD, prefixes=1, prefix_tokens=2048)


@pytest.fixture
def filled(local_tier: NewLocalTier) -> LocalTier:
    """A tier of two ranks that holds one prompt of eight chunks."""
    tier = local_tier()
    drive(tier.secret, workload=ONE, during=until_read(8))
    assert [len(tier.keys(rank)) for rank in (0, 1)] == [8, 8]
    return tier


def test_what_the_same_load_stored_is_right(filled: LocalTier) -> None:
    results = drive(filled.secret, workload=ONE, during=until_read(24))
    assert wrong(results) == (0, 0, 0)
    assert exit_code(results) == 0
    assert {each.hit_tokens for each in results.completed} <= {2048}
    assert sum(rank.bytes_written for rank in results.ranks) == 0


def test_a_flipped_bit_a_torn_value_and_a_short_one_are_corrupt(filled: LocalTier) -> None:
    first, second, third = filled.keys(0)[:3]
    client = filled.engine(0)
    flipped = bytearray(client.get(first))
    flipped[-1] ^= 1
    client.set(first, bytes(flipped))
    client.set(second, client.get(second)[: SIZE // 2] + client.get(third)[SIZE // 2 :])
    client.set(third, client.get(third)[:-1])
    results = drive(filled.secret, workload=ONE, during=until_read(24))
    corrupt, *others = wrong(results)
    assert corrupt >= 3
    assert corrupt % 3 == 0, "a request saw some of them only"
    assert others == [0, 0]
    assert exit_code(results) == 1


@pytest.mark.parametrize(
    "other", [{"rank": 1}, {"key": b"another"}, {"tier": "models/another"}], ids=str
)
def test_a_whole_value_of_another_rank_key_or_tier_is_foreign(
    other: dict[str, str | int | bytes], filled: LocalTier
) -> None:
    foreign_value(filled, 0, filled.keys(0)[3], **other)
    corrupt, foreign, stale = wrong(drive(filled.secret, workload=ONE, during=until_read(24)))
    assert foreign >= 1
    assert (corrupt, stale) == (0, 0)


def test_a_value_of_another_generation_is_stale_until_it_is_stored_again(
    filled: LocalTier,
) -> None:
    foreign_value(filled, 1, filled.keys(1)[0], generation="0123456789ab")

    def mended(engine: Engine, watch: Watch) -> None:
        watch.until(lambda: engine.ranks[1].measures().bytes_written == SIZE, what="stored again")

    corrupt, foreign, stale = wrong(drive(filled.secret, workload=ONE, during=mended))
    assert stale >= 1
    assert (corrupt, foreign) == (0, 0)
    assert wrong(drive(filled.secret, workload=ONE, during=until_read(8))) == (0, 0, 0)


def test_a_killed_rank_is_an_outage_with_its_end_and_the_others_go_on(
    local_tier: NewLocalTier,
) -> None:
    tier = local_tier()

    def kill_and_start_again(engine: Engine, watch: Watch) -> None:
        watch.until(lambda: watch.read(1), what="hits")
        os.kill(tier.servers[1].pid, signal.SIGKILL)
        watch.until(watch.outages, what="an outage")
        written = engine.ranks[0].measures().bytes_written
        assert written
        with again(tier, 1):
            watch.until(lambda: watch.outages()[-1].end, what="the end of the outage")
            read = watch.read(1)
            watch.until(lambda: watch.read(1) > read, what="hits again")

    results = drive(tier.secret, workload=BUSY, during=kill_and_start_again)
    assert {outage.rank for outage in results.outages} == {1}
    first = results.outages[0]
    assert first.kind in (Kind.RESET, Kind.REFUSED)
    assert first.end is not None
    assert first.begin < first.end
    lost, kept = results.ranks[1], results.ranks[0]
    assert lost.errors >= 1
    assert kept.errors == 0
    assert wrong(results) == (0, 0, 0)
    assert exit_code(results) == 0


@contextmanager
def again(tier: LocalTier, rank: int) -> Iterator[None]:
    """The rank's server once more, empty, at its old address."""
    old = tier.servers[rank]
    with running_server(
        old.version,
        directory=old.acl_file.parent,
        acl=acl_file(tier.record, rank=rank),
        port=old.port,
    ):
        yield


def test_a_hung_rank_stalls_requests_once_for_the_request_timeout(local_tier: NewLocalTier) -> None:
    tier = local_tier()
    limit = 0.5
    tier.change(requestTimeoutSeconds=limit)

    def hang(_: Engine, watch: Watch) -> None:
        watch.until(lambda: watch.read(0), what="hits")
        os.kill(tier.servers[0].pid, signal.SIGSTOP)
        try:
            watch.until(watch.outages, what="an outage")
            # Long enough for many more requests, each of which finds the rank down.
            time.sleep(2 * limit)
        finally:
            os.kill(tier.servers[0].pid, signal.SIGCONT)
        watch.until(lambda: watch.outages()[-1].end, what="the end of the outage")
        read = watch.read(0)
        watch.until(lambda: watch.read(0) > read, what="hits again")

    results = drive(tier.secret, workload=BUSY, during=hang)
    hung = results.ranks[0]
    # A store may have hung a little before, and the look-up have waited behind it.
    assert limit / 2 <= hung.longest_stall < 3 * limit
    assert hung.stall_seconds < 3 * limit, "more than the first request waited"
    assert hung.errors > 10
    (outage,) = results.outages
    assert (outage.rank, outage.kind) == (0, Kind.TIMEOUT)
    assert outage.end is not None
    assert outage.end - outage.begin >= 2 * limit


def test_a_swapped_address_is_denied_and_never_another_ranks_bytes(
    local_tier: NewLocalTier,
) -> None:
    tier = local_tier()
    drive(tier.secret, workload=BUSY, during=until_read(8))
    first, second = tier.connection()["ranks"]
    tier.change(ranks=[{**first, "port": second["port"]}, {**second, "port": first["port"]}])
    results = drive(tier.secret, seconds=1.0)
    assert {(outage.rank, outage.kind) for outage in results.outages} == {
        (0, Kind.DENIED),
        (1, Kind.DENIED),
    }
    assert sum(rank.bytes_read + rank.bytes_written for rank in results.ranks) == 0
    assert sum(each.hit_tokens for each in results.completed) == 0
    assert results.completed, "a tier that denies is a miss, not an end"
    assert exit_code(results) == 1


def test_a_fenced_generation_is_a_miss_without_a_stall(local_tier: NewLocalTier) -> None:
    tier = local_tier()

    def denied(outages: list[Outage]) -> list[int]:
        """The ranks that deny to the end."""
        lasting = [outage for outage in outages if outage.end is None]
        return sorted(outage.rank for outage in lasting if outage.kind is Kind.DENIED)

    def fence(engine: Engine, watch: Watch) -> None:
        watch.until(lambda: watch.read(0), what="hits")
        for rank in (0, 1):
            tier.operator(rank).execute_command("ACL", "SETUSER", tier.token, "resetkeys")
        watch.until(lambda: denied(watch.outages()) == [0, 1], what="two denied ranks")
        errors = engine.ranks[0].measures().errors
        more = errors + 5
        watch.until(lambda: engine.ranks[0].measures().errors > more, what="more requests")

    results = drive(tier.secret, workload=BUSY, during=fence)
    # What was in flight when access went may still have been good.
    assert denied(results.outages) == [0, 1]
    assert max(rank.longest_stall for rank in results.ranks) < tier.request_timeout


def test_a_wrong_token_reaches_nothing_and_is_told_nowhere(local_tier: NewLocalTier) -> None:
    tier = local_tier()
    tier.change(password="kvtt-00", username="kvtt-00")
    results = drive(tier.secret, seconds=0.3)
    assert {outage.kind for outage in results.outages} == {Kind.DENIED}
    assert exit_code(results) == 1
    assert all("kvtt-" not in outage.reason for outage in results.outages)


def test_a_user_and_its_password_are_sent_in_that_order(local_tier: NewLocalTier) -> None:
    tier = local_tier()
    for rank in (0, 1):
        prefix = tier.connection()["ranks"][rank]["prefix"]
        tier.operator(rank).execute_command(
            *("ACL", "SETUSER", "ann", "on", ">secret", f"~{prefix}@*"),
            *("+auth", "+get", "+set", "+exists"),
        )
    tier.change(username="ann", password="secret")
    results = drive(tier.secret, workload=BUSY, during=until_read(8))
    assert exit_code(results) == 0
    assert not results.outages


def test_the_bytes_moved_never_pass_the_bound(local_tier: NewLocalTier) -> None:
    tier = local_tier()
    most = 100 * SIZE
    results = drive(tier.secret, seconds=30, workload=BUSY, max_bytes=most)
    moved = sum(rank.bytes_read + rank.bytes_written for rank in results.ranks)
    assert 50 * SIZE < moved <= most
    assert results.seconds < 30


def test_the_time_ends_a_run_that_cannot_keep_up(local_tier: NewLocalTier) -> None:
    tier = local_tier()
    tier.change(prefillRate=[{"tokens": 0, "tokensPerSecond": 100}])
    before = set(threading.enumerate())
    begun = time.monotonic()
    results = drive(tier.secret, seconds=0.5, workload=BUSY)
    assert time.monotonic() - begun < 10
    assert results.requests > 5
    assert not results.completed
    assert set(threading.enumerate()) <= before
