"""What the reconciler relies on, held against the fake and against real servers alike."""

import hashlib
import traceback
from dataclasses import replace

import pytest
from rank_under_test import RANK, RankUnderTest

from kvtier.generation.acl import acl_file, acl_revision
from kvtier.generation.record import Record
from kvtier.metrics_ranks import DENIED, FIELDS, SECTIONS, figures
from kvtier.redact import new_token
from kvtier.store.protocol import REVISION_USER, StoreDenied, StoreError, StoreUnreachable


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


async def test_the_operator_can_ping_and_count_keys(rank: RankUnderTest) -> None:
    async with rank.session() as store:
        await store.ping()
        assert await store.dbsize() == 0


async def test_info_names_the_run_and_the_version(rank: RankUnderTest) -> None:
    async with rank.session() as store:
        info = await store.info("server")
        again = await store.info("server")
    assert len(info["run_id"]) == 40
    assert again["run_id"] == info["run_id"]
    assert info["valkey_version"].startswith(("8.1.", "9.1."))


async def test_one_info_has_all_that_a_rank_is_shown_by(real_rank: RankUnderTest) -> None:
    real_rank.write_keys([b"k"])
    async with real_rank.session() as store:
        info = await store.info(*SECTIONS)
    assert set(FIELDS.values()) | set(DENIED.values()) <= set(info)
    found = figures(info)
    assert found.values["max_bytes"] == 256 * 2**20
    assert (found.values["keys"], found.denied["key"]) == (1, 0)
    assert found.values["used_bytes"] > 0 < found.values["input_bytes"]


async def test_the_file_sets_what_config_get_reads_back(rank: RankUnderTest) -> None:
    async with rank.session() as store:
        assert await store.config_get("maxmemory", "client-output-buffer-limit") == {
            "maxmemory": str(256 * 2**20),
            "client-output-buffer-limit": "normal 268435456 134217728 30 "
            "slave 268435456 67108864 60 pubsub 33554432 8388608 60",
        }


async def test_a_setting_that_the_server_does_not_know_is_absent(rank: RankUnderTest) -> None:
    async with rank.session() as store:
        assert await store.config_get("no-such-setting") == {}
        with pytest.raises(StoreError, match="Unknown option"):
            await store.config_set({"no-such-setting": "1"})


async def test_several_settings_are_set_at_once_or_not_at_all(rank: RankUnderTest) -> None:
    names = ("maxmemory", "maxmemory-policy")
    async with rank.session() as store:
        await store.config_set({"maxmemory": "128mb", "maxmemory-policy": "allkeys-lfu"})
        taken = {"maxmemory": str(128 * 2**20), "maxmemory-policy": "allkeys-lfu"}
        assert await store.config_get(*names) == taken
        with pytest.raises(StoreError, match="immutable"):
            await store.config_set({"maxmemory": "64mb", "tcp-backlog": "32"})
        assert await store.config_get(*names) == taken


async def test_one_class_of_output_buffer_limit_leaves_the_others(rank: RankUnderTest) -> None:
    name = "client-output-buffer-limit"
    async with rank.session() as store:
        await store.config_set({name: "normal 1gb 512mb 60"})
        assert (await store.config_get(name))[name] == (
            "normal 1073741824 536870912 60 slave 268435456 67108864 60 pubsub 33554432 8388608 60"
        )


async def test_the_users_are_those_of_the_record_and_the_revision(rank: RankUnderTest) -> None:
    async with rank.session() as store:
        names = await store.acl_users()
        lines = await store.acl_list()
    assert set(names) == {*rank.users, REVISION_USER}
    assert {line.split()[1] for line in lines} == set(names)


