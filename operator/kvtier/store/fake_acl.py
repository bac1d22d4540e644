"""The part of Valkey's ACL that kvtier's own rules use, in memory."""

import fnmatch
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from kvtier.store.protocol import AclUser, StoreError

KEY_COMMANDS = {
    "get": slice(0, 1),
    "getrange": slice(0, 1),
    "strlen": slice(0, 1),
    "set": slice(0, 1),
    "exists": slice(0, None),
    "mget": slice(0, None),
    "touch": slice(0, None),
    "del": slice(0, None),
    "unlink": slice(0, None),
}
"""Commands that name keys -> which of their arguments do."""

_serials = count()


def sha256(password: str) -> str:
    return hashlib.sha256(password.encode()).hexdigest()


@dataclass(slots=True)
class FakeUser:
    """A user as the server keeps it; a new one is off and may do nothing.

    ``serial`` tells it from an earlier user of the same name, whose sessions ended with it.
    """

    name: str
    enabled: bool = False
    nopass: bool = False
    passwords: set[str] = field(default_factory=set)
    all_commands: bool = False
    commands: dict[str, bool] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)
    channels: list[str] = field(default_factory=list)
    serial: int = field(default_factory=lambda: next(_serials))

    def apply(self, rules: Sequence[str]) -> None:
        """Apply rules in order. Raises StoreError for one that is not known here."""
        for rule in rules:
            self._apply(rule)

    def _apply(self, rule: str) -> None:
        match rule[:1], rule[1:]:
            case "+", command if not command.startswith("@"):
                self.commands[command.lower()] = True
            case "-", command if not command.startswith("@"):
                self.commands[command.lower()] = False
            case ">", password:
                self.passwords.add(sha256(password))
                self.nopass = False
            case "#", hashed if len(hashed) == 64:
                self.passwords.add(hashed)
                self.nopass = False
            case "~", pattern:
                self.keys.append(pattern)
            case "&", pattern:
                self.channels.append(pattern)
            case _:
                self._apply_word(rule)

    def _apply_word(self, rule: str) -> None:
        match rule.lower():
            case "on" | "off":
                self.enabled = rule.lower() == "on"
            case "nopass":
                self.nopass = True
                self.passwords.clear()
            case "resetpass":
                self.nopass = False
                self.passwords.clear()
            case "+@all" | "allcommands" | "-@all" | "nocommands":
                self.all_commands = rule.lower() in {"+@all", "allcommands"}
                self.commands.clear()
            case "allkeys":
                self.keys = ["*"]
            case "resetkeys":
                self.keys.clear()
            case "allchannels":
                self.channels = ["*"]
            case "resetchannels":
                self.channels.clear()
            case "sanitize-payload" | "alldbs":
                pass
            case "reset":
                self.__init__(self.name, serial=self.serial)  # type: ignore[misc]
            case _:
                raise StoreError(f"Error in ACL SETUSER modifier '{rule}': Syntax error")

    def accepts(self, password: str) -> bool:
        return self.enabled and (self.nopass or sha256(password) in self.passwords)

    def may_run(self, *command: str) -> bool:
        """Whether the command (``config|get`` and the like in one word) may be run on its keys."""
        name, *arguments = command
        if not self.commands.get(
            name, self.commands.get(name.partition("|")[0], self.all_commands)
        ):
            return False
        return all(
            any(fnmatch.fnmatchcase(key, pattern) for pattern in self.keys)
            for key in arguments[KEY_COMMANDS.get(name, slice(0, 0))]
        )

    def view(self) -> AclUser:
        words = [f"{'+' if allowed else '-'}{name}" for name, allowed in self.commands.items()]
        return AclUser(
            name=self.name,
            enabled=self.enabled,
            nopass=self.nopass,
            passwords=frozenset(self.passwords),
            commands=" ".join(["+@all" if self.all_commands else "-@all", *words]),
            keys=" ".join(f"~{pattern}" for pattern in self.keys),
            channels=" ".join(f"&{pattern}" for pattern in self.channels),
        )

    def line(self) -> str:
        view = self.view()
        words = ["on" if view.enabled else "off", "nopass" if view.nopass else ""]
        words += [f"#{hashed}" for hashed in sorted(view.passwords)]
        words += [view.keys, view.channels or "resetchannels", view.commands]
        return " ".join(["user", self.name, *filter(None, words)])


def parse_users(acl_file: str) -> dict[str, FakeUser]:
    """Users of an ACL file. Raises StoreError as ACL LOAD does; nothing is loaded then."""
    users = {"default": FakeUser("default")}
    users["default"].apply(["on", "nopass", "allkeys", "allchannels", "allcommands"])
    for number, line in enumerate(acl_file.splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if words[0] != "user" or len(words) < 2:
            raise StoreError(f"users.acl:{number}: line does not begin with 'user <name>'")
        user = FakeUser(words[1])
        try:
            user.apply(words[2:])
        except StoreError as error:
            raise StoreError(f"users.acl:{number}: {error}") from None
        users[user.name] = user
    return users
