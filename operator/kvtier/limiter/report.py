"""Pure: what replicas tell each other of their tiers, as data and as JSON."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

Key = tuple[str, str]
"""Namespace and name of a tier."""
_TEXTS: Final = ("namespace", "name", "mode", "state")
_MAY_BE_NONE: Final = ("limit", "max_queued")


class BadReport(ValueError):
    """It is no report of a replica; the message is one line."""


@dataclass(frozen=True, slots=True)
class TierReport:
    """One tier as one replica has it.

    ``demand`` and ``offered`` are tokens/s that come to this replica (quick to rise, and the mean
    of a second), ``queued`` the tokens that wait by its own estimate. ``mode``, ``state`` and
    ``limit`` (tokens/s of all replicas, None: no limit) are of its own machine, never what it has
    from others; ``age`` is for how many seconds the state has been. ``max_queued`` and
    ``mean_prompt`` are tokens.
    """

    namespace: str
    name: str
    demand: float
    offered: float
    queued: float
    mode: str
    state: str
    age: float
    mean_prompt: float
    limit: float | None = None
    max_queued: float | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """All tiers of the replica called ``replica``; ``run`` is new with each start of it."""

    replica: str
    run: str
    tiers: Mapping[Key, TierReport]


def to_json(*, replica: str, run: str, tiers: Sequence[TierReport]) -> dict[str, Any]:
    return {"replica": replica, "run": run, "tiers": [asdict(tier) for tier in tiers]}


def from_json(document: object) -> Report:
    """Raises BadReport. What is there beyond the known fields is of a later release."""
    if not isinstance(document, dict) or not isinstance(document.get("tiers"), list):
        raise BadReport("tiers: not a list; send what GET /peers answers")
    tiers = [_tier(entry) for entry in document["tiers"]]
    return Report(
        replica=_text(document, "replica"),
        run=_text(document, "run"),
        tiers={(tier.namespace, tier.name): tier for tier in tiers},
    )


def _tier(entry: object) -> TierReport:
    if not isinstance(entry, dict):
        raise BadReport("tiers: an entry is not an object")
    values = {
        field.name: _text(entry, field.name)
        if field.name in _TEXTS
        else _number(entry, field.name, may_be_none=field.name in _MAY_BE_NONE)
        for field in fields(TierReport)
    }
    return TierReport(**values)  # type: ignore[arg-type]


def _text(entry: Mapping[str, object], name: str) -> str:
    value = entry.get(name)
    if not isinstance(value, str):
        raise BadReport(f"{name}: not a string")
    return value


def _number(entry: Mapping[str, object], name: str, *, may_be_none: bool) -> float | None:
    value = entry.get(name)
    if value is None and may_be_none:
        return None
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not 0 <= value <= sys.float_info.max:  # type: ignore[operator]
        raise BadReport(f"{name}: not a number that is 0 or more")
    return float(value)  # type: ignore[arg-type]
