"""Valkeys in memory, for tests of everything above the store.

They keep what the contract suite holds real servers to: users and their permissions, settings
and how they are read back, run ids, the number of keys. Faults are injected before or after a
call takes effect, and every call is logged.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Literal, TypeVar

from kvtier.store.acl import check_users, revision
from kvtier.store.fake_acl import FakeUser
from kvtier.store.fake_server import Call, FakeServer, FakeSession, Fault, as_text
from kvtier.store.protocol import (
    REVISION_USER,
    AclUser,
    Address,
    Credentials,
    PeerCertificate,
    Store,
    StoreDenied,
    StoreError,
    StoreUnreachable,
)

__all__ = ["Call", "FakeServer", "FakeStore", "FakeStores", "Fault"]

T = TypeVar("T")

When = Literal["before", "after"]
Strike = Callable[[Address, str, When], BaseException | None]


class FakeStores:
    """A network of servers: ``connect`` reaches those that are registered and up.

    Each of ``strikes`` is asked of every call of every session, as ``FakeCluster.faults`` are of
    requests, and may return an error to raise before or after it takes effect.
    """

    def __init__(self, servers: Mapping[Address, FakeServer] | None = None) -> None:
        self.servers: dict[Address, FakeServer] = dict(servers or {})
        self.strikes: list[Strike] = []
        self.open_sessions = 0

    @asynccontextmanager
    async def connect(self, address: Address, credentials: Credentials) -> AsyncIterator[Store]:
        await asyncio.sleep(0)
        self.strike(address, "connect", "before")
        server = self.servers.get(address)
        if server is None or not server.up:
            raise StoreUnreachable(f"{address}: AUTH: connection refused")
        server.calls.append(Call(username=credentials.username, name="connect"))
        server.take_fault("connect", after=False)
        certificate = server.verified(address)
        user = server.users.get(credentials.username)
        if user is None or not user.accepts(credentials.password):
            raise StoreDenied(
                f"{address}: AUTH: invalid username-password pair or user is disabled."
            )
        self.strike(address, "connect", "after")
        session = FakeSession(user.name, serial=user.serial, run_id=server.run_id)
        server.connected.append(session)
        self.open_sessions += 1
        try:
            yield FakeStore(server, stores=self, address=address, session=session, peer=certificate)
        finally:
            self.open_sessions -= 1
            server.connected.remove(session)

    def strike(self, address: Address, call: str, when: When) -> None:
        """Raise what the first of ``strikes`` has for this moment, if any has."""
        for each in self.strikes:
            if (error := each(address, call, when)) is not None:
                raise error


class FakeStore:
    """A session; made by ``FakeStores.connect``."""

    def __init__(
        self,
        server: FakeServer,
        *,
        stores: FakeStores,
        address: Address,
        session: FakeSession,
        peer: PeerCertificate | None,
    ) -> None:
        self.peer = peer
        self._server = server
        self._stores = stores
        self._address = address
        self._session = session

    async def ping(self) -> None:
        await self._run("ping", needs=["ping"], act=lambda: None)

    async def info(self, *sections: str) -> dict[str, str]:
        server = self._server
        fields = {
            "valkey_version": {"8.1": "8.1.8", "9.1": "9.1.2"}[server.version],
            "run_id": server.run_id,
            **server.told,
        }
        return await self._run("info", *sections, needs=["info"], act=lambda: fields)

    async def dbsize(self) -> int:
        return await self._run("dbsize", needs=["dbsize"], act=lambda: len(self._server.keys))

    async def config_get(self, *names: str) -> dict[str, str]:
        config = self._server.config
        return await self._run(
            "config_get",
            *names,
            needs=["config|get"],
            act=lambda: {name: config[name] for name in names if name in config},
        )

    async def config_set(self, values: Mapping[str, str]) -> None:
        await self._run(
            "config_set",
            dict(values),
            needs=["config|set"],
            act=lambda: self._server.set_config(values),
        )

    async def acl_list(self) -> list[str]:
        users = self._server.users
        return await self._run(
            "acl_list", needs=["acl|list"], act=lambda: [user.line() for user in users.values()]
        )

    async def acl_users(self) -> list[str]:
        return await self._run(
            "acl_users", needs=["acl|users"], act=lambda: list(self._server.users)
        )

    async def acl_getuser(self, name: str) -> AclUser | None:
        return await self._run(
            "acl_getuser", name, needs=["acl|getuser"], act=lambda: self._user_view(name)
        )

    async def acl_setuser(self, name: str, rules: Sequence[str]) -> None:
        await self._run(
            "acl_setuser",
            name,
            tuple(rules),
            needs=["acl|setuser"],
            act=lambda: self._server.set_users({name: rules}),
        )

    async def acl_setusers(self, users: Mapping[str, Sequence[str]]) -> None:
        check_users(users)
        if users:
            await self._run(
                "acl_setusers",
                {name: tuple(rules) for name, rules in users.items()},
                needs=["multi", "acl|setuser", "exec"],
                act=lambda: self._server.set_users(users),
            )

    async def acl_deluser(self, *names: str) -> int:
        if not names:
            return 0
        return await self._run(
            "acl_deluser",
            *names,
            needs=["acl|deluser"],
            act=lambda: self._server.delete_users(*names),
        )

    async def acl_load(self, users: Mapping[str, Sequence[str]]) -> str | None:
        check_users(users)
        return await self._run(
            "acl_load",
            {name: tuple(rules) for name, rules in users.items()},
            needs=["multi", "acl|load", "acl|setuser", "acl|getuser", "exec"],
            act=lambda: self._load(users),
        )

    async def acl_dryrun(self, name: str, *command: str) -> bool:
        return await self._run(
            "acl_dryrun",
            name,
            *command,
            needs=["acl|dryrun"],
            act=lambda: self._existing(name).may_run(*command),
        )

    async def client_kill(self, user: str) -> int:
        return await self._run(
            "client_kill",
            user,
            needs=["client|kill"],
            act=lambda: self._server.kill(user, but=self._session),
        )

    async def sessions(self) -> Counter[str]:
        return await self._run("sessions", needs=["client|list"], act=self._server.sessions)

    async def scan(self, cursor: int, *, match: str, count: int) -> tuple[int, list[bytes]]:
        return await self._run(
            "scan",
            cursor,
            match,
            count,
            needs=["scan"],
            act=lambda: self._server.scan(cursor, match=match, count=count),
        )

    async def unlink(self, *keys: str | bytes) -> int:
        if not keys:
            return 0
        return await self._run(
            "unlink",
            *keys,
            needs=[("unlink", *map(as_text, keys))],
            act=lambda: self._server.unlink(*keys),
        )

    async def _run(
        self,
        name: str,
        *arguments: object,
        needs: Iterable[str | tuple[str, ...]],
        act: Callable[[], T],
    ) -> T:
        await asyncio.sleep(0)
        server = self._server
        # A server closes the sessions of users that are gone, and a restart closes them all.
        if not server.serves(self._session):
            self._session.ended = True
            raise StoreUnreachable(f"{self._address}: the session is closed")
        username = self._session.username
        user = server.users[username]
        server.calls.append(Call(username, name, arguments))
        try:
            self._stores.strike(self._address, name, "before")
            server.take_fault(name, after=False)
            for need in needs:
                command, *keys = (need,) if isinstance(need, str) else need
                if not user.may_run(command, *keys):
                    raise StoreDenied(
                        f"{self._address}: User {username} has no permissions to run "
                        f"the '{command}' command"
                    )
            result = act()
            server.take_fault(name, after=True)
            self._stores.strike(self._address, name, "after")
        except StoreUnreachable:
            self._session.ended = True
            raise
        return result

    def _existing(self, name: str) -> FakeUser:
        user = self._server.users.get(name)
        if user is None:
            raise StoreError(f"User '{name}' not found")
        return user

    def _user_view(self, name: str) -> AclUser | None:
        user = self._server.users.get(name)
        return user.view() if user else None

    def _load(self, users: Mapping[str, Sequence[str]]) -> str | None:
        refused: StoreError | None = None
        try:
            self._server.load_users()
        except StoreError as error:
            refused = error
        self._server.set_users(users)
        if refused:
            raise refused
        return revision(self._user_view(REVISION_USER))
