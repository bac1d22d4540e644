"""A rank that is not there is a miss, at once, and comes back by itself."""

import logging
import signal
import threading
from contextlib import ExitStack
from pathlib import Path
from socket import SO_REUSEADDR, SOL_SOCKET, socket
from time import monotonic, sleep
from typing import Any

import pytest
from plugin_kit import PATIENCE, Chunk, Driver, NewDriver, NewTier, Tier, keys

REQUEST = 0.5
"""Seconds for a request, where a test lets one time out."""
AT_ONCE = 1.0
"""No look-up from the second on takes longer."""
BACK = 5.0
"""Seconds until a rank that is there again has hits."""
SLACK = 3.0


def of_rank(name: str, rank: int, *, ranks: int, count: int = 64) -> list[Any]:
    """Keys of chunks that are all on one rank."""
    found: list[Any] = []
    number = 0
    while len(found) < count:
        (each,) = keys(f"{name} {number}", 1)
        number += 1
        if int.from_bytes(each.chunk_hash, "big") % ranks == rank:
            found.append(each)
    return found


def seconds_of_miss(driver: Driver, chunks: list[Any]) -> float:
    begun = monotonic()
    assert driver.look_up(chunks) == [False] * len(chunks)
    return monotonic() - begun


def hits_again(driver: Driver, chunks: list[Any]) -> float:
    begun = monotonic()
    while not all(driver.look_up(chunks)):
        assert monotonic() - begun < BACK * SLACK
        sleep(0.02)
    return monotonic() - begun


def test_a_killed_rank_is_a_miss_and_the_other_ranks_are_hits(
    new_tier: NewTier, new_driver: NewDriver
) -> None:
    tier = new_tier(ranks=2)
    driver = new_driver(tier, request_timeout=REQUEST).connected()
    dead, alive = (of_rank("killed", rank, ranks=2) for rank in (0, 1))
    driver.store(dead + alive, [b"x"] * 128)
    tier.ranks[0].stop()
    seconds_of_miss(driver, dead)
    assert max(seconds_of_miss(driver, dead) for _ in range(3)) < AT_ONCE
    assert driver.look_up(dead + alive) == [False] * 64 + [True] * 64
    assert driver.load(dead[:1] + alive[:1], size=1) == [None, b"x"]
    assert not driver.store(dead[:1], [b"x"]).is_successful()
    status = driver.adapter.report_status()
    assert status["is_healthy"]
    assert [each["breaker"] == "closed" for each in status["ranks"]] == [False, True]

    tier.ranks[0].start()
    driver.reach("closed", within=BACK * SLACK)
    assert driver.store(dead, [b"y"] * 64).is_successful()
    assert driver.load(dead, size=1) == [b"y"] * 64


def test_a_hung_rank_is_a_miss_and_comes_back(new_tier: NewTier, new_driver: NewDriver) -> None:
    tier = new_tier()
    driver = new_driver(tier, request_timeout=REQUEST, connection_timeout=1.0)
    driver.reach("closed")
    chunks = of_rank("hung", 0, ranks=1)
    driver.store(chunks, [b"x"] * 64)
    tier.ranks[0].signal(signal.SIGSTOP)
    # Not 64 / 4 timeouts: the first one ends them all.
    assert seconds_of_miss(driver, chunks) < 2 * REQUEST * SLACK
    assert max(seconds_of_miss(driver, chunks) for _ in range(3)) < AT_ONCE
    tier.ranks[0].signal(signal.SIGCONT)
    hits_again(driver, chunks)


def test_no_late_answer_is_written_into_a_buffer_that_was_given_back(
    new_tier: NewTier, new_driver: NewDriver
) -> None:
    tier = new_tier()
    driver = new_driver(tier, request_timeout=REQUEST, connection_timeout=1.0, workers=1)
    driver.reach("closed")
    chunks = of_rank("late", 0, ranks=1, count=3)
    driver.store(chunks, [b"x" * 1000] * 3)
    tier.ranks[0].signal(signal.SIGSTOP)
    buffers = [Chunk(b"-" * 1000) for _ in chunks]
    task = driver.adapter.submit_load_task(chunks, buffers)
    loaded = driver.loaded(task)
    assert not any(loaded.test(at) for at in range(3))
    for each in buffers:
        each.byte_array[:] = b"n" * 1000
    tier.ranks[0].signal(signal.SIGCONT)
    hits_again(driver, chunks)
    assert [bytes(each.byte_array) for each in buffers] == [b"n" * 1000] * 3


def test_a_rank_that_is_down_at_the_start_is_a_miss_until_it_is_there(
    new_tier: NewTier, new_driver: NewDriver
) -> None:
    tier = new_tier()
    tier.ranks[0].stop()
    begun = monotonic()
    driver = new_driver(tier)
    chunks = of_rank("down", 0, ranks=1)
    assert driver.look_up(chunks) == [False] * 64
    assert monotonic() - begun < PATIENCE / 2
    assert driver.states() != ["closed"]
    tier.ranks[0].start()
    driver.reach("closed", within=BACK * SLACK)
    driver.store(chunks, [b"x"] * 64)
    assert driver.look_up(chunks) == [True] * 64


def test_a_rank_behind_a_network_that_drops_packets_is_a_miss_and_comes_back(
    new_tier: NewTier, new_driver: NewDriver
) -> None:
    tier = new_tier()
    (rank,) = tier.ranks
    rank.stop()
    with ExitStack() as hole:
        # A listener whose queue is full answers no SYN.
        full = hole.enter_context(socket())
        full.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        full.bind(("127.0.0.1", rank.port))
        full.listen(0)
        for _ in range(3):
            client = hole.enter_context(socket())
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", rank.port))
        begun = monotonic()
        driver = new_driver(tier, request_timeout=REQUEST, connection_timeout=1.0)
        chunks = of_rank("dropped", 0, ranks=1)
        seconds_of_miss(driver, chunks)
        assert monotonic() - begun < 1.0 * SLACK
        assert max(seconds_of_miss(driver, chunks) for _ in range(3)) < AT_ONCE
    rank.start()
    driver.reach("closed", within=BACK * SLACK)
    assert driver.store(chunks, [b"x"] * 64).is_successful()


