"""Users of a record in the midst of a rollout, on real servers: told and loaded they are the same,
and no load of an old file gives a fenced one a read."""

import threading
from dataclasses import replace

import pytest
from rank_under_test import RANK, RankUnderTest
from valkey import Valkey
from valkey.exceptions import NoPermissionError
from valkey_servers import Server

from kvtier.generation.acl import acl_file, acl_revision, fenced_tokens, key_prefix, users
from kvtier.generation.entry import (
    Cause,
    GenerationEntry,
    GenerationState,
    RetiredToken,
    Retirement,
)
from kvtier.generation.record import Record
from kvtier.redact import new_token
from kvtier.store.fence import access_gone
from kvtier.store.protocol import REVISION_USER

LOADS = 2000
IDS = {state: f"{number:012x}" for number, state in enumerate(GenerationState, start=1)}


def amid_a_rollout(record: Record) -> Record:
    """A generation in each state, each with an earlier token in each state."""
    entries = [record.current]
    for state, generation in IDS.items():
        if state is GenerationState.LIVE:
            continue
        entries.append(
            GenerationEntry(
                id=generation,
                state=state,
                token=new_token(),
                identity=None,
                cause=Cause.DRAINED,
                retired=tuple(RetiredToken(new_token(), each) for each in Retirement),
            )
        )
    return replace(record, generations=tuple(entries))


def fenced(record: Record) -> Record:
    """The record once the generation that engines use is fenced."""
    entry = replace(record.current, state=GenerationState.FENCED, cause=Cause.DRAINED)
    return record.put(entry)


async def test_told_users_are_those_of_the_loaded_file(real_rank: RankUnderTest) -> None:
    record = amid_a_rollout(real_rank.record)
    wanted = users(record, rank=RANK)
    async with real_rank.session() as store:
        await store.acl_setusers(wanted)
        told = {line for line in await store.acl_list() if f"user {REVISION_USER} " not in line}
        real_rank.write_acl_file(acl_file(record, rank=RANK))
        assert await store.acl_load({}) == acl_revision(record, rank=RANK)
        loaded = {line for line in await store.acl_list() if f"user {REVISION_USER} " not in line}
        assert told == loaded
        assert len(loaded) == len(wanted)
        await store.acl_setusers(wanted)
        again = {line for line in await store.acl_list() if f"user {REVISION_USER} " not in line}
        assert again == loaded


async def test_servers_give_keys_to_exactly_the_users_that_the_record_does(
    real_rank: RankUnderTest,
) -> None:
    record = amid_a_rollout(real_rank.record)
    async with real_rank.session() as store:
        await store.acl_setusers(users(record, rank=RANK))
        barred = fenced_tokens(record)
        for entry in record.generations:
            prefix = key_prefix(entry.id, RANK)
            for token in entry.tokens():
                assert await access_gone(store, token, prefix=prefix) == (token in barred)
                reads = await store.acl_dryrun(token, "get", f"{prefix}@x")
                assert reads == (token not in barred)


@pytest.mark.timeout(300)
async def test_no_load_of_an_old_file_gives_a_fenced_user_a_read(
    real_rank: RankUnderTest, server: Server
) -> None:
    """Exactly none, while it asks all the time on sessions that were open before the fence."""
    record, token = real_rank.record, real_rank.engine
    key = f"{real_rank.prefix}@chunk"
    real_rank.write_keys([key.encode()])
    served, refused, errors = 0, 0, []
    over, ready = threading.Event(), threading.Event()

    def ask() -> None:
        nonlocal served, refused
        with Valkey(port=server.port, username=token, password=token) as reader:
            assert reader.get(key) == b"v"
            ready.set()
            began.wait()
            while not over.is_set():
                try:
                    reader.get(key)
                    served += 1
                except NoPermissionError:
                    refused += 1
                except Exception as error:
                    errors.append(error)
                    return

    began = threading.Event()
    thread = threading.Thread(target=ask)
    thread.start()
    try:
        assert ready.wait(30)
        after = users(fenced(record), rank=RANK)
        async with real_rank.session() as store:
            await store.acl_setusers(after)
            began.set()
            for _ in range(LOADS):
                # The file is that of before the fence: the kubelet has not brought the new one.
                assert await store.acl_load(after) == acl_revision(record, rank=RANK)
    finally:
        began.set()
        over.set()
        thread.join(30)
    assert not errors
    assert served == 0
    assert refused > LOADS / 10
