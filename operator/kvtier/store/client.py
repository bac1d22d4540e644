"""The store protocol over ``valkey.asyncio``: one connection, bounded, never reconnected.

The library's pooled client retries and reconnects by itself; a session that goes on with another
process behind the same address would make proofs about the wrong server. So this uses the
library's ``Connection`` and closes it on the first failure.
"""

import asyncio
import re
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

from valkey.asyncio import Connection
from valkey.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    NoPermissionError,
    ResponseError,
    ValkeyError,
)

from kvtier.redact import redact
from kvtier.store.acl import check_users, parse_getuser, revision
from kvtier.store.protocol import (
    REVISION_USER,
    AclUser,
    Address,
    Connect,
    Credentials,
    PeerCertificate,
    Store,
    StoreDenied,
    StoreError,
    StoreUnreachable,
    StoreUntrusted,
    TlsName,
)
from kvtier.store.tls import EXPIRED, client_context, peer

CONNECT_SECONDS = 2.0
REPLY_SECONDS = 5.0
# No name in CLIENT LIST can have a space in it.
_SESSION_USER = re.compile(r" user=(\S+)")
_NO_SUCH_USER = "No such user"


def connector(
    *, connect_seconds: float = CONNECT_SECONDS, reply_seconds: float = REPLY_SECONDS
) -> Connect:
    """A ``Connect`` whose sessions wait at most so long to open, and for each reply."""

    @asynccontextmanager
    async def connect(address: Address, credentials: Credentials) -> AsyncIterator[Store]:
        session = ValkeyStore(
            connection(address, credentials), address=address, credentials=credentials
        )
        try:
            try:
                await session.open(connect_seconds + reply_seconds)
            except _Expired:
                await session.close()
                lenient = connection(address, credentials, check_time=False)
                session = ValkeyStore(
                    lenient, address=address, credentials=credentials, expired=True
                )
                await session.open(connect_seconds + reply_seconds)
            yield session
        finally:
            await session.close()

    def connection(
        address: Address, credentials: Credentials, *, check_time: bool = True
    ) -> _Connection:
        # Naming no library and no client keeps CLIENT SETINFO and SETNAME out of the user's ACL.
        return _Connection(
            tls=address.tls,
            check_time=check_time,
            host=address.host,
            port=address.port,
            username=credentials.username,
            password=credentials.password,
            socket_connect_timeout=connect_seconds,
            socket_timeout=reply_seconds,
            decode_responses=True,
            encoding_errors="replace",
            lib_name=None,
            lib_version=None,
        )

    return connect


class _Expired(StoreUntrusted):
    """Nothing is wrong with the certificate but its age."""


class _Connection(Connection):
    """The library's connection. Its own TLS can only look for the address in the certificate,
    where the name of the rank's Service is."""

    def __init__(self, *, tls: TlsName | None, check_time: bool, **options: Any) -> None:
        super().__init__(**options)
        self._tls = tls
        self._check_time = check_time

    def _connection_arguments(self) -> Mapping[str, Any]:
        arguments = dict(super()._connection_arguments())
        if self._tls:
            arguments["ssl"] = client_context(self._tls.ca, check_time=self._check_time)
            arguments["server_hostname"] = self._tls.name
        return arguments

    def peer(self, *, expired: bool) -> PeerCertificate | None:
        side = self._writer and self._writer.get_extra_info("ssl_object")
        return peer(side, expired=expired) if side else None


