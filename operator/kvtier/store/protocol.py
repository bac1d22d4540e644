"""What the operator asks of one rank's Valkey, whichever client answers.

``kvtier.store.client`` talks to a real server, ``kvtier.store.fake`` keeps one in memory; one
contract suite runs against both.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from kvtier.redact import redact

DEFAULT_PORT = 6379
REVISION_USER = "_rev"


class StoreError(Exception):
    """The server answered with an error, or with something that makes no sense.

    Its text holds no credential. The subclasses are what callers tell apart.
    """

    def __init__(self, message: str) -> None:
        super().__init__(redact(message))


class StoreUnreachable(StoreError):
    """No answer: name not resolved, refused, reset, or not within the timeout.

    What was asked may have happened all the same. The session is closed; open a new one.
    """


class StoreDenied(StoreError):
    """The server refused the credentials, or the user may not do what was asked."""


class StoreUntrusted(StoreError):
    """The server's certificate is not one that a client of this rank may trust."""


@dataclass(frozen=True, slots=True)
class TlsName:
    """Who the server must prove to be: the name its certificate has, the CA (PEM) that signed it.

    An expired certificate of that CA is let pass, so that a renewed one can be loaded; the
    session's ``peer`` says so.
    """

    name: str
    ca: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class PeerCertificate:
    """The certificate that a server proved to have the key of.

    ``fingerprint`` is the SHA-256 of its DER in hex, ``not_after`` in seconds since the epoch.
    """

    fingerprint: str
    not_after: float
    expired: bool = False


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens, and with TLS who it must be."""

    host: str
    port: int = DEFAULT_PORT
    tls: TlsName | None = field(default=None, compare=False)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user and its password. An engine user's name is its token: neither is ever shown."""

    username: str = field(repr=False)
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class AclUser:
    """One user as ``ACL GETUSER`` shows it.

    ``passwords`` are SHA-256 in lower-case hex. ``commands``, ``keys`` and ``channels`` are the
    server's own words for the root permissions (``-@all +get``, ``~prefix@*``, empty for none).
    """

    name: str
    enabled: bool
    nopass: bool = False
    passwords: frozenset[str] = frozenset()
    commands: str = "-@all"
    keys: str = ""
    channels: str = ""


class Store(Protocol):
    """An open, authenticated session with one rank's Valkey.

    Every method raises StoreUnreachable, StoreDenied or StoreError, and nothing else. No method
    retries. Calls that overlap are sent one after another.
    """

    @property
    def peer(self) -> PeerCertificate | None:
        """The server's certificate, None without TLS."""
        ...

    async def ping(self) -> None: ...

    async def info(self, *sections: str) -> dict[str, str]:
        """Fields of ``INFO``, flat, as the server writes them (``run_id``, ``valkey_version``)."""
        ...

    async def dbsize(self) -> int:
        """Number of keys."""
        ...

    async def config_get(self, *names: str) -> dict[str, str]:
        """Values by name. A name that this server does not know is absent."""
        ...

    async def config_set(self, values: Mapping[str, str]) -> None:
        """Set all of ``values`` or none of them."""
        ...

    async def acl_list(self) -> list[str]:
        """All users as lines of an ACL file."""
        ...

    async def acl_users(self) -> list[str]:
        """Names of all users. Engine users' names are tokens."""
        ...

    async def acl_getuser(self, name: str) -> AclUser | None:
        """The user, or None if there is none."""
        ...

    async def acl_setuser(self, name: str, rules: Sequence[str]) -> None:
        """Change one user by ACL rules; it is made (off, nothing allowed) if there is none."""
        ...

    async def acl_setusers(self, users: Mapping[str, Sequence[str]]) -> None:
        """Change several users in one transaction. Nothing of the ACL file is read.

        Open sessions of the users stay open and have the new rules from their next command on.
        ``users`` may not name ``_rev``. Raises StoreError if the server refuses a rule: that user
        stays as it was, and the others are set all the same.
        """
        ...

    async def acl_deluser(self, *names: str) -> int:
        """Delete users and close their sessions; how many there were of them.

        Raises StoreError for ``default``, which no server lets go; none is deleted then.
        """
        ...

    async def acl_load(self, users: Mapping[str, Sequence[str]]) -> str | None:
        """Load the ACL file and put ``users`` over it, in one transaction.

        Nobody can read the mounted file from outside and it may be stale, so every user is set to
        what the record says in the same MULTI: no command of another session sees the file's own
        users. Each rule list should begin with ``reset``. ``users`` may not name ``_rev``, the
        user whose password is the file's hash.

        Returns that hash as the file has it: the revision that the server has loaded, None if the
        file names none. Raises StoreError if the server refuses the file (its users stay as they
        were, and ``users`` are set all the same) or a rule.
        """
        ...

    async def acl_dryrun(self, name: str, *command: str) -> bool:
        """Whether the user's rules let it run ``command``. Raises StoreError if there is no such
        user. That a user is off is not looked at: its open sessions go on running commands.
        """
        ...

    async def client_kill(self, user: str) -> int:
        """Close the sessions of a user, all but this one; how many there were."""
        ...

    async def sessions(self) -> Counter[str]:
        """Number of open sessions by user name, this one included.

        One that has not logged in counts for ``default``. Engine users' names are tokens.
        """
        ...

    async def scan(self, cursor: int, *, match: str, count: int) -> tuple[int, list[bytes]]:
        """One step of a walk through all keys: the next cursor and those that match.

        A walk begins with cursor 0 and has ended when 0 comes back. It finds each key that is
        there from its beginning to its end at least once. A step looks at about ``count`` keys;
        ``match`` is a glob pattern.
        """
        ...

    async def unlink(self, *keys: str | bytes) -> int:
        """Remove keys; how many there were of them."""
        ...


Connect = Callable[[Address, Credentials], AbstractAsyncContextManager[Store]]
"""Opens a session: raises StoreUnreachable, StoreUntrusted or StoreDenied on entry, closes always
on exit."""
