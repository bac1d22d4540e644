"""Pure: from what was observed to what to do. No clock, no I/O, no randomness."""

from collections.abc import Mapping, Sequence

from kvtier.generation.acl import acl_revision
from kvtier.plan.children import ChildPlan, plan_children
from kvtier.plan.observed import (
    ChildKey,
    LoadAcl,
    Object,
    Observed,
    Plan,
    RankState,
    SetConfig,
    StoreAction,
    child_key,
)
from kvtier.plan.ranks import rank_states, restart_hash, restarts
from kvtier.render.names import rank_name
from kvtier.render.render import RenderSettings, render
from kvtier.render.valkey_conf import settings as valkey_settings
from kvtier.store.config import differing

CONFLICT_RETRY = 30.0
"""Seconds until a taken name is looked at again: its deletion sends kvtier no event."""
STORE_RETRY = 5.0
"""Seconds until a rank that did not answer, or has not got its new ACL file yet, is asked again."""


def make_plan(
    observed: Observed, *, settings: RenderSettings, restart_reason: str | None = None
) -> Plan:
    """What brings the cluster and the ranks to the tier's intent.

    ``restart_reason`` is the field whose change asked for the restart that may be under way.
    """
    ranks = rank_states(observed.tier, children=observed.children, pods=observed.pods)
    intents = render(observed.tier, observed.record, settings=settings)
    children = plan_children(intents, live=observed.children, uid=observed.tier.metadata.uid)
    by_key: Mapping[ChildKey, Object] = {child_key(intent): intent for intent in intents}
    actions = _store_actions(observed, ranks, intents=by_key)
    pods, events = restarts(observed, intents=by_key, reason=restart_reason)
    if observed.tier.spec.paused:
        return Plan(
            conflicts=children.conflicts,
            pending=_described(children, actions=actions, restarting=len(pods)),
            ranks=ranks,
            requeue_after=_requeue(observed, children, actions=()),
        )
    return Plan(
        creates=children.creates,
        applies=children.applies,
        prunes=children.prunes,
        restarts=pods,
        store_actions=actions,
        conflicts=children.conflicts,
        events=events,
        ranks=ranks,
        requeue_after=_requeue(observed, children, actions=actions),
    )


def _store_actions(
    observed: Observed, ranks: Sequence[RankState], *, intents: Mapping[ChildKey, Object]
) -> tuple[StoreAction, ...]:
    wanted = valkey_settings(observed.tier.spec).live
    actions: list[StoreAction] = []
    for state in ranks:
        facts = observed.stores.get(state.rank)
        if facts is None or facts.error is not None:
            continue
        intent = intents["StatefulSet", rank_name(observed.tier.metadata.name, state.rank)]
        if state.restart_hash != restart_hash(intent):
            # It is about to restart, and until then its memory limit is the old one: a larger
            # maxmemory would be more than it has.
            continue
        if facts.acl_revision != acl_revision(observed.record, rank=state.rank):
            actions.append(LoadAcl(rank=state.rank))
        changed = differing(wanted, facts.config)
        if changed:
            actions.append(
                SetConfig(rank=state.rank, values={name: wanted[name] for name in changed})
            )
    return tuple(actions)


def _requeue(
    observed: Observed, children: ChildPlan, *, actions: Sequence[StoreAction]
) -> float | None:
    if actions or any(facts.error for facts in observed.stores.values()):
        return STORE_RETRY
    return CONFLICT_RETRY if children.conflicts else None


def _described(
    children: ChildPlan, *, actions: Sequence[StoreAction], restarting: int
) -> tuple[str, ...]:
    """What is not done while the tier is paused, for the condition's message."""
    lines = [f"create {kind} {name}" for kind, name in map(child_key, children.creates)]
    for apply in children.applies:
        kind, name = child_key(apply.intent)
        lines.append(f"change {apply.field} of {kind} {name}")
    lines.extend(f"delete {prune.kind} {prune.name}" for prune in children.prunes)
    for action in actions:
        what = "settings" if isinstance(action, SetConfig) else "users"
        lines.append(f"change {what} of rank {action.rank}")
    if restarting:
        lines.append(f"restart {restarting} ranks")
    return tuple(lines)