class ValkeyStore:
    """One session; made by ``connector``."""

    def __init__(
        self,
        connection: _Connection,
        *,
        address: Address,
        credentials: Credentials,
        expired: bool = False,
    ) -> None:
        self._connection = connection
        self._address = address
        self._expired = expired
        self._peer: PeerCertificate | None = None
        self._secrets = (credentials.password,)
        self._lock = asyncio.Lock()

    async def open(self, seconds: float) -> None:
        """Connect and authenticate within ``seconds``, name resolution included."""
        with self._translated("AUTH"):
            async with asyncio.timeout(seconds):
                await self._connection.connect()  # type: ignore[no-untyped-call]
        self._peer = self._connection.peer(expired=self._expired)

    async def close(self) -> None:
        with suppress(ValkeyError):
            await self._connection.disconnect()

    @property
    def peer(self) -> PeerCertificate | None:
        return self._peer

    async def ping(self) -> None:
        if await self._call("PING") != "PONG":
            raise self._error("PING", "answered something else than PONG")

    async def info(self, *sections: str) -> dict[str, str]:
        text: str = await self._call("INFO", *sections)
        pairs = (line.partition(":") for line in text.splitlines() if not line.startswith("#"))
        return {name: value for name, colon, value in pairs if colon}

    async def dbsize(self) -> int:
        return int(await self._call("DBSIZE"))

    async def config_get(self, *names: str) -> dict[str, str]:
        if not names:
            return {}
        reply = await self._call("CONFIG GET", *names)
        return dict(zip(reply[::2], reply[1::2], strict=True))

    async def config_set(self, values: Mapping[str, str]) -> None:
        if values:
            await self._call("CONFIG SET", *(word for pair in values.items() for word in pair))

    async def acl_list(self) -> list[str]:
        return list(await self._call("ACL LIST"))

    async def acl_users(self) -> list[str]:
        return list(await self._call("ACL USERS"))

    async def acl_getuser(self, name: str) -> AclUser | None:
        return parse_getuser(name, await self._call("ACL GETUSER", name))

    async def acl_setuser(self, name: str, rules: Sequence[str]) -> None:
        await self._call("ACL SETUSER", name, *rules)

    async def acl_setusers(self, users: Mapping[str, Sequence[str]]) -> None:
        check_users(users)
        if users:
            await self._transaction(*_setusers(users))

    async def acl_deluser(self, *names: str) -> int:
        return int(await self._call("ACL DELUSER", *names)) if names else 0

    async def acl_load(self, users: Mapping[str, Sequence[str]]) -> str | None:
        check_users(users)
        replies = await self._transaction(
            ("ACL LOAD",),
            *_setusers(users),
            ("ACL GETUSER", REVISION_USER),
        )
        return revision(parse_getuser(REVISION_USER, replies[-1]))

    async def acl_dryrun(self, name: str, *command: str) -> bool:
        return bool(await self._call("ACL DRYRUN", name, *command) == "OK")

    async def client_kill(self, user: str) -> int:
        try:
            return int(await self._call("CLIENT KILL", "USER", user, "SKIPME", "yes"))
        except StoreError as error:
            if _NO_SUCH_USER in str(error):
                return 0
            raise

    async def sessions(self) -> Counter[str]:
        return Counter(_SESSION_USER.findall(await self._call("CLIENT LIST")))

    async def scan(self, cursor: int, *, match: str, count: int) -> tuple[int, list[bytes]]:
        words = (str(cursor), "MATCH", match, "COUNT", str(count))
        # A key may be any bytes: decoded, it would be another key.
        following, keys = await self._call("SCAN", *words, raw=True)
        return int(following), list(keys)

    async def unlink(self, *keys: str | bytes) -> int:
        return int(await self._call("UNLINK", *keys)) if keys else 0

    async def _call(self, command: str, *arguments: str | bytes, raw: bool = False) -> Any:
        """The reply, its strings decoded unless it is to be ``raw``."""
        async with self._lock:
            with self._translated(command, *arguments):
                await self._send([(command, *arguments)])
                return await self._connection.read_response(disable_decoding=raw)

    async def _transaction(self, *commands: tuple[str, ...]) -> list[Any]:
        """Replies of ``commands`` run as one; raises the first error among them."""
        async with self._lock:
            with self._translated("MULTI"):
                await self._send([("MULTI",), *commands, ("EXEC",)])
                # All replies are read before any error is raised, so that none is left over for
                # the next call. The first error says why; EXEC only says that there was one.
                outcomes = [await self._outcome() for _ in range(len(commands) + 2)]
        replies = outcomes[-1] if isinstance(outcomes[-1], list) else []
        for words, outcome in [
            *zip(commands, outcomes[1:-1], strict=True),
            *zip(commands, replies, strict=False),
            (("EXEC",), outcomes[-1]),
        ]:
            if isinstance(outcome, ResponseError):
                with self._translated(*words):
                    raise outcome
        return replies

    async def _outcome(self) -> Any:
        try:
            return await self._connection.read_response()
        except ResponseError as error:
            return error

    async def _send(self, commands: Sequence[tuple[str | bytes, ...]]) -> None:
        # The library would silently connect again, perhaps to another process.
        if not self._connection.is_connected:
            raise StoreUnreachable(f"{self._address}: the session is closed")
        await self._connection.send_packed_command(self._connection.pack_commands(commands))

    def _error(self, command: str, reason: str, *secrets: str) -> StoreError:
        return StoreError(self._text(command, reason, *secrets))

    def _text(self, command: str, reason: object, *secrets: str) -> str:
        return redact(f"{self._address}: {command}: {reason}", *self._secrets, *secrets)

    def _untrusted(self, error: ssl.SSLCertVerificationError) -> StoreUntrusted:
        kind = _Expired if error.verify_code == EXPIRED else StoreUntrusted
        return kind(f"{self._address}: its certificate is not trusted: {error.verify_message}")

    @contextmanager
    def _translated(self, command: str, *arguments: str | bytes) -> Iterator[None]:
        """Turn the library's errors into the protocol's; no text of the cause is kept."""
        # Servers repeat the rule they did not understand, and a rule may be a password.
        texts = [word for word in arguments if isinstance(word, str)]
        secrets = [word[1:] for word in texts if word[:1] in {">", "<", "#", "!"}]
        try:
            yield
        except (AuthenticationError, AuthorizationError, NoPermissionError) as error:
            raise StoreDenied(self._text(command, error, *secrets)) from None
        except (ResponseError, BusyLoadingError) as error:
            raise self._error(command, str(error), *secrets) from None
        except (ValkeyError, OSError, TimeoutError) as error:
            if isinstance(error.__context__, ssl.SSLCertVerificationError):
                raise self._untrusted(error.__context__) from None
            reason = str(error) or "no answer in time"
            raise StoreUnreachable(self._text(command, reason, *secrets)) from None


def _setusers(users: Mapping[str, Sequence[str]]) -> list[tuple[str, ...]]:
    return [("ACL SETUSER", name, *rules) for name, rules in users.items()]
