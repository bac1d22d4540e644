"""Pure: what the record of generations makes of a tier's objects, its condition and its status."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kvtier.api import reasons
from kvtier.api.conditions import Condition, bounded
from kvtier.api.types import KVCacheTier
from kvtier.generation.acl import fenced_tokens
from kvtier.generation.case import Fences
from kvtier.generation.entry import Cause, GenerationEntry, GenerationState
from kvtier.generation.record import Record
from kvtier.plan.children import ChildPlan
from kvtier.plan.observed import (
    Apply,
    ChildKey,
    Delete,
    LoadAcl,
    Observed,
    SetUsers,
    StoreAction,
    is_owned_by,
)
from kvtier.plan.pool import tier_of
from kvtier.render.engine import engine_secret
from kvtier.render.kept import kept_secret
from kvtier.render.names import acl_name, engine_secret_name

State = GenerationState
MOST_ROWS = 16
"""As in the schema of the status."""


def other_secrets(observed: Observed, *, ca: str | None) -> list[dict[str, Any]]:
    """The engine Secrets of generations that the spec does not name."""
    tier, record = observed.tier, observed.record
    intents = []
    for entry in record.generations:
        if entry.id == record.current_id or entry.id in observed.leaving:
            continue
        found = observed.children.get(_key(tier, entry.id))
        if found is not None and is_owned_by(found, tier.metadata.uid):
            intents.append(kept_secret(tier, entry, found, ca=ca))
        elif found is None and entry.has_access:
            own = tier_of(tier, entry, version=record.identity_version)
            if own is not None:
                intents.append(engine_secret(own, replace(record, current_id=entry.id), ca=ca))
    return intents


def unneeded(observed: Observed) -> tuple[Delete, ...]:
    """Secrets of generations that nobody uses any more."""
    found = []
    for generation in sorted(observed.leaving):
        kind, name = _key(observed.tier, generation)
        obj = observed.children.get((kind, name))
        if obj is not None and is_owned_by(obj, observed.tier.metadata.uid):
            found.append(Delete(kind=kind, name=name, uid=obj["metadata"]["uid"]))
    return tuple(found)


def kept(children: Sequence[ChildKey], *, tier: KVCacheTier, record: Record) -> frozenset[str]:
    """The generations whose Secret exists."""
    there = set(children)
    return frozenset(entry.id for entry in record.generations if _key(tier, entry.id) in there)


def fence_applies(tier: KVCacheTier, record: Record, children: ChildPlan) -> tuple[Apply, ...]:
    """What a paused tier writes all the same: its record, when that fences something."""
    if not any(fenced_tokens(record)):
        return ()
    name = acl_name(tier.metadata.name)
    return tuple(apply for apply in children.applies if apply.intent["metadata"]["name"] == name)


def while_paused(record: Record, actions: Sequence[StoreAction]) -> tuple[StoreAction, ...]:
    if not any(fenced_tokens(record)):
        return ()
    return tuple(action for action in actions if isinstance(action, SetUsers | LoadAcl))


def _key(tier: KVCacheTier, generation: str) -> ChildKey:
    return "Secret", engine_secret_name(tier.metadata.name, generation)


def generation_current(observed: Observed, *, created: Sequence[ChildKey]) -> Condition:
    """Whether engines have a generation to use, and it is the one that the spec names."""
    tier, entry = observed.tier, observed.record.current
    key = _key(tier, entry.id)
    found = observed.children.get(key)
    owned = found is not None and is_owned_by(found, tier.metadata.uid)
    if not (owned or key in created):
        return _condition(False, reasons.NOT_PUBLISHED, f"Secret {key[1]} does not exist yet.")
    if entry.state is State.LIVE:
        return _condition(
            True, reasons.LIVE, f"Engines use generation {entry.id} by Secret {key[1]}."
        )
    reason = {
        Cause.CONTAMINATED: reasons.GENERATION_CONTAMINATED,
        Cause.POOL_DRIFTED: reasons.POOL_DRIFTED,
    }.get(entry.cause or Cause.DRAINED, reasons.GENERATION_FENCED)
    return _condition(
        False,
        reason,
        f"{_noted(entry)}Engines of generation {entry.id} find nothing until it has access again. "
        f"{next_step(observed, entry)}",
    )


def _condition(status: bool, reason: str, message: str) -> Condition:
    return Condition(
        type=reasons.GENERATION_CURRENT, status=status, reason=reason, message=bounded(message)
    )


def rows(observed: Observed) -> list[dict[str, Any]]:
    """``status.generations``: oldest first, each with what it waits for."""
    return [_row(observed, entry) for entry in observed.record.generations[-MOST_ROWS:]]


def _row(observed: Observed, entry: GenerationEntry) -> dict[str, Any]:
    row: dict[str, Any] = {"id": entry.id, "state": entry.state.value}
    if entry.cause is not None:
        row["cause"] = entry.cause.value
    if entry.since is not None:
        row["since"] = entry.since
    step = next_step(observed, entry)
    if entry.id != observed.record.current_id:
        # Of the current one the condition says it.
        step = f"{_noted(entry)}{step}".strip()
    if step:
        row["message"] = bounded(step)
    return row


def _noted(entry: GenerationEntry) -> str:
    """What contaminated it, as a sentence and a space."""
    return f"{entry.note[0].upper()}{entry.note[1:]}. " if entry.note else ""


def next_step(observed: Observed, entry: GenerationEntry) -> str:
    """What has to happen until it is one step further; empty where nothing has to."""
    record, fences = observed.record, observed.fences
    timeout = observed.tier.spec.rollout.drain_timeout
    match entry.state:
        case State.LIVE:
            return ""
        case State.PENDING:
            return "Made for engines that run it; it waits for the spec to name it."
        case State.DRAINING:
            return f"Fenced once Ready engines have used {record.current_id} for {timeout}."
        case State.FENCED | State.CONTAMINATED:
            return _of_fenced(entry, fences)
        case State.PURGED:
            if entry.id == record.current_id:
                return "It waits until no pod of another identity mounts its Secret."
            return "It goes once no pod mounts its Secret and no session of its user is left."


def _of_fenced(entry: GenerationEntry, fences: Fences | None) -> str:
    if fences is None or fences.ranks - fences.gone:
        left = _named(fences.ranks - fences.gone) if fences else "some rank"
        return f"It is not proven yet that its access is gone on {left}."
    if fences.ranks - fences.delivered:
        return (
            "Its access is gone. The kubelet has yet to bring the new file of users to "
            f"{_named(fences.ranks - fences.delivered)}, for a restart."
        )
    left_keys = fences.ranks - fences.purged.get(entry.id, frozenset())
    return f"Its keys are being deleted on {_named(left_keys)}." if left_keys else ""


def _named(ranks: frozenset[int]) -> str:
    shown = ", ".join(map(str, sorted(ranks)[:8]))
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}{more}"
