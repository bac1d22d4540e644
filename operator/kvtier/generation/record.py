"""The generation record: which generations a tier has, in which state, under which token, and in
which domain its ranks belong.

It is the truth about who may read what, kept as one JSON document in the Secret ``<tier>-acl``.
The tier's status is a projection of it and can be lost.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from kvtier.api.types import KVCacheTierSpec
from kvtier.generation.entry import (
    Cause,
    GenerationEntry,
    GenerationState,
    RetiredToken,
    Retirement,
)
from kvtier.generation.identity import IDENTITY_VERSION, id_of, identity
from kvtier.placement.domain import Domain

# A token is a user name and a password in an ACL file, a line of a shell's environment and a
# string in JSON: characters that need quoting in any of them are out.
TOKEN_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{7,127}")
ID_PATTERN = re.compile(r"[0-9a-f]{12}")
MOST_SECONDS = 1e9
RESERVED_NAMES = frozenset({"default", "health", "operator", "probe", "limiter"})


class InvalidRecord(ValueError):
    """A record that cannot be acted on. One line; it holds no token."""


class LaterRecord(InvalidRecord):
    """A record that a later release wrote: it may hold a fence that this one cannot read."""


@dataclass(frozen=True, slots=True)
class Record:
    """All generations of a tier, oldest first; at most one is Live.

    ``current_id`` names the one that the spec asked for last: it is Live unless it was fenced.
    ``probe_token`` and ``limiter_token`` are None in a record of a release that had neither.
    ``domain`` is the one that the first Ready engines chose, None before that. ``credential_epoch``
    is the one of the spec that the tokens were made for.
    """

    identity_version: int
    operator_token: str = field(repr=False)
    generations: tuple[GenerationEntry, ...]
    current_id: str
    probe_token: str | None = field(default=None, repr=False)
    limiter_token: str | None = field(default=None, repr=False)
    domain: Domain | None = None
    credential_epoch: int = 0

    @property
    def current(self) -> GenerationEntry:
        """The generation that engines are to use."""
        return next(entry for entry in self.generations if entry.id == self.current_id)

    def find(self, generation: str) -> GenerationEntry | None:
        return next((entry for entry in self.generations if entry.id == generation), None)

    def put(self, entry: GenerationEntry) -> "Record":
        """The record with this entry in the place of the one with its id, or behind all."""
        if self.find(entry.id) is None:
            return replace(self, generations=(*self.generations, entry))
        generations = tuple(entry if each.id == entry.id else each for each in self.generations)
        return replace(self, generations=generations)

    def with_new_tokens(self, *, epoch: int, token: Callable[[], str]) -> "Record":
        """The record with other tokens for all that kvtier itself runs, but for the operator."""
        return replace(
            self,
            credential_epoch=epoch,
            probe_token=token() if self.probe_token else None,
            limiter_token=token() if self.limiter_token else None,
        )

    def without(self, generation: str) -> "Record":
        kept = tuple(entry for entry in self.generations if entry.id != generation)
        return replace(self, generations=kept)


def new_record(
    spec: KVCacheTierSpec,
    *,
    operator_token: str,
    engine_token: str,
    probe_token: str | None = None,
    limiter_token: str | None = None,
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
        current_id=entry.id,
        probe_token=_optional(probe_token, "probe"),
        limiter_token=_optional(limiter_token, "limiter"),
        credential_epoch=spec.rollout.credential_epoch,
    )


def to_json(record: Record) -> str:
    """The document, in the same bytes for the same record. It holds the tokens."""
    document: dict[str, Any] = {
        "identityVersion": record.identity_version,
        "operatorToken": record.operator_token,
        "generations": [_document(entry) for entry in record.generations],
    }
    # What has its first value is left out: a record of an earlier release stays as it is.
    if record.current.state is not GenerationState.LIVE:
        document["current"] = record.current_id
    if record.credential_epoch:
        document["credentialEpoch"] = record.credential_epoch
    if record.probe_token is not None:
        document["probeToken"] = record.probe_token
    if record.limiter_token is not None:
        document["limiterToken"] = record.limiter_token
    if record.domain is not None:
        document["domain"] = asdict(record.domain)
    return json.dumps(document, sort_keys=True, indent=1) + "\n"


def _document(entry: GenerationEntry) -> dict[str, Any]:
    document: dict[str, Any] = {
        "id": entry.id,
        "state": entry.state.value,
        "token": entry.token,
    }
    if entry.identity is not None:
        document["identity"] = dict(entry.identity)
    if entry.cause is not None:
        document["cause"] = entry.cause.value
    if entry.since is not None:
        document["since"] = entry.since
    if entry.drained:
        document["drained"] = entry.drained
    if entry.note is not None:
        document["note"] = entry.note
    if entry.retired:
        document["retired"] = [
            {"token": each.token, "state": each.state.value, "drained": each.drained}
            for each in entry.retired
        ]
    return document


def from_json(text: str | bytes) -> Record:
    """Read what ``to_json`` wrote.

    Raises InvalidRecord for anything else: a state that this release does not know may be a fence,
    and must not be taken for leave to read.
    """
    try:
        document = json.loads(text)
        generations = tuple(_entry(item) for item in document["generations"])
        record = Record(
            identity_version=_integer(document["identityVersion"]),
            operator_token=_token(document["operatorToken"], "operator"),
            generations=generations,
            current_id=_current(document.get("current"), generations),
            probe_token=_optional(document.get("probeToken"), "probe"),
            limiter_token=_optional(document.get("limiterToken"), "limiter"),
            domain=_domain(document.get("domain")),
            credential_epoch=_integer(document.get("credentialEpoch", 0)),
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


def _current(value: object, generations: Sequence[GenerationEntry]) -> str:
    """The id of the one that the spec named last: where none is written, the only Live one's."""
    live = [entry.id for entry in generations if entry.state is GenerationState.LIVE]
    if len(live) > 1 or (value is None and not live):
        raise InvalidRecord(f"the record has {len(live)} Live generations; it must have one")
    found = live[0] if value is None else value
    if not isinstance(found, str) or found not in {entry.id for entry in generations}:
        raise InvalidRecord("the record names a current generation that it does not have")
    return found


