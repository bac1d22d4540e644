"""What becomes of open sessions when users change, on the fake and on real servers alike."""

from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack

import pytest
from rank_under_test import RankUnderTest
from valkey import Valkey
from valkey.exceptions import NoPermissionError

from kvtier.redact import new_token
from kvtier.store.protocol import REVISION_USER, Store, StoreDenied, StoreError, StoreUnreachable

OTHER = "other"
OTHER_RULES = ("reset", "on", "nopass", "~other@*", "+get", "+ping")


def lines(users: Mapping[str, Iterable[str]]) -> str:
    return "".join(f"user {name} {' '.join(rules)}\n" for name, rules in users.items())


async def is_open(session: Store) -> bool:
    try:
        await session.ping()
    except StoreUnreachable:
        return False
    return True


async def test_several_users_are_set_at_once_and_their_sessions_stay(rank: RankUnderTest) -> None:
    async with rank.session() as store, rank.session(rank.engine) as engine:
        fenced = (*rank.users[rank.engine], "resetkeys")
        await store.acl_setusers({OTHER: OTHER_RULES, rank.engine: fenced})
        assert await store.acl_dryrun(OTHER, "get", "other@x")
        assert not await store.acl_dryrun(rank.engine, "get", f"{rank.prefix}@x")
        assert await is_open(engine)
        async with rank.session(OTHER) as other:
            await other.ping()
        await store.acl_setusers({})


async def test_setting_users_reads_nothing_of_the_file(rank: RankUnderTest) -> None:
    rank.write_acl_file(lines({OTHER: OTHER_RULES}))
    async with rank.session() as store, rank.session(rank.engine) as engine:
        before = await store.acl_getuser(REVISION_USER)
        await store.acl_setusers(rank.users)
        assert await store.acl_getuser(REVISION_USER) == before
        assert await store.acl_getuser(OTHER) is None
        assert await is_open(engine)


async def test_a_refused_rule_leaves_its_user_and_sets_the_others(rank: RankUnderTest) -> None:
    async with rank.session() as store:
        before = await store.acl_getuser("health")
        users = {"health": ("resetkeys", "no-such-rule"), rank.engine: ("resetkeys",)}
        with pytest.raises(StoreError, match="Syntax error"):
            await store.acl_setusers(users)
        assert await store.acl_getuser("health") == before
        assert not await store.acl_dryrun(rank.engine, "get", f"{rank.prefix}@x")
        await store.ping()


async def test_the_revision_user_cannot_be_set_among_others(rank: RankUnderTest) -> None:
    async with rank.session() as store:
        with pytest.raises(ValueError, match=REVISION_USER):
            await store.acl_setusers({REVISION_USER: ["reset"]})


async def test_a_deleted_user_and_its_sessions_are_gone_and_no_others(rank: RankUnderTest) -> None:
    async with (
        rank.session() as store,
        rank.session(rank.engine) as engine,
        rank.session("health") as health,
    ):
        assert await store.acl_deluser(rank.engine, "nobody") == 1
        assert await store.acl_getuser(rank.engine) is None
        assert not await is_open(engine)
        assert await is_open(health)
        assert (await store.sessions())[rank.engine] == 0
        assert await store.acl_deluser(rank.engine) == 0
        assert await store.acl_deluser() == 0
        # Made again, it is another user: what was open stays closed.
        await store.acl_setusers({rank.engine: rank.users[rank.engine]})
        assert not await is_open(engine)
    with pytest.raises(StoreError, match="default"):
        async with rank.session() as store:
            await store.acl_deluser("health", "default")
    async with rank.session() as store:
        assert await store.acl_getuser("health") is not None


async def test_sessions_are_counted_by_user(rank: RankUnderTest) -> None:
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(rank.session())
        for _ in range(2):
            await stack.enter_async_context(rank.session(rank.engine))
        async with rank.session("health"):
            assert await store.sessions() == {"operator": 1, rank.engine: 2, "health": 1}


