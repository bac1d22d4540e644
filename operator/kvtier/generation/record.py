"""The generation record: which generations a tier has, in which state, under which token, and in
which domain its ranks belong.

It is the truth about who may read what, kept as one JSON document in the Secret ``<tier>-acl``.
The tier's status is a projection of it and can be lost.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from kvtier.api.types import KVCacheTierSpec
from kvtier.generation.identity import IDENTITY_VERSION, id_of, identity
from kvtier.placement.domain import Domain

# A token is a user name and a password in an ACL file, a line of a shell's environment and a
# string in JSON: characters that need quoting in any of them are out.
TOKEN_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{7,127}")
RESERVED_NAMES = frozenset({"default", "health", "operator", "probe", "limiter"})


class InvalidRecord(ValueError):
    """A record that cannot be acted on. One line; it holds no token."""


class LaterRecord(InvalidRecord):
    """A record that a later release wrote: it may hold a fence that this one cannot read."""


class GenerationState(StrEnum):
    """Where a generation is in its life."""

    LIVE = "Live"


@dataclass(frozen=True, slots=True)
class GenerationEntry:
    """One generation. ``token`` is both name and password of its engine user."""

    id: str
    state: GenerationState
    token: str = field(repr=False)
    identity: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Record:
    """All generations of a tier, oldest first; at most one is Live.

    ``probe_token`` is None in a record of a release that had no probe. ``domain`` is the one that
    the first Ready engines chose, None before that.
    """

    identity_version: int
    operator_token: str = field(repr=False)
    generations: tuple[GenerationEntry, ...]
    probe_token: str | None = field(default=None, repr=False)
    domain: Domain | None = None

    @property
    def live(self) -> GenerationEntry:
        """The generation that engines are to use. Raises InvalidRecord if there is none."""
        for entry in self.generations:
            if entry.state is GenerationState.LIVE:
                return entry
        raise InvalidRecord("the record names no Live generation")


def new_record(
    spec: KVCacheTierSpec, *, operator_token: str, engine_token: str, probe_token: str | None = None
) -> Record:
    """The record of a tier that has none: one Live generation, the newest identity version.

    Raises InvalidRecord for a token that an ACL file could not hold as it is.
    """
    fields = identity(spec)
    entry = GenerationEntry(
        id=id_of(fields),
        state=GenerationState.LIVE,
        token=_token(engine_token, "engine"),
        identity=fields,
    )
    return Record(
        identity_version=IDENTITY_VERSION,
        operator_token=_token(operator_token, "operator"),
        generations=(entry,),
        probe_token=None if probe_token is None else _token(probe_token, "probe"),
    )


def to_json(record: Record) -> str:
    """The document, in the same bytes for the same record. It holds the tokens."""
    document: dict[str, Any] = {
        "identityVersion": record.identity_version,
        "operatorToken": record.operator_token,
        "generations": [
            {
                "id": entry.id,
                "state": entry.state.value,
                "token": entry.token,
                "identity": dict(entry.identity),
            }
            for entry in record.generations
        ],
    }
    if record.probe_token is not None:
        document["probeToken"] = record.probe_token
    if record.domain is not None:
        document["domain"] = asdict(record.domain)
    return json.dumps(document, sort_keys=True, indent=1) + "\n"


def from_json(text: str | bytes) -> Record:
    """Read what ``to_json`` wrote.

    Raises InvalidRecord for anything else: a state that this release does not know may be a fence,
    and must not be taken for leave to read.
    """
    try:
        document = json.loads(text)
        probe_token = document.get("probeToken")
        record = Record(
            identity_version=_integer(document["identityVersion"]),
            operator_token=_token(document["operatorToken"], "operator"),
            generations=tuple(_entry(item) for item in document["generations"]),
            probe_token=None if probe_token is None else _token(probe_token, "probe"),
            domain=_domain(document.get("domain")),
        )
    except InvalidRecord:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        # The error's own text may quote the document, and the document holds tokens.
        raise InvalidRecord(f"the record is not readable ({type(error).__name__})") from None
    if record.identity_version != IDENTITY_VERSION:
        raise LaterRecord(
            f"the record has identity version {record.identity_version}; this release knows "
            f"{IDENTITY_VERSION}"
        )
    _check_generations(record)
    return record


def _entry(item: Mapping[str, Any]) -> GenerationEntry:
    state = item["state"]
    if state not in set(GenerationState):
        raise LaterRecord("the record has a generation in a state that this release lacks")
    fields = item["identity"]
    if not isinstance(fields, dict) or id_of(fields) != item["id"]:
        raise InvalidRecord("the record has a generation whose id is not that of its identity")
    return GenerationEntry(
        id=item["id"],
        state=GenerationState(state),
        token=_token(item["token"], "engine"),
        identity=fields,
    )


def _domain(value: object) -> Domain | None:
    """One that cannot be read is none: engines choose it again, and it fences nobody."""
    names = ("level", "key", "value")
    if not isinstance(value, dict):
        return None
    found = {name: value.get(name) for name in names}
    texts = {name: each for name, each in found.items() if isinstance(each, str) and each}
    return Domain(**texts) if len(texts) == len(names) else None


def _check_generations(record: Record) -> None:
    live = [entry for entry in record.generations if entry.state is GenerationState.LIVE]
    if len(live) != 1:
        raise InvalidRecord(f"the record has {len(live)} Live generations; it must have one")
    names = [entry.token for entry in record.generations]
    if len(set(names)) != len(names):
        raise InvalidRecord("the record has two generations with one token")


def _token(value: object, whose: str) -> str:
    if (
        not isinstance(value, str)
        or TOKEN_PATTERN.fullmatch(value) is None
        or value in RESERVED_NAMES
    ):
        raise InvalidRecord(
            f"the {whose} token must be 8 to 128 letters, digits or dashes and no user's name"
        )
    return value


def _integer(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError
    return value