def _entry(item: Mapping[str, Any]) -> GenerationEntry:
    state, cause = item["state"], item.get("cause")
    if state not in set(GenerationState) or (cause is not None and cause not in set(Cause)):
        raise LaterRecord("the record has a generation in a state that this release lacks")
    fields = item.get("identity")
    if fields is not None and (not isinstance(fields, dict) or id_of(fields) != item["id"]):
        raise InvalidRecord("the record has a generation whose id is not that of its identity")
    if ID_PATTERN.fullmatch(item["id"]) is None:
        raise InvalidRecord("the record has a generation whose id is none")
    return GenerationEntry(
        id=item["id"],
        state=GenerationState(state),
        token=_token(item["token"], "engine"),
        identity=fields,
        cause=None if cause is None else Cause(cause),
        since=_text(item.get("since")),
        drained=_seconds(item.get("drained", 0.0)),
        note=_text(item.get("note")),
        retired=tuple(_retired(each) for each in item.get("retired", ())),
    )


def _retired(item: Mapping[str, Any]) -> RetiredToken:
    if item["state"] not in set(Retirement):
        raise LaterRecord("the record has a token in a state that this release lacks")
    return RetiredToken(
        token=_token(item["token"], "engine"),
        state=Retirement(item["state"]),
        drained=_seconds(item.get("drained", 0.0)),
    )


def _text(value: object) -> str | None:
    """What is only for people: anything else is nothing."""
    return value if isinstance(value, str) else None


def _seconds(value: object) -> float:
    """A drain that cannot be read starts again: it fences later, never earlier."""
    usable = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if usable and 0 <= value < MOST_SECONDS else 0.0  # type: ignore[arg-type,operator]


def _domain(value: object) -> Domain | None:
    """One that cannot be read is none: engines choose it again, and it fences nobody."""
    names = ("level", "key", "value")
    if not isinstance(value, dict):
        return None
    found = {name: value.get(name) for name in names}
    texts = {name: each for name, each in found.items() if isinstance(each, str) and each}
    return Domain(**texts) if len(texts) == len(names) else None


def _check_generations(record: Record) -> None:
    if len({entry.id for entry in record.generations}) != len(record.generations):
        raise InvalidRecord("the record has one generation twice")
    names = [token for entry in record.generations for token in entry.tokens()]
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


def _optional(value: object, whose: str) -> str | None:
    return None if value is None else _token(value, whose)


def _integer(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError
    return value