async def test_killing_ends_every_session_of_one_user(rank: RankUnderTest) -> None:
    async with (
        rank.session() as store,
        rank.session(rank.engine) as one,
        rank.session(rank.engine) as two,
        rank.session("health") as health,
    ):
        assert await store.client_kill(rank.engine) == 2
        assert not await is_open(one)
        assert not await is_open(two)
        assert await is_open(health)
        assert await store.sessions() == {"operator": 1, "health": 1}
        assert await store.client_kill(rank.engine) == 0
        assert await store.client_kill("nobody") == 0
    async with rank.session(rank.engine) as again:
        assert await is_open(again)


async def test_killing_one_s_own_user_spares_one_s_own_session(rank: RankUnderTest) -> None:
    async with rank.session() as store, rank.session() as another:
        assert await store.client_kill("operator") == 1
        assert await is_open(store)
        assert not await is_open(another)


async def test_a_user_that_is_off_keeps_its_sessions_until_they_are_killed(
    rank: RankUnderTest,
) -> None:
    async with rank.session() as store, rank.session(rank.engine) as engine:
        await store.acl_setuser(rank.engine, ["off"])
        assert await is_open(engine)
        # DRYRUN asks for the rules alone, and what they let an open session do.
        assert await store.acl_dryrun(rank.engine, "get", f"{rank.prefix}@x")
        assert await store.client_kill(rank.engine) == 1
        assert not await is_open(engine)
        with pytest.raises(StoreDenied):
            async with rank.session(rank.engine):
                pass


async def test_reset_and_other_passwords_leave_sessions_open(rank: RankUnderTest) -> None:
    async with rank.session() as store, rank.session(rank.engine) as engine:
        await store.acl_setuser(rank.engine, ["resetpass", f">{new_token()}"])
        assert await is_open(engine)
        await store.acl_setuser(rank.engine, ["reset", "+ping"])
        assert await is_open(engine)
        with pytest.raises(StoreDenied):
            async with rank.session(rank.engine):
                pass


async def test_a_file_that_lacks_a_user_ends_that_user_s_sessions_alone(
    rank: RankUnderTest,
) -> None:
    others = {name: rules for name, rules in rank.users.items() if name != rank.engine}
    rank.write_acl_file(lines(others))
    async with (
        rank.session() as store,
        rank.session(rank.engine) as engine,
        rank.session("health") as health,
    ):
        # The transaction makes the user again; for its open sessions that is too late.
        await store.acl_load(rank.users)
        assert not await is_open(engine)
        assert await is_open(health)
        assert await is_open(store)
        async with rank.session(rank.engine) as again:
            assert await is_open(again)


async def test_engines_may_neither_kill_nor_count_nor_delete(rank: RankUnderTest) -> None:
    async with rank.session(rank.engine) as engine:
        for forbidden in (
            engine.client_kill("operator"),
            engine.sessions(),
            engine.acl_deluser("health"),
            engine.acl_setusers({rank.engine: ["allkeys"]}),
            engine.scan(0, match="*", count=10),
            engine.unlink(f"{rank.prefix}@x"),
        ):
            with pytest.raises(StoreDenied):
                await forbidden


async def test_a_fenced_session_is_refused_values_and_stays(real_rank: RankUnderTest) -> None:
    rank, key, token = real_rank, f"{real_rank.prefix}@x", real_rank.engine
    async with rank.session() as store:
        with Valkey(port=rank.address.port, username=token, password=token) as engine:
            engine.set(key, "v")
            connections = (await store.info("stats"))["total_connections_received"]
            await store.acl_setusers({token: (*rank.users[token], "off")})
            assert engine.get(key) == b"v"
            await store.acl_setusers({token: (*rank.users[token], "resetkeys")})
            for command in (["GET", key], ["SET", key, "w"], ["EXISTS", key]):
                with pytest.raises(NoPermissionError, match="No permissions to access a key"):
                    engine.execute_command(*command)
            assert engine.ping()
            # A rollback: the same session reads what it stored before.
            await store.acl_setusers({token: rank.users[token]})
            assert engine.get(key) == b"v"
            assert (await store.info("stats"))["total_connections_received"] == connections
