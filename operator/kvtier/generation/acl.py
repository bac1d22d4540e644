"""The users of a rank's Valkey, as the record has them.

Valkey itself enforces who reads what: an engine's user reaches only its generation's keys of its
own rank. The same rules are the ACL file that a rank loads when it starts and the SETUSER commands
that put a running rank right.
"""

import hashlib

from kvtier.generation.entry import Retirement
from kvtier.generation.record import Record

DEFAULT_USER = "default"
HEALTH_USER = "health"
LIMITER_USER = "limiter"
OPERATOR_USER = "operator"
PROBE_USER = "probe"
REVISION_USER = "_rev"

# Only what clients were seen to need: LMCache's Valkey client connects with HELLO, AUTH, CLIENT
# SETINFO, CLIENT SETNAME and INFO, and stores with GET, SET and EXISTS. FLUSHDB and SCAN take no
# key, so no key pattern holds them: they must not be here.
ENGINE_COMMANDS = (
    *("get", "set", "exists"),
    *("hello", "auth", "ping", "info", "client|setinfo", "client|setname"),
)
# It stores a few values of its own, reads them and takes them away again; INFO says whether the
# rank is full.
PROBE_COMMANDS = ("ping", "info", "get", "set", "unlink")
# It asks whether a rank is there, which run of its server that is and how much it holds.
LIMITER_COMMANDS = ("hello", "auth", "ping", "info", "client|setinfo", "client|setname")
OPERATOR_COMMANDS = (
    *("hello", "auth", "ping", "info", "client|setinfo", "client|setname"),
    *("acl|setuser", "acl|deluser", "acl|dryrun", "acl|load"),
    *("acl|getuser", "acl|list", "acl|users"),
    *("client|kill", "client|list"),
    *("multi", "exec"),
    *("config|get", "config|set"),
    *("dbsize", "scan", "unlink", "flushdb"),
)


def key_prefix(generation: str, rank: int) -> str:
    """The prefix of a generation's keys on one rank; engines put an ``@`` behind it.

    The rank is part of it: with one LMCache server per rank the rest of a key is the same on every
    rank, and an address that points at the wrong rank must be a miss, not another rank's heads.
    """
    return f"kvt-{generation}-r{rank}"


def probe_prefix(rank: int) -> str:
    """The prefix of the probe's own keys on one rank; an ``@`` comes behind it."""
    return f"kvt-probe-r{rank}"


def users(record: Record, *, rank: int) -> dict[str, tuple[str, ...]]:
    """The ACL rules of every user of a rank, each list beginning with ``reset``, without ``_rev``.

    ``reset`` leaves a user off, without passwords, keys, channels or commands.
    """
    rules: dict[str, tuple[str, ...]] = {
        DEFAULT_USER: ("reset",),
        # Any word is its password: the readiness probe needs no secret, and PING gives nothing
        # away. ``nopass`` cannot be had without AUTH, so the probe still names the user.
        HEALTH_USER: ("reset", "on", "nopass", "+ping"),
        OPERATOR_USER: (
            "reset",
            "on",
            _password(record.operator_token),
            "~*",
            *_allow(OPERATOR_COMMANDS),
        ),
    }
    if record.probe_token is not None:
        rules[PROBE_USER] = (
            "reset",
            "on",
            _password(record.probe_token),
            f"~{probe_prefix(rank)}@*",
            *_allow(PROBE_COMMANDS),
        )
    if record.limiter_token is not None:
        rules[LIMITER_USER] = (
            "reset",
            "on",
            _password(record.limiter_token),
            *_allow(LIMITER_COMMANDS),
        )
    for entry in record.generations:
        keys = (f"~{key_prefix(entry.id, rank)}@*",) if entry.has_access else ()
        rules[entry.token] = _engine(entry.token, keys)
        for each in entry.retired:
            match each.state:
                case Retirement.VALID:
                    rules[each.token] = _engine(each.token, keys)
                case Retirement.FENCED:
                    rules[each.token] = _engine(each.token, ())
                case Retirement.REVOKED:
                    rules[each.token] = ("reset",)
    return rules


def revoked_tokens(record: Record) -> tuple[str, ...]:
    """Names of users that are off, whose open sessions are to end."""
    return tuple(
        each.token
        for entry in record.generations
        for each in entry.retired
        if each.state is Retirement.REVOKED
    )


def fenced_tokens(record: Record) -> dict[str, str]:
    """Engine users that must not reach a key -> the generation that they are of."""
    return {token: entry.id for entry in record.generations for token in entry.fenced_tokens()}


def _engine(token: str, keys: tuple[str, ...]) -> tuple[str, ...]:
    """A user without keys still connects, and finds nothing: every look-up is a miss at once."""
    return ("reset", "on", _password(token), *keys, *_allow(ENGINE_COMMANDS))


def acl_file(record: Record, *, rank: int) -> str:
    """The ACL file of one rank, ending with the user that carries its revision."""
    revision = acl_revision(record, rank=rank)
    return f"{_lines(record, rank=rank)}user {REVISION_USER} reset #{revision}\n"


def acl_revision(record: Record, *, rank: int) -> str:
    """SHA-256 (hex) of the file's users.

    The file gives it to the user ``_rev``, who is off and has it as password hash: ACL GETUSER
    ``_rev`` then tells which file a server has loaded, and nothing else can.
    """
    return hashlib.sha256(_lines(record, rank=rank).encode("ascii")).hexdigest()


def _lines(record: Record, *, rank: int) -> str:
    return "".join(
        f"user {name} {' '.join(rules)}\n" for name, rules in users(record, rank=rank).items()
    )


def _password(token: str) -> str:
    return f"#{hashlib.sha256(token.encode('ascii')).hexdigest()}"


def _allow(commands: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"+{command}" for command in commands)
