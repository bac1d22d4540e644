"""Valkeys in memory, for tests of everything above the store.

They keep what the contract suite holds real servers to: users and their permissions, settings
and how they are read back, run ids, the number of keys. Faults are injected before or after a
call takes effect, and every call is logged.
"""

import asyncio
import secrets
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from kvtier.store.acl import check_load, revision
from kvtier.store.config import OUTPUT_BUFFER_LIMIT, canonical, output_buffer_limits
from kvtier.store.fake_acl import FakeUser, parse_users
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
    StoreUntrusted,
)
from kvtier.store.tls import EXPIRED, client_context, handshake, peer, server_context

T = TypeVar("T")

IMMUTABLE = {
    "8.1": frozenset({"io-threads", "databases", "tcp-backlog", "disable-thp", "aclfile"}),
    "9.1": frozenset({"databases", "tcp-backlog", "disable-thp", "aclfile"}),
}
_OUTPUT_BUFFER_DEFAULT = "normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60"


@dataclass(slots=True)
class Fault:
    """``error`` instead of the answer, ``times`` times, to the protocol's method ``call``.

    ``after``: what was asked has happened all the same. ``connect`` is a call too.
    """

    call: str
    error: StoreError
    after: bool = False
    times: int = 1


@dataclass(frozen=True, slots=True)
class Call:
    """One call of one session; ``arguments`` as the method was given them."""

    username: str
    name: str
    arguments: tuple[object, ...] = ()


@dataclass(slots=True)
class FakeServer:
    """One server. ``settings`` is its configuration file, ``acl_file`` what is mounted.

    Only names in ``settings`` are known to it. ``keys`` are its keys; ``acl_file`` may be changed
    at any time, and ACL LOAD or ``restart`` reads it. ``mounted`` are the PEM files of certificate
    and key, read by ``restart`` and by CONFIG SET of ``tls-cert-file``; None: no TLS.
    """

    acl_file: str
    settings: Mapping[str, str] = field(default_factory=dict)
    version: Literal["8.1", "9.1"] = "9.1"
    up: bool = True
    keys: set[str] = field(default_factory=set)
    faults: list[Fault] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    mounted: tuple[bytes, bytes] | None = None
    run_id: str = ""
    served: ssl.SSLContext | None = None
    config: dict[str, str] = field(default_factory=dict)
    users: dict[str, FakeUser] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """A new process: another run id, settings and users of the files, no keys."""
        self.run_id = secrets.token_hex(20)
        self.users = parse_users(self.acl_file)
        self.keys.clear()
        self.served = server_context(*self.mounted) if self.mounted else None
        self.config = {OUTPUT_BUFFER_LIMIT: _OUTPUT_BUFFER_DEFAULT}
        for name, value in self.settings.items():
            self.config[name] = self._readback(name, value)

    def _readback(self, name: str, value: str) -> str:
        if name != OUTPUT_BUFFER_LIMIT:
            return canonical(value)
        limits = output_buffer_limits(self.config[name]) | output_buffer_limits(value)
        text = " ".join(" ".join((kind, *numbers)) for kind, numbers in limits.items())
        return text.replace("replica", "slave")

    def set_config(self, values: Mapping[str, str]) -> None:
        for name in values:
            if name not in self.config:
                raise StoreError(f"Unknown option or number of arguments for CONFIG SET - '{name}'")
            if name in IMMUTABLE[self.version]:
                raise StoreError(
                    f"CONFIG SET failed (possibly related to argument '{name}') - "
                    "can't set immutable config"
                )
        if "tls-cert-file" in values and self.mounted:
            try:
                self.served = server_context(*self.mounted)
            except ssl.SSLError:
                raise StoreError(
                    "CONFIG SET failed (possibly related to argument 'tls-cert-file') - "
                    "Unable to update TLS configuration. Check server logs."
                ) from None
        self.config |= {name: self._readback(name, value) for name, value in values.items()}

    def verified(self, address: Address) -> PeerCertificate | None:
        """What a client of this address finds: a real handshake, and no network."""
        tls = address.tls
        if self.served is None and tls is None:
            return None
        if self.served is None or tls is None:
            raise StoreUnreachable(f"{address}: AUTH: Connection reset by peer")
        for check_time in (True, False):
            try:
                client = client_context(tls.ca, check_time=check_time)
                side = handshake(self.served, client, name=tls.name)
                return peer(side, expired=not check_time)
            except ssl.SSLCertVerificationError as error:
                if error.verify_code != EXPIRED:
                    text = f"{address}: its certificate is not trusted: {error.verify_message}"
                    raise StoreUntrusted(text) from None
            except ssl.SSLError as error:
                raise StoreUnreachable(f"{address}: AUTH: {error}") from None
        raise AssertionError("expired, and time was not looked at")

    def take_fault(self, call: str, *, after: bool) -> None:
        for fault in self.faults:
            if fault.call == call and fault.after == after and fault.times > 0:
                fault.times -= 1
                raise fault.error


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
        self.open_sessions += 1
        try:
            yield FakeStore(server, stores=self, address=address, user=user, peer=certificate)
        finally:
            self.open_sessions -= 1

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
        user: FakeUser,
        peer: PeerCertificate | None,
    ) -> None:
        self.peer = peer
        self._server = server
        self._stores = stores
        self._address = address
        self._username = user.name
        self._serial = user.serial
        self._run_id = server.run_id
        self._open = True

    async def ping(self) -> None:
        await self._run("ping", needs=["ping"], act=lambda: None)

    async def info(self, *sections: str) -> dict[str, str]:
        server = self._server
        fields = {
            "valkey_version": {"8.1": "8.1.8", "9.1": "9.1.2"}[server.version],
            "run_id": server.run_id,
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
            act=lambda: self._set_user(name, rules),
        )

    async def acl_load(self, users: Mapping[str, Sequence[str]]) -> str | None:
        check_load(users)
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

    async def _run(
        self, name: str, *arguments: object, needs: Iterable[str], act: Callable[[], T]
    ) -> T:
        await asyncio.sleep(0)
        server = self._server
        # A server closes the sessions of users that are gone, and a restart closes them all.
        user = server.users.get(self._username)
        alive = self._open and server.up and server.run_id == self._run_id
        if not alive or user is None or user.serial != self._serial:
            self._open = False
            raise StoreUnreachable(f"{self._address}: the session is closed")
        server.calls.append(Call(self._username, name, arguments))
        try:
            self._stores.strike(self._address, name, "before")
            server.take_fault(name, after=False)
            for command in needs:
                if not user.may_run(command):
                    raise StoreDenied(
                        f"{self._address}: User {self._username} has no permissions to run "
                        f"the '{command}' command"
                    )
            result = act()
            server.take_fault(name, after=True)
            self._stores.strike(self._address, name, "after")
        except StoreUnreachable:
            self._open = False
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

    def _set_user(self, name: str, rules: Sequence[str]) -> None:
        changed = deepcopy(self._server.users.get(name, FakeUser(name)))
        changed.apply(rules)
        self._server.users[name] = changed

    def _load(self, users: Mapping[str, Sequence[str]]) -> str | None:
        refused: StoreError | None = None
        try:
            loaded = parse_users(self._server.acl_file)
            for name in loaded.keys() & self._server.users.keys():
                loaded[name].serial = self._server.users[name].serial
            self._server.users = loaded
        except StoreError as error:
            refused = error
        for name, rules in users.items():
            self._set_user(name, rules)
        if refused:
            raise refused
        return revision(self._user_view(REVISION_USER))
