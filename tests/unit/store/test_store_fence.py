"""When a user's access counts as gone, on the fake and on real servers alike."""

import pytest
from rank_under_test import RankUnderTest

from kvtier.store.fence import access_gone


async def test_a_user_with_its_keys_has_access(rank: RankUnderTest) -> None:
    async with rank.session() as store:
        assert not await access_gone(store, rank.engine, prefix=rank.prefix)


async def test_without_keys_it_has_none_and_its_session_stays(rank: RankUnderTest) -> None:
    async with rank.session() as store, rank.session(rank.engine) as engine:
        await store.acl_setusers({rank.engine: (*rank.users[rank.engine], "resetkeys")})
        assert await access_gone(store, rank.engine, prefix=rank.prefix)
        await engine.ping()


async def test_a_user_that_is_not_there_has_none(rank: RankUnderTest) -> None:
    async with rank.session() as store:
        await store.acl_deluser(rank.engine)
        assert await access_gone(store, rank.engine, prefix=rank.prefix)


async def test_off_it_has_access_until_its_last_session_ends(rank: RankUnderTest) -> None:
    async with rank.session() as store, rank.session(rank.engine):
        await store.acl_setuser(rank.engine, ["off"])
        assert not await access_gone(store, rank.engine, prefix=rank.prefix)
        await store.client_kill(rank.engine)
        assert await access_gone(store, rank.engine, prefix=rank.prefix)


async def test_off_without_keys_it_has_none_whatever_is_open(rank: RankUnderTest) -> None:
    async with rank.session() as store, rank.session(rank.engine):
        await store.acl_setuser(rank.engine, ["off", "resetkeys"])
        assert await access_gone(store, rank.engine, prefix=rank.prefix)


async def test_keys_of_somebody_else_are_access_that_is_not_gone(rank: RankUnderTest) -> None:
    async with rank.session() as store:
        await store.acl_setuser(rank.engine, ["resetkeys", "~elsewhere@*"])
        assert not await access_gone(store, rank.engine, prefix=rank.prefix)


@pytest.mark.parametrize("command", ["get", "set"])
async def test_rules_that_getuser_shows_elsewhere_count(
    command: str, real_rank: RankUnderTest
) -> None:
    rank = real_rank
    async with rank.session() as store:
        await store.acl_setuser(rank.engine, ["resetkeys", f"(+{command} ~{rank.prefix}@*)"])
        user = await store.acl_getuser(rank.engine)
        assert user is not None
        assert user.keys == ""
        assert not await access_gone(store, rank.engine, prefix=rank.prefix)
