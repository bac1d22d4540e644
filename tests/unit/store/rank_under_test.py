"""A rank that the store tests talk to, whichever server answers."""

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from valkey import Valkey
from valkey_servers import Server

from kvtier.generation.acl import key_prefix, users
from kvtier.generation.record import Record
from kvtier.store.client import connector
from kvtier.store.protocol import Address, Connect, Credentials, Store

SETTINGS = {
    "maxmemory": "256mb",
    "maxmemory-policy": "allkeys-lru",
    "maxclients": "100",
    "client-output-buffer-limit": "normal 268435456 134217728 30",
    "tcp-backlog": "64",
    "databases": "1",
}
RANK = 3


@dataclass(frozen=True, slots=True)
class RankUnderTest:
    """A rank that runs with the record's ACL file and SETTINGS."""

    address: Address
    connect: Connect
    record: Record
    write_acl_file: Callable[[str], object]
    write_keys: Callable[[Iterable[bytes]], object]

    @property
    def engine(self) -> str:
        return self.record.current.token

    @property
    def prefix(self) -> str:
        return key_prefix(self.record.current.id, RANK)

    @property
    def users(self) -> dict[str, tuple[str, ...]]:
        return users(self.record, rank=RANK)

    @asynccontextmanager
    async def session(
        self, username: str = "operator", password: str | None = None
    ) -> AsyncIterator[Store]:
        known = {"operator": self.record.operator_token, self.engine: self.engine}
        credentials = Credentials(username, password or known.get(username, "x"))
        async with self.connect(self.address, credentials) as store:
            yield store


def on_server(server: Server, record: Record) -> RankUnderTest:
    return RankUnderTest(
        address=Address("127.0.0.1", server.port),
        connect=connector(connect_seconds=2, reply_seconds=5),
        record=record,
        write_acl_file=server.acl_file.write_text,
        write_keys=partial(write_keys, server.port, record.operator_token),
    )


def write_keys(port: int, operator_token: str, keys: Iterable[bytes], value: bytes = b"v") -> None:
    """Store a value under each key, whosever it is: by a user that goes again."""
    with Valkey(port=port, username="operator", password=operator_token) as operator:
        operator.execute_command("ACL SETUSER", "writer", "on", "nopass", "~*", "+set")
        with (
            Valkey(port=port, username="writer", password="x", lib_name=None) as writer,
            writer.pipeline(transaction=False) as pipeline,
        ):
            for key in keys:
                pipeline.set(key, value)
            pipeline.execute()
        operator.execute_command("ACL DELUSER", "writer")
