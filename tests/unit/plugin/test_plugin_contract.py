"""What LMCache asks of an L2 adapter, of the plugin's against real Valkey servers."""

import random
from types import SimpleNamespace
from typing import Any

import pytest
from plugin_kit import Chunk, Driver, NewDriver, Tier, key, keys

from kvtier_lmcache.l2_adapter import StripedL2Adapter, wire_key


def test_what_was_stored_is_found_and_loaded(driver: Driver) -> None:
    chunks, values = keys("prompt", 40), [bytes([number]) * 1000 for number in range(40)]
    stored = driver.store(chunks, values)
    assert stored.is_successful()
    assert stored.bytes_transferred() == 40_000
    assert driver.look_up(chunks) == [True] * 40
    assert driver.load(chunks, size=1000) == values
    driver.adapter.submit_unlock(chunks)


def test_what_was_not_stored_is_a_miss_wherever_it_stands(driver: Driver) -> None:
    chunks = keys("half", 50)
    driver.store(chunks[::2], [b"x" * 10] * 25)
    there = [number % 2 == 0 for number in range(50)]
    assert driver.look_up(chunks) == there
    assert driver.load(chunks, size=10) == [b"x" * 10 if each else None for each in there]


def test_a_chunk_of_another_size_is_a_miss_and_leaves_its_rank_there(driver: Driver) -> None:
    chunks = keys("sizes", 2)
    driver.store(chunks, [b"x" * 10, b"y" * 30])
    assert driver.load(chunks, size=20) == [None, None]
    assert driver.states() == ["closed"] * 3
    assert driver.load(chunks[:1], size=10) == [b"x" * 10]


def test_a_full_rank_drops_a_chunk_and_is_there_all_the_same(tier: Tier, driver: Driver) -> None:
    chunks = keys("full", 3)
    for rank in tier.ranks:
        assert rank.admin("CONFIG SET maxmemory 1") == [b"+OK\r\n"]
    try:
        assert not driver.store(chunks, [b"x" * 10] * 3).is_successful()
    finally:
        for rank in tier.ranks:
            rank.admin("CONFIG SET maxmemory 0")
    assert driver.states() == ["closed"] * 3
    assert driver.store(chunks, [b"x" * 10] * 3).is_successful()


def test_each_object_is_on_the_rank_of_its_chunks_hash_under_its_prefix(
    tier: Tier, driver: Driver
) -> None:
    objects = [
        key(f"striped {number}", kv_rank=kv_rank, group=group)
        for number in range(10)
        for kv_rank in (0x04000400, 0x04000401)
        for group in (0, 1)
    ]
    driver.store(objects, [b"v"] * len(objects))
    for each in objects:
        rank = int.from_bytes(each.chunk_hash, "big") % 3
        for number, holder in enumerate(tier.ranks):
            wire = f"{holder.prefix}@{wire_key(each)}"
            assert holder.admin(f"EXISTS {wire}") == [b":%d\r\n" % (number == rank)]


def test_a_key_is_written_as_stock_lmcache_writes_it() -> None:
    plain = key("x", kv_rank=0x08000800, group=17)
    salted = key("x", salt="tenant")
    digest = plain.chunk_hash.hex()
    assert wire_key(plain) == f"org/model@08000800@11@{digest}"
    assert wire_key(salted) == f"org/model@00000000@0@{digest}@tenant"
    native = pytest.importorskip(
        "lmcache.v1.distributed.l2_adapters.native_connector_l2_adapter",
        reason="LMCache's own writer: in tests/campaign-engines",
    )
    for each in (plain, salted):
        assert wire_key(each) == native._object_key_to_string(each)


def test_the_three_descriptors_are_not_the_same(driver: Driver) -> None:
    adapter = driver.adapter
    descriptors = {
        adapter.get_store_event_fd(),
        adapter.get_lookup_and_lock_event_fd(),
        adapter.get_load_event_fd(),
    }
    assert len(descriptors) == 3


def test_a_result_is_given_out_once(driver: Driver) -> None:
    driver.look_up(keys("once", 1))
    assert driver.adapter.query_lookup_and_lock_result(0) is None
    assert driver.adapter.query_load_result(0) is None


def test_a_task_of_nothing_ends(driver: Driver) -> None:
    assert driver.store([], []).is_successful()
    assert driver.look_up([]) == []
    assert driver.load([], size=1) == []


def test_keys_and_objects_must_be_as_many(driver: Driver) -> None:
    with pytest.raises(ValueError, match="1 keys and 2 objects"):
        driver.adapter.submit_store_task(keys("x", 1), [Chunk(b"x"), Chunk(b"x")])
    with pytest.raises(ValueError, match="2 keys and 1 objects"):
        driver.adapter.submit_load_task(keys("x", 2), [Chunk(b"x")])


def test_a_closed_adapter_takes_nothing_and_closes_twice(tier: Tier, new_driver: NewDriver) -> None:
    adapter = new_driver(tier).connected().adapter
    adapter.close()
    chunk = keys("closed", 1)
    lookup = adapter.submit_lookup_and_lock_task(chunk, {})
    store = adapter.submit_store_task(chunk, [Chunk(b"x")])
    load = adapter.submit_load_task(chunk, [Chunk(b"x")])
    found, loaded = adapter.query_lookup_and_lock_result(lookup), adapter.query_load_result(load)
    assert not found.test(0)
    assert not loaded.test(0)
    assert not adapter.pop_completed_store_tasks()[store].is_successful()
    assert adapter.report_status()["is_healthy"] is False
    adapter.close()


