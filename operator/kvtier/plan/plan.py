"""Pure: from what was observed to what to do. No clock, no I/O, no randomness."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from kvtier.breakeven.words import counted
from kvtier.generation.acl import acl_revision, fenced_tokens
from kvtier.generation.record import Record
from kvtier.placement.findings import Finding
from kvtier.plan import tls
from kvtier.plan.children import ChildPlan, plan_children, restart_field
from kvtier.plan.generations import fence_applies, other_secrets, unneeded, while_paused
from kvtier.plan.lost_nodes import look_again, lost_pods
from kvtier.plan.observed import (
    ChildKey,
    Delete,
    LoadAcl,
    Object,
    Observed,
    Plan,
    RankState,
    ReloadCertificate,
    SetConfig,
    SetUsers,
    StoreAction,
    StoreFacts,
    child_key,
    is_owned_by,
)
from kvtier.plan.placement import moves, moving
from kvtier.plan.ranks import outdated, rank_states, restarts
from kvtier.render.render import RenderSettings, render
from kvtier.render.valkey_conf import settings as valkey_settings
from kvtier.store.config import differing

CONFLICT_RETRY = 30.0
"""Seconds until a taken name is looked at again: its deletion sends kvtier no event."""
LEFTOVER_RETRY = 1.0
"""Seconds until it is looked again whether a deleted tier of the same name has let go of a name."""
FENCE_RETRY = 1.0
"""Seconds until a rank that could restart with an old ACL file is looked at again."""
STORE_RETRY = 5.0
"""Seconds until a rank that did not answer, or has not got its new ACL file yet, is asked again."""
_VERBS = {
    SetConfig: "change settings",
    SetUsers: "change users",
    LoadAcl: "load users",
    ReloadCertificate: "give engines the CA of the renewed certificate, then load the certificate",
}


def make_plan(
    observed: Observed,
    *,
    settings: RenderSettings,
    now: datetime,
    restart_reason: str | None = None,
    rejected: Finding | None = None,
) -> Plan:
    """What brings the cluster and the ranks to the tier's intent.

    ``now`` is held against times that the API server wrote. ``restart_reason`` is what an earlier
    plan said of the restart that may be under way. ``rejected`` is why a new tier is not to be
    made; one that has ranks already is brought to its intent all the same.
    """
    tier = observed.tier
    if rejected is not None and not _has_ranks(observed):
        return Plan(rejected=rejected, ranks=rank_states(tier, children={}, pods=()))
    ranks = rank_states(
        tier, children=observed.children, pods=observed.pods, refusals=observed.refusals
    )
    published = tls.published_ca(tier, observed.children)
    ca = tls.engine_ca(observed, ranks, published=published)
    intents = render(tier, observed.record, settings=settings, ca=ca)
    intents += other_secrets(observed, ca=ca)
    children = plan_children(intents, live=observed.children, tier=tier)
    waits_for = tls.waiting(observed)
    if waits_for:
        children = tls.held_back(children, tier=tier, published=published)
    by_key: Mapping[ChildKey, Object] = {child_key(intent): intent for intent in intents}
    stale = outdated(tier, states=ranks, intents=by_key)
    actions = _store_actions(observed, ranks, outdated=stale)
    reason = restart_field(intents, observed.children) or restart_reason
    pods, events = restarts(observed, states=ranks, intents=by_key, stale=stale, reason=reason)
    going = moving(observed, ranks)
    moved: tuple[Delete, ...] = ()
    if not pods and not stale:
        moved, events = moves(observed, states=going, intents=by_key)
    if waits_for or any(apply.intent["kind"] == "StatefulSet" for apply in children.applies):
        # A pod that is made now could still be made from the template that is being put right.
        pods, moved, events = (), (), ()
    due_in = look_again(ranks, nodes=observed.nodes, now=now)
    done = actions
    if tier.spec.paused:
        done = tls.while_paused(actions, facts=observed.tls, published=published)
        done += while_paused(observed.record, actions)
    retry = _requeue(observed, children, actions=done)
    if waits_for:
        retry = min(retry or tls.TLS_RETRY, tls.TLS_RETRY)
    common = Plan(
        # Also of a paused tier: a rank that Kubernetes cannot replace by itself is no roll.
        lost=lost_pods(ranks, nodes=observed.nodes, now=now),
        conflicts=children.conflicts,
        leftovers=children.leftovers,
        outdated=stale,
        moving=tuple(state.rank for state in going),
        restart_reason=restart_reason,
        waits_for=waits_for,
        store_actions=done,
        ranks=ranks,
        requeue_after=min(filter(None, (due_in, retry)), default=None),
    )
    if tier.spec.paused:
        return replace(
            common,
            # A fence is no change that waits: what is written is the record, and nothing else.
            applies=fence_applies(tier, observed.record, children),
            pending=_described(
                children,
                actions=[action for action in actions if action not in done],
                restarting=0 if waits_for else max(len(stale), len(pods)),
            ),
            missing=tuple(map(child_key, children.creates)),
        )
    return replace(
        common,
        creates=children.creates,
        applies=children.applies,
        unneeded=unneeded(observed),
        restarts=pods,
        moves=moved,
        restart_reason=reason,
        events=events,
    )


def _has_ranks(observed: Observed) -> bool:
    uid = observed.tier.metadata.uid
    return any(
        kind == "StatefulSet" and is_owned_by(found, uid)
        for (kind, _), found in observed.children.items()
    )


def _store_actions(
    observed: Observed, ranks: Sequence[RankState], *, outdated: Sequence[int]
) -> tuple[StoreAction, ...]:
    wanted = valkey_settings(observed.tier.spec).live
    actions: list[StoreAction] = []
    for state in ranks:
        facts = observed.stores.get(state.rank)
        if facts is None or facts.error is not None:
            continue
        actions += _user_actions(observed.record, state.rank, facts)
        if state.rank in outdated:
            # It is about to restart, and until then its memory limit is the old one: a larger
            # maxmemory would be more than it has.
            continue
        actions += tls.reload(observed, state.rank, facts)
        changed = differing(wanted, facts.config)
        if changed:
            actions.append(
                SetConfig(rank=state.rank, values={name: wanted[name] for name in changed})
            )
    return tuple(actions)


def _user_actions(record: Record, rank: int, facts: StoreFacts) -> list[StoreAction]:
    """Users at once, the file when the kubelet may have brought it: loading an old one makes users
    anew that it has and others not, if only for the length of the transaction."""
    loaded = facts.acl_revision == acl_revision(record, rank=rank)
    actions: list[StoreAction] = []
    if not facts.users_set and (not loaded or fenced_tokens(record)):
        actions.append(SetUsers(rank=rank))
    if not loaded and facts.load_due:
        actions.append(LoadAcl(rank=rank))
    return actions


def _requeue(
    observed: Observed, children: ChildPlan, *, actions: Sequence[StoreAction]
) -> float | None:
    late = any(
        facts.error or facts.acl_revision != acl_revision(observed.record, rank=rank)
        for rank, facts in observed.stores.items()
    )
    if late and any(fenced_tokens(observed.record)):
        # A rank that restarts now starts with users that the record has fenced.
        return FENCE_RETRY
    if actions or late:
        return STORE_RETRY
    if children.leftovers:
        return LEFTOVER_RETRY
    return CONFLICT_RETRY if children.conflicts else None


def _described(
    children: ChildPlan, *, actions: Sequence[StoreAction], restarting: int
) -> tuple[str, ...]:
    """What is not done while the tier is paused, for the condition's message."""
    lines = [f"create {kind} {name}" for kind, name in map(child_key, children.creates)]
    for apply in children.applies:
        kind, name = child_key(apply.intent)
        lines.append(f"change {apply.field} of {kind} {name}")
    lines += [f"{_VERBS[type(action)]} of rank {action.rank}" for action in actions]
    if restarting:
        lines.append(f"restart {counted(restarting, 'rank')}")
    return tuple(lines)
