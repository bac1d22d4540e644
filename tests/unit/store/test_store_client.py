"""Sessions with real servers that hang, die, come back as another process, or never answer."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from time import monotonic

import pytest
from rank_under_test import RANK, RankUnderTest, on_server
from valkey.asyncio import Valkey
from valkey.exceptions import NoPermissionError
from valkey_servers import Server, free_port, running_server

from kvtier.generation.acl import acl_file
from kvtier.generation.record import Record
from kvtier.store.client import connector
from kvtier.store.protocol import Address, Credentials, StoreUnreachable

HASTY = connector(connect_seconds=0.3, reply_seconds=0.3)
SOON = 1.5


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def operator(record: Record) -> Credentials:
    return Credentials("operator", record.operator_token)


async def test_a_hung_server_is_unreachable_in_bounded_time(server: Server, record: Record) -> None:
    address = Address("127.0.0.1", server.port)
    async with HASTY(address, operator(record)) as store:
        await store.ping()
        with stopped(server.pid):
            begun = monotonic()
            with pytest.raises(StoreUnreachable):
                await store.ping()
            with pytest.raises(StoreUnreachable):
                async with HASTY(address, operator(record)):
                    pass
            assert monotonic() - begun < SOON
        # The late answer must not be taken for that of the next call.
        with pytest.raises(StoreUnreachable, match="closed"):
            await store.info()


async def test_a_port_without_a_server_is_unreachable() -> None:
    with pytest.raises(StoreUnreachable):
        async with HASTY(Address("127.0.0.1", free_port()), Credentials("operator", "x")):
            pass


async def test_a_name_that_does_not_resolve_is_unreachable() -> None:
    with pytest.raises(StoreUnreachable):
        async with HASTY(Address("no-such-rank.invalid"), Credentials("operator", "x")):
            pass


@asynccontextmanager
async def listening(answer: bytes) -> AsyncIterator[Address]:
    """A server that speaks no Valkey: it answers everything with the same bytes."""
    writers = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        while await reader.read(65536):
            writer.write(answer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield Address("127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for writer in writers:
            writer.close()


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"$5\r\nab"])
async def test_a_server_that_is_no_valkey_is_unreachable_in_bounded_time(answer: bytes) -> None:
    begun = monotonic()
    async with listening(answer) as address:
        with pytest.raises(StoreUnreachable):
            async with HASTY(address, Credentials("operator", "x")):
                pass
    assert monotonic() - begun < SOON


async def test_a_session_never_goes_on_with_another_process(tmp_path: Path, record: Record) -> None:
    text = acl_file(record, rank=RANK)
    with running_server("9.1", directory=tmp_path, acl=text) as first:
        address = Address("127.0.0.1", first.port)
        session = HASTY(address, operator(record))
        store = await session.__aenter__()
        run_id = (await store.info("server"))["run_id"]
    with running_server("9.1", directory=tmp_path, acl=text, port=first.port):
        for _ in range(2):
            with pytest.raises(StoreUnreachable):
                await store.info("server")
        async with HASTY(address, operator(record)) as again:
            assert (await again.info("server"))["run_id"] != run_id
    await session.__aexit__(None, None, None)


async def connections(rank: RankUnderTest) -> int:
    async with rank.session() as store:
        return int((await store.info("clients"))["connected_clients"])


async def test_every_session_is_closed_however_it_ends(real_rank: RankUnderTest) -> None:
    before = await connections(real_rank)
    with pytest.raises(RuntimeError):
        async with real_rank.session():
            raise RuntimeError
    task = asyncio.create_task(_hold(real_rank))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0.1)
    assert await connections(real_rank) == before


async def _hold(rank: RankUnderTest) -> None:
    async with rank.session():
        await asyncio.sleep(60)


async def test_calls_that_overlap_get_their_own_answers(real_rank: RankUnderTest) -> None:
    async with real_rank.session() as store:
        answers = await asyncio.gather(
            store.config_get("maxmemory"), store.dbsize(), store.config_get("maxclients")
        )
    assert answers == [{"maxmemory": "268435456"}, 0, {"maxclients": "100"}]


async def test_a_session_shows_no_credential(real_rank: RankUnderTest) -> None:
    token = real_rank.record.operator_token
    async with real_rank.session() as store:
        assert token not in repr(store)
        assert token not in repr(Credentials("operator", token))
        assert real_rank.engine not in repr(Credentials(real_rank.engine, "x"))


async def test_no_read_is_served_while_a_stale_file_is_loaded_over_a_fence(
    server: Server, record: Record
) -> None:
    rank = on_server(server, record)
    key = f"{rank.prefix}@x"
    fenced = rank.users | {rank.engine: (*rank.users[rank.engine], "resetkeys")}
    engine = Valkey(port=server.port, username=rank.engine, password=rank.engine)
    try:
        await engine.set(key, b"v")
        reads = 0

        async def read() -> None:
            nonlocal reads
            while True:
                with pytest.raises(NoPermissionError):
                    await engine.get(key)
                reads += 1

        async with rank.session() as store:
            # The file still allows the engine, as it does until the kubelet delivers the new one.
            await store.acl_load(fenced)
            reader = asyncio.create_task(read())
            for _ in range(300):
                await store.acl_load(fenced)
            assert not reader.done(), reader
            reader.cancel()
        assert reads > 100
    finally:
        await engine.aclose()