def test_the_first_look_up_of_a_rank_that_is_fine_is_no_miss(
    new_tier: NewTier, new_driver: NewDriver
) -> None:
    tier = new_tier()
    chunks = of_rank("first", 0, ranks=1)
    new_driver(tier).connected().store(chunks, [b"x"] * 64)
    assert all(new_driver(tier).look_up(chunks))


def test_fenced_keys_are_misses_at_once_and_hits_after_it(
    new_tier: NewTier, new_driver: NewDriver
) -> None:
    tier = new_tier()
    (rank,) = tier.ranks
    driver = new_driver(tier).connected()
    chunks = of_rank("fenced", 0, ranks=1)
    driver.store(chunks, [b"x"] * 64)
    rank.admin(f"ACL SETUSER {rank.token} resetkeys")
    assert seconds_of_miss(driver, chunks) < AT_ONCE
    assert driver.load(chunks[:1], size=1) == [None]
    assert not driver.store(chunks[:1], [b"x"]).is_successful()
    assert driver.states() == ["closed"]
    rank.admin(f"ACL SETUSER {rank.token} ~{rank.prefix}@*")
    assert all(driver.look_up(chunks))


def test_a_user_that_is_off_is_a_rank_that_is_gone(
    new_tier: NewTier, new_driver: NewDriver
) -> None:
    tier = new_tier()
    (rank,) = tier.ranks
    driver = new_driver(tier, request_timeout=REQUEST).connected()
    chunks = of_rank("off", 0, ranks=1)
    driver.store(chunks, [b"x"] * 64)
    rank.admin(f"ACL SETUSER {rank.token} off", f"CLIENT KILL USER {rank.token}")
    seconds_of_miss(driver, chunks)
    assert max(seconds_of_miss(driver, chunks) for _ in range(3)) < AT_ONCE
    rank.admin(f"ACL SETUSER {rank.token} on")
    hits_again(driver, chunks)


def rotate(tier: Tier, *, to: str) -> None:
    """As a Secret's file is: replaced, never half written."""
    new = Path(f"{tier.credentials}.new")
    new.write_text(f"{to}\n")
    new.replace(tier.credentials)


def test_changed_credentials_are_taken_up_without_a_miss(
    new_tier: NewTier, new_driver: NewDriver
) -> None:
    tier = new_tier()
    (rank,) = tier.ranks
    driver = new_driver(tier).connected()
    chunks = of_rank("rotated", 0, ranks=1)
    driver.store(chunks, [b"x"] * 64)
    rank.admin(f"ACL SETUSER token-2 reset on >token-2 ~{rank.prefix}@* +@all")
    rotate(tier, to="token-2")
    begun = monotonic()
    # Those of the old user leave when the new ones have taken over; until then it is needed.
    old = f"user={rank.token} ".encode()
    while b"user=token-2 " not in (clients := rank.clients()) or old in clients:
        assert all(driver.look_up(chunks))
        assert monotonic() - begun < PATIENCE
    assert rank.admin(f"ACL DELUSER {rank.token}") == [b":1\r\n"]
    assert all(driver.look_up(chunks))
    assert driver.states() == ["closed"]


def test_new_credentials_that_do_not_work_leave_the_old_connections(
    new_tier: NewTier, new_driver: NewDriver
) -> None:
    tier = new_tier()
    driver = new_driver(tier).connected()
    chunks = of_rank("wrong", 0, ranks=1)
    driver.store(chunks, [b"x"] * 64)
    rotate(tier, to="no-such-token")
    begun = monotonic()
    while driver.adapter.report_status()["ranks"][0]["failures"] == 0:
        assert all(driver.look_up(chunks))
        assert monotonic() - begun < PATIENCE
    assert all(driver.look_up(chunks))
    assert driver.states() == ["closed"]


@pytest.mark.parametrize("contents", [None, "", "zulu\nyankee\nxray\n", "no-such-token"])
def test_credentials_that_cannot_be_used_are_a_rank_that_is_gone(
    new_tier: NewTier,
    new_driver: NewDriver,
    caplog: pytest.LogCaptureFixture,
    contents: str | None,
) -> None:
    tier = new_tier()
    if contents is None:
        tier.credentials.unlink()
    else:
        tier.credentials.write_text(contents)
    driver = new_driver(tier)
    with caplog.at_level(logging.WARNING):
        assert not any(driver.look_up(keys("x", 3)))
    assert driver.states() != ["closed"]
    for word in (contents or "").split():
        assert word not in caplog.text
    rotate(tier, to="token-1")
    driver.reach("closed", within=BACK * SLACK)


def test_closing_ends_what_waits_for_a_hung_rank(new_tier: NewTier, new_driver: NewDriver) -> None:
    tier = new_tier()
    driver = new_driver(tier, request_timeout=REQUEST, connection_timeout=1.0).connected()
    tier.ranks[0].signal(signal.SIGSTOP)
    task = driver.adapter.submit_lookup_and_lock_task(keys("x", 100), {})
    driver.adapter.close()
    found = driver.adapter.query_lookup_and_lock_result(task)
    assert found is not None
    assert not any(found.test(at) for at in range(100))
    begun = monotonic()
    while any(thread.name.startswith("kvtier") for thread in threading.enumerate()):
        assert monotonic() - begun < PATIENCE
        sleep(0.02)
