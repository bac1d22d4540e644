"""ACL files and ``ACL GETUSER`` replies as plain data."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvtier.store.protocol import REVISION_USER, AclUser, StoreError


def rules_by_user(acl_file: str) -> dict[str, list[str]]:
    """Every user of an ACL file but ``_rev``, with rules that begin with ``reset``.

    The form that ``Store.acl_load`` and ``Store.acl_setuser`` take: applied to a user in any
    state they lead to exactly what the file says. Raises ValueError for a line that is neither
    empty, a comment, nor ``user <name> <rules>``.
    """
    users: dict[str, list[str]] = {}
    for number, line in enumerate(acl_file.splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if words[0] != "user" or len(words) < 2:
            raise ValueError(f"line {number} of the ACL file does not begin with 'user <name>'")
        name, *rules = words[1:]
        if name != REVISION_USER:
            users[name] = ["reset", *(rule for rule in rules if rule != "reset")]
    return users


def check_load(users: Mapping[str, Sequence[str]]) -> None:
    """Raises ValueError if loading would overwrite the proof of which file was loaded."""
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