async def test_getuser_shows_what_a_user_may(rank: RankUnderTest) -> None:
    async with rank.session() as store:
        engine = await store.acl_getuser(rank.engine)
        default = await store.acl_getuser("default")
        health = await store.acl_getuser("health")
        assert await store.acl_getuser("nobody") is None
    assert engine is not None
    assert engine.enabled
    assert not engine.nopass
    assert engine.passwords == {sha256(rank.engine)}
    assert engine.keys == f"~{rank.prefix}@*"
    assert engine.channels == ""
    assert set(engine.commands.split()) == {"-@all"} | {
        rule for rule in rank.users[rank.engine] if rule.startswith("+")
    }
    assert default is not None
    assert not default.enabled
    assert health is not None
    assert health.nopass
    assert health.commands.split() == ["-@all", "+ping"]


async def test_dryrun_tells_what_a_user_may(rank: RankUnderTest) -> None:
    async with rank.session() as store:
        assert await store.acl_dryrun(rank.engine, "get", f"{rank.prefix}@x")
        assert not await store.acl_dryrun(rank.engine, "get", "elsewhere@x")
        assert not await store.acl_dryrun(rank.engine, "flushdb")
        with pytest.raises(StoreError, match="not found"):
            await store.acl_dryrun("nobody", "get", "x")


async def test_a_user_without_keys_is_refused_everything_it_had(rank: RankUnderTest) -> None:
    async with rank.session() as store:
        await store.acl_setuser(rank.engine, ["resetkeys"])
        fenced = await store.acl_getuser(rank.engine)
        assert fenced is not None
        assert fenced.enabled
        assert fenced.keys == ""
        assert not await store.acl_dryrun(rank.engine, "get", f"{rank.prefix}@x")


async def test_a_new_user_is_off_and_may_do_nothing(rank: RankUnderTest) -> None:
    async with rank.session() as store:
        await store.acl_setuser("someone", [])
        someone = await store.acl_getuser("someone")
        assert someone is not None
        assert (someone.enabled, someone.keys, someone.commands) == (False, "", "-@all")
    with pytest.raises(StoreDenied):
        async with rank.session("someone"):
            pass


async def test_a_rule_with_an_error_changes_nothing(rank: RankUnderTest) -> None:
    async with rank.session() as store:
        before = await store.acl_getuser(rank.engine)
        with pytest.raises(StoreError, match="Syntax error"):
            await store.acl_setuser(rank.engine, ["resetkeys", "no-such-rule"])
        assert await store.acl_getuser(rank.engine) == before


async def test_loading_returns_the_revision_of_the_file(
    rank: RankUnderTest, record: Record
) -> None:
    async with rank.session() as store:
        assert await store.acl_load(rank.users) == acl_revision(record, rank=RANK)


async def test_a_new_file_is_seen_once_it_is_loaded(rank: RankUnderTest, record: Record) -> None:
    other = replace(record, generations=(replace(record.current, token=new_token()),))
    rank.write_acl_file(acl_file(other, rank=RANK))
    async with rank.session() as store:
        revision = await store.acl_load(rank.users)
        assert revision == acl_revision(other, rank=RANK)
        assert revision != acl_revision(record, rank=RANK)
        assert await store.acl_getuser(other.current.token) is not None
        # The record's own user is set over a file that lacks it.
        assert await store.acl_dryrun(rank.engine, "get", f"{rank.prefix}@x")


async def test_a_stale_file_lifts_no_fence(rank: RankUnderTest) -> None:
    fenced = {name: rules for name, rules in rank.users.items() if name != rank.engine}
    fenced[rank.engine] = (*rank.users[rank.engine], "resetkeys")
    async with rank.session() as store:
        await store.acl_load(fenced)
        assert not await store.acl_dryrun(rank.engine, "get", f"{rank.prefix}@x")


async def test_loading_undoes_what_was_set_by_hand(rank: RankUnderTest) -> None:
    async with rank.session() as store:
        await store.acl_setuser(rank.engine, ["allkeys", "+flushdb"])
        assert await store.acl_dryrun(rank.engine, "flushdb")
        await store.acl_load(rank.users)
        assert not await store.acl_dryrun(rank.engine, "flushdb")


