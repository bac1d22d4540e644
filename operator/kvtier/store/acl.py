"""``ACL GETUSER`` replies as plain data, and what a loaded ACL file proves."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvtier.store.protocol import REVISION_USER, AclUser, StoreError


def check_users(users: Mapping[str, Sequence[str]]) -> None:
    """Raises ValueError if setting them would overwrite the proof of which file was loaded."""
    if REVISION_USER in users:
        raise ValueError(f"{REVISION_USER} is the file's own: setting it would prove nothing")


def parse_getuser(name: str, reply: Any) -> AclUser | None:
    """The flat list of names and values that RESP2 gives; None where there is no such user."""
    if reply is None:
        return None
    try:
        fields = dict(zip(reply[::2], reply[1::2], strict=True))
        flags = fields["flags"]
        return AclUser(
            name=name,
            enabled="on" in flags,
            nopass="nopass" in flags,
            passwords=frozenset(fields["passwords"]),
            commands=fields["commands"],
            keys=fields["keys"],
            channels=fields["channels"],
        )
    except (KeyError, TypeError, ValueError):
        raise StoreError("ACL GETUSER answered in a form that is not known") from None


def revision(user: AclUser | None) -> str | None:
    """The hash that the loaded ACL file carries as the password of ``_rev``."""
    return next(iter(sorted(user.passwords)), None) if user else None
