"""Walking through keys and removing them, on the fake and on real servers alike."""

import pytest
from rank_under_test import RankUnderTest

from kvtier.store.protocol import Store, StoreDenied


async def walk(store: Store, *, match: str, count: int) -> tuple[list[bytes], int]:
    """All keys that one whole walk gives, and its number of steps."""
    found, cursor, steps = list[bytes](), 0, 0
    while True:
        cursor, keys = await store.scan(cursor, match=match, count=count)
        found += keys
        steps += 1
        if cursor == 0:
            return found, steps


async def test_an_empty_rank_is_walked_in_one_step(rank: RankUnderTest) -> None:
    async with rank.session() as store:
        assert await store.scan(0, match="*", count=10) == (0, [])


async def test_a_walk_finds_each_key_that_matches_and_no_other(rank: RankUnderTest) -> None:
    mine = {f"{rank.prefix}@{number}".encode() for number in range(500)}
    rank.write_keys(mine | {f"other@{number}".encode() for number in range(500)})
    async with rank.session() as store:
        found, steps = await walk(store, match=f"{rank.prefix}@*", count=50)
        assert set(found) == mine
        assert 10 <= steps <= 25
        assert len((await walk(store, match="*", count=1000))[0]) >= 1000


async def test_a_walk_finds_what_stays_while_other_keys_go(rank: RankUnderTest) -> None:
    mine = {f"{rank.prefix}@{number}".encode() for number in range(300)}
    rank.write_keys(mine | {b"other@%d" % number for number in range(300)})
    found: set[bytes] = set()
    async with rank.session() as store:
        cursor = 0
        while True:
            cursor, keys = await store.scan(cursor, match="*", count=20)
            found |= {key for key in keys if key in mine}
            await store.unlink(*(key for key in keys if key not in mine))
            if cursor == 0:
                break
        assert found == mine
        assert await store.dbsize() == len(mine)


async def test_keys_of_any_bytes_are_found_and_removed(rank: RankUnderTest) -> None:
    odd = {rank.prefix.encode() + b"@\xff\x00 \r\n$1", rank.prefix.encode() + b"@\xc3\xa9"}
    rank.write_keys(odd)
    async with rank.session() as store:
        found, _ = await walk(store, match=f"{rank.prefix}@*", count=100)
        assert set(found) == odd
        assert await store.unlink(*found) == 2
        assert await store.dbsize() == 0


async def test_unlink_counts_what_was_there(rank: RankUnderTest) -> None:
    rank.write_keys([b"a", b"b", b"c"])
    async with rank.session() as store:
        assert await store.unlink("a", b"b", "nowhere") == 2
        assert await store.unlink() == 0
        assert await store.dbsize() == 1


async def test_the_probe_removes_its_own_keys_only(rank: RankUnderTest) -> None:
    rank.write_keys([b"kvt-probe-r3@x", b"elsewhere"])
    token = rank.record.probe_token
    async with rank.session("probe", password=token) as probe:
        with pytest.raises(StoreDenied):
            await probe.unlink("kvt-probe-r3@x", "elsewhere")
        assert await probe.unlink("kvt-probe-r3@x") == 1
