"""One Valkey in memory: its settings, users, keys and open sessions, and the faults of a test."""

import secrets
import ssl
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal
from zlib import crc32

from kvtier.store.config import OUTPUT_BUFFER_LIMIT, canonical, output_buffer_limits
from kvtier.store.fake_acl import FakeUser, parse_users
from kvtier.store.protocol import (
    Address,
    PeerCertificate,
    StoreError,
    StoreUnreachable,
    StoreUntrusted,
)
from kvtier.store.tls import EXPIRED, client_context, handshake, peer, server_context

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


@dataclass(slots=True, eq=False)
class FakeSession:
    """A session as its server knows it: of which user and process, and whether it was ended."""

    username: str
    serial: int
    run_id: str
    ended: bool = False


@dataclass(slots=True)
class FakeServer:
    """One server. ``settings`` is its configuration file, ``acl_file`` what is mounted, ``told``
    what INFO says beyond its version and run.

    Only names in ``settings`` are known to it. ``keys`` are its keys; ``acl_file`` may be changed
    at any time, and ACL LOAD or ``restart`` reads it. ``mounted`` are the PEM files of certificate
    and key, read by ``restart`` and by CONFIG SET of ``tls-cert-file``; None: no TLS.
    """

    acl_file: str
    settings: Mapping[str, str] = field(default_factory=dict)
    version: Literal["8.1", "9.1"] = "9.1"
    up: bool = True
    told: dict[str, str] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)
    faults: list[Fault] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    mounted: tuple[bytes, bytes] | None = None
    run_id: str = ""
    served: ssl.SSLContext | None = None
    config: dict[str, str] = field(default_factory=dict)
    users: dict[str, FakeUser] = field(default_factory=dict)
    connected: list[FakeSession] = field(default_factory=list)

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

    def serves(self, session: FakeSession) -> bool:
        """Whether the session is still open: not once its user is gone, or the process."""
        user = self.users.get(session.username)
        same = user is not None and user.serial == session.serial
        return same and self.up and self.run_id == session.run_id and not session.ended

    def sessions(self) -> Counter[str]:
        return Counter(each.username for each in self.connected if self.serves(each))

    def kill(self, user: str, *, but: FakeSession) -> int:
        """End the sessions of a user, all ``but`` one; how many there were."""
        ended = [
            each
            for each in self.connected
            if each.username == user and each is not but and self.serves(each)
        ]
        for each in ended:
            each.ended = True
        return len(ended)

    def set_users(self, users: Mapping[str, Sequence[str]]) -> None:
        """Set each; then raises the first error, of a user that stays as it was."""
        errors = []
        for name, rules in users.items():
            changed = deepcopy(self.users.get(name, FakeUser(name)))
            try:
                changed.apply(rules)
                self.users[name] = changed
            except StoreError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def load_users(self) -> None:
        """ACL LOAD: users whose names stay keep their sessions. Raises StoreError for the file."""
        loaded = parse_users(self.acl_file)
        for name in loaded.keys() & self.users.keys():
            loaded[name].serial = self.users[name].serial
        self.users = loaded

    def delete_users(self, *names: str) -> int:
        if "default" in names:
            raise StoreError("The 'default' user cannot be removed")
        return sum(self.users.pop(name, None) is not None for name in names)

    def scan(self, cursor: int, *, match: str, count: int) -> tuple[int, list[bytes]]:
        """A cursor is a place among the keys' hashes: no key that comes or goes moves it."""
        hashed = ((crc32(as_bytes(key)), key) for key in self.keys)
        ahead = sorted(pair for pair in hashed if pair[0] >= cursor)
        following = ahead[count - 1][0] + 1 if count <= len(ahead) else 0
        seen = [key for place, key in ahead if not following or place < following]
        more = len(seen) < len(ahead)
        return following if more else 0, [as_bytes(key) for key in seen if fnmatchcase(key, match)]

    def unlink(self, *keys: str | bytes) -> int:
        there = self.keys & {as_text(key) for key in keys}
        self.keys -= there
        return len(there)

    def take_fault(self, call: str, *, after: bool) -> None:
        for fault in self.faults:
            if fault.call == call and fault.after == after and fault.times > 0:
                fault.times -= 1
                raise fault.error


def as_bytes(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")


def as_text(key: str | bytes) -> str:
    return key.decode("utf-8", "surrogateescape") if isinstance(key, bytes) else key