def test_parameters_that_cannot_work_are_one_line(tier: Tier) -> None:
    with pytest.raises(ValueError, match=r"^ranks: must be one with Shard"):
        StripedL2Adapter(tier.given(striping="Shard"))
    with pytest.raises(ValueError, match=r"^wrokers: no such field"):
        StripedL2Adapter(tier.given(wrokers=8))


def test_a_hit_shorter_than_the_minimum_is_none(tier: Tier, new_driver: NewDriver) -> None:
    driver = new_driver(tier, minimum_hit_chunks=5).connected()
    chunks = keys("short", 10)
    driver.store(chunks[:4], [b"x"] * 4)
    assert driver.look_up(chunks) == [False] * 10
    driver.store(chunks[4:5] + chunks[7:8], [b"x"] * 2)
    assert driver.look_up(chunks) == [True] * 5 + [False] * 2 + [True] + [False] * 2
    assert driver.adapter.report_status()["short_hits_suppressed"] == 1


def test_listeners_hear_what_was_stored_and_found(driver: Driver) -> None:
    heard: list[tuple[str, Any]] = []
    driver.adapter.register_listener(
        SimpleNamespace(
            on_l2_keys_stored=lambda keys, sizes: heard.append(("stored", (keys, sizes))),
            on_l2_keys_accessed=lambda keys: heard.append(("accessed", keys)),
        )
    )
    chunks = keys("heard", 2)
    driver.store(chunks[:1], [b"1234"])
    driver.look_up(chunks)
    assert heard == [("stored", (chunks[:1], [4])), ("accessed", chunks[:1])]


def test_a_listener_that_fails_keeps_no_result_back(driver: Driver) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("a listener's")

    driver.adapter.register_listener(
        SimpleNamespace(on_l2_keys_stored=fails, on_l2_keys_accessed=fails)
    )
    # More often than there are workers.
    for number in range(10):
        chunks = keys(f"failing listener {number}", 2)
        assert driver.store(chunks, [b"1234"] * 2).is_successful()
        assert driver.look_up(chunks) == [True, True]
        assert driver.load(chunks, size=4) == [b"1234"] * 2


def test_a_load_that_cannot_be_submitted_touches_no_buffer(driver: Driver) -> None:
    chunks = keys("not submitted", 40)
    driver.store(chunks, [b"1234"] * 40)
    buffers: list[Any] = [Chunk(bytes(4)) for _ in chunks]
    buffers[-1].byte_array = None
    with pytest.raises(TypeError):
        driver.adapter.submit_load_task(chunks, buffers)
    # What came before would have come first.
    assert driver.load(chunks, size=4) == [b"1234"] * 40
    assert [bytes(each.byte_array) for each in buffers[:-1]] == [bytes(4)] * 39


def test_no_result_is_dropped_however_late_it_is_asked_for(
    tier: Tier, new_driver: NewDriver
) -> None:
    adapter = new_driver(tier).adapter
    adapter.close()
    tasks = {adapter.submit_store_task([], []) for _ in range(10_000)}
    assert adapter.pop_completed_store_tasks().keys() == tasks


def test_the_status_has_the_counts_of_each_rank_and_no_token(
    tier: Tier, new_driver: NewDriver
) -> None:
    driver = new_driver(tier).connected()
    chunks = keys("counted", 30)
    driver.store(chunks[:20], [b"x" * 7] * 20)
    driver.look_up(chunks)
    driver.load(chunks[:20], size=7)
    status = driver.adapter.report_status()
    ranks = status["ranks"]
    assert status["is_healthy"]
    assert sum(each["hits"] for each in ranks) == sum(each["stored"] for each in ranks) == 20
    assert sum(each["misses"] for each in ranks) == 10
    assert sum(each["loaded_bytes"] for each in ranks) == 140
    assert min(each["hits"] for each in ranks) > 0
    assert "token-1" not in f"{status} {driver.adapter!r} {vars(driver.adapter)}"


def test_five_thousand_operations_are_those_of_a_dict(driver: Driver) -> None:
    chance = random.Random(6)
    model: dict[Any, bytes] = {}
    pool = keys("model", 200)
    for _ in range(250):
        # Twenty at once, each with keys of its own.
        chance.shuffle(pool)
        ends = []
        for first in range(0, 200, 10):
            some = pool[first : first + chance.randint(1, 10)]
            match chance.choice(("store", "look up", "load")):
                case "store":
                    values = [chance.randbytes(16) for _ in some]
                    model |= dict(zip(some, values, strict=True))
                    ends.append((driver.storing(some, values), [True]))
                case "look up":
                    ends.append((driver.looking_up(some), [each in model for each in some]))
                case "load":
                    ends.append((driver.loading(some, size=16), [model.get(e) for e in some]))
        for ended, expected in ends:
            assert ended() == expected
    assert driver.adapter.report_status()["ranks"][0]["failures"] == 0