async def test_a_file_with_an_error_is_refused_and_the_users_stay(rank: RankUnderTest) -> None:
    rank.write_acl_file("user someone on nopass no-such-rule\n")
    async with rank.session() as store:
        with pytest.raises(StoreError, match=r"users\.acl:1"):
            await store.acl_load(rank.users)
        assert set(await store.acl_users()) == {*rank.users, REVISION_USER}
        await store.ping()


async def test_a_file_without_revision_proves_nothing(rank: RankUnderTest) -> None:
    lines = [f"user {name} {' '.join(rules)}\n" for name, rules in rank.users.items()]
    rank.write_acl_file("".join(lines))
    async with rank.session() as store:
        assert await store.acl_load(rank.users) is None


async def test_the_revision_user_cannot_be_set_while_loading(rank: RankUnderTest) -> None:
    async with rank.session() as store:
        with pytest.raises(ValueError, match=REVISION_USER):
            await store.acl_load({REVISION_USER: ["reset"]})


@pytest.mark.parametrize("username", ["operator", "default", "nobody"])
async def test_wrong_credentials_are_denied(rank: RankUnderTest, username: str) -> None:
    with pytest.raises(StoreDenied):
        async with rank.session(username, password="wrong"):
            pass


async def test_a_user_is_denied_what_it_may_not_do(rank: RankUnderTest) -> None:
    async with rank.session(rank.engine) as store:
        await store.ping()
        for forbidden in (
            store.config_get("maxmemory"),
            store.config_set({"maxmemory": "1gb"}),
            store.acl_list(),
            store.acl_setuser(rank.engine, ["allkeys"]),
            store.acl_load(rank.users),
            store.dbsize(),
        ):
            with pytest.raises(StoreDenied):
                await forbidden
        await store.ping()


async def test_health_has_any_password_and_may_only_ping(rank: RankUnderTest) -> None:
    async with rank.session("health", password="whatever") as store:
        await store.ping()
        with pytest.raises(StoreDenied):
            await store.info()


async def test_no_error_shows_a_credential(rank: RankUnderTest) -> None:
    secret = new_token()
    shown = []
    with pytest.raises(StoreError) as denied:
        async with rank.session("operator", password=secret):
            pass
    shown += traceback.format_exception(denied.value)
    async with rank.session(rank.engine) as store:
        with pytest.raises(StoreError) as refused:
            await store.acl_dryrun(rank.engine, "get", "x")
        shown += traceback.format_exception(refused.value)
    async with rank.session() as store:
        with pytest.raises(StoreError) as unknown:
            await store.acl_dryrun(secret, "get", "x")
        shown += traceback.format_exception(unknown.value)
    # The text of the test itself, which a traceback quotes, names no token.
    assert secret not in "".join(shown)
    assert rank.engine not in "".join(shown)


async def test_a_session_whose_user_is_gone_ends(rank: RankUnderTest) -> None:
    others = {name: rules for name, rules in rank.users.items() if name != rank.engine}
    lines = [f"user {name} {' '.join(rules)}\n" for name, rules in others.items()]
    async with rank.session(rank.engine) as engine, rank.session() as store:
        await engine.ping()
        rank.write_acl_file("".join(lines))
        await store.acl_load(others)
        with pytest.raises(StoreUnreachable):
            await engine.ping()
        with pytest.raises(StoreUnreachable):
            await engine.ping()


async def test_a_user_that_the_file_lacks_loses_its_sessions_and_can_come_back(
    rank: RankUnderTest,
) -> None:
    lines = [
        f"user {name} {' '.join(r)}\n" for name, r in rank.users.items() if name != rank.engine
    ]
    async with rank.session(rank.engine) as engine, rank.session() as store:
        rank.write_acl_file("".join(lines))
        await store.acl_load(rank.users)
        with pytest.raises(StoreUnreachable):
            await engine.ping()
    async with rank.session(rank.engine) as engine:
        await engine.ping()
