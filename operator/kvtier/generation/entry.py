"""One generation of a tier: its state, and the tokens that give access to its keys."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class GenerationState(StrEnum):
    """Where a generation is in its life.

    ``Live`` is the one that the spec names. ``Pending`` was made for engines that run another
    identity than the spec's, and waits for the spec to name it. ``Draining`` still has access,
    ``Fenced`` and ``Contaminated`` have none, ``Purged`` has no keys either.
    """

    PENDING = "Pending"
    LIVE = "Live"
    DRAINING = "Draining"
    FENCED = "Fenced"
    PURGED = "Purged"
    CONTAMINATED = "Contaminated"


WITH_ACCESS = frozenset({GenerationState.PENDING, GenerationState.LIVE, GenerationState.DRAINING})


class Cause(StrEnum):
    """Why a generation lost its access."""

    DRAINED = "Drained"
    SALT_CHANGED = "SaltChanged"
    CONTAMINATED = "Contaminated"
    POOL_DRIFTED = "PoolDrifted"


POISONED = frozenset({Cause.CONTAMINATED, Cause.SALT_CHANGED})
"""After these nobody knows of which weights the keys are: they are deleted, and new tokens made,
before the generation is read again."""


class Retirement(StrEnum):
    """What an earlier token of a generation may still do: all, look in vain, or not even connect.

    A user without keys keeps its sessions, and every look-up is a miss at once. One that is off
    makes LMCache wait on every request: that is for tokens that others may have.
    """

    VALID = "Valid"
    FENCED = "Fenced"
    REVOKED = "Revoked"


@dataclass(frozen=True, slots=True)
class RetiredToken:
    """An earlier token. ``drained`` is for how many seconds its successor has been published."""

    token: str = field(repr=False)
    state: Retirement
    drained: float = 0.0


@dataclass(frozen=True, slots=True)
class GenerationEntry:
    """One generation. ``token`` is both name and password of its engine user.

    ``identity`` is None for one that was found on the ranks after its record was lost. ``since`` is
    when it came into its state (RFC 3339), for people only. ``drained`` is for how many seconds
    engines have used its successor, as last written down. ``note`` says in a sentence what
    contaminated it.
    """

    id: str
    state: GenerationState
    token: str = field(repr=False)
    identity: Mapping[str, Any] | None = field(repr=False)
    cause: Cause | None = None
    since: str | None = None
    drained: float = 0.0
    note: str | None = None
    retired: tuple[RetiredToken, ...] = ()

    @property
    def has_access(self) -> bool:
        return self.state in WITH_ACCESS

    @property
    def serves_at_once(self) -> bool:
        """Whether what it holds may be read again: it lost access, if at all, by time alone."""
        ended = self.state in (GenerationState.FENCED, GenerationState.PURGED)
        return self.has_access or (ended and self.cause not in POISONED)

    def tokens(self) -> Iterator[str]:
        """All tokens of it that servers know."""
        yield self.token
        yield from (each.token for each in self.retired)

    def fenced_tokens(self) -> Iterator[str]:
        """Those that must not reach a key."""
        if not self.has_access:
            yield self.token
        for each in self.retired:
            if not self.has_access or each.state is not Retirement.VALID:
                yield each.token
