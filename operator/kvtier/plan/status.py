"""Pure: the tier's status as a projection of what was observed, planned and carried out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvtier.api import reasons
from kvtier.api.conditions import Condition, bounded, merge
from kvtier.api.status import MAX_FINDINGS
from kvtier.api.store import Tls
from kvtier.api.types import KVCacheTier
from kvtier.breakeven.assessment import two_digits
from kvtier.placement.findings import Finding
from kvtier.placement.judgement import Judgement
from kvtier.plan.admission import View
from kvtier.plan.admission_told import admission_enforced, warm
from kvtier.plan.generations import generation_current, rows
from kvtier.plan.observed import ChildKey, NodeFacts, Observed, Plan, RankState
from kvtier.plan.placement import domain_of
from kvtier.plan.verdict import earning_its_keep, placement_accepted
from kvtier.plan.waiting import not_ready
from kvtier.render.memory import held_tokens
from kvtier.render.names import engine_secret_name

_ORDER = {name: place for place, name in enumerate(reasons.CONDITION_REASONS)}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What carrying out a plan brought.

    ``failures`` are one-line reasons of refused writes; ``unverified`` says for a rank why its
    settings or users are not proven to be the wanted ones. ``undelivered`` are the ranks that
    serve on with an older certificate, because the kubelet has not brought the renewed one yet;
    ``untrusted`` those, of the unverified, whose certificate is not one to trust.
    """

    failures: tuple[str, ...] = ()
    conflicts: tuple[ChildKey, ...] = ()
    unverified: Mapping[int, str] = field(default_factory=dict)
    undelivered: tuple[int, ...] = ()
    untrusted: tuple[int, ...] = ()
    created: tuple[ChildKey, ...] = ()


def project(
    observed: Observed,
    *,
    plan: Plan,
    outcome: Outcome,
    judgement: Judgement,
    admission: Mapping[str, Any],
    view: View | None,
    now: str,
) -> dict[str, Any]:
    """The whole status of a tier whose spec is accepted. ``now`` is RFC 3339, ``admission`` what
    ``plan.admission`` makes of ``view``."""
    tier, assessment = observed.tier, judgement.assessment
    current = observed.record.current
    ready = sum(state.ready for state in plan.ranks)
    spec_valid = Condition(
        type=reasons.SPEC_VALID,
        status=True,
        reason=reasons.VALID,
        message="The spec is accepted.",
    )
    store = _store_ready(observed, plan=plan, outcome=outcome, ready=ready)
    generation = generation_current(observed, created=outcome.created)
    conditions = (
        spec_valid,
        store,
        generation,
        _overall((spec_valid, store, generation)),
        placement_accepted(judgement),
        earning_its_keep(judgement, before=tier.status),
        warm(tier, admission, view=view),
        admission_enforced(tier, view=view),
    )
    status: dict[str, Any] = {
        "observedGeneration": tier.metadata.generation,
        "conditions": _merged(tier, conditions, now=now),
        "ranks": f"{ready}/{tier.spec.pool.ranks}",
        "rankStates": [
            _rank_status(state, domain=_domain(observed, state.node)) for state in plan.ranks
        ],
        "breakEven": assessment.status(held=held_tokens(tier.spec)),
        "verdict": judgement.shown.verdict.value,
        "generations": rows(observed),
        "admission": dict(admission),
        "engineSecret": engine_secret_name(tier.metadata.name, current.id),
    }
    if judgement.findings:
        status["findings"] = [_finding(each) for each in judgement.findings[:MAX_FINDINGS]]
    domain = domain_of(tier, observed.record)
    if domain is not None:
        status["domain"] = str(domain)
    link = assessment.measured()
    if link is not None and judgement.measured:
        # A declared link is in the spec, and nothing here may look as if somebody had measured it.
        status["measured"] = link | {
            "bytesPerSecond": int(two_digits(link["bytesPerSecond"])),
            **{name: two_digits(link[name]) for name in ("roundTripSeconds", "ratio")},
        }
    return status


def refused(
    tier_body: Mapping[str, Any],
    *,
    reason: str,
    message: str,
    now: str,
    ranks: Sequence[RankState] | None = None,
    nodes: Mapping[str, NodeFacts] | None = None,
) -> dict[str, Any]:
    """The status of a tier whose spec is not accepted: its figures stay.

    ``ranks`` is what runs, None where that is not known without a spec; ``nodes`` are theirs.
    """
    previous = dict(tier_body.get("status") or {})
    generation = tier_body["metadata"].get("generation", 0)
    wanted = [
        Condition(type=reasons.SPEC_VALID, status=False, reason=reason, message=message),
        Condition(
            type=reasons.READY,
            status=False,
            reason=reasons.NOT_READY,
            message=f"SpecValid is False ({reason}): {message}",
        ),
    ]
    if ranks is not None:
        ready = sum(state.ready for state in ranks)
        previous["ranks"] = f"{ready}/{len(ranks)}"
        before = {entry["rank"]: entry for entry in previous.get("rankStates", [])}
        previous["rankStates"] = [
            _rank_status(state, domain=_same_node(before.get(state.rank, {}), state))
            for state in ranks
        ]
        wanted.append(_store_of_a_refused(ranks, nodes=nodes or {}, ready=ready))
    previous["observedGeneration"] = generation
    named = {condition.type for condition in wanted}
    kept = [
        condition for condition in previous.get("conditions", []) if condition["type"] not in named
    ]
    said = kept + merge(
        previous.get("conditions", []), wanted, observed_generation=generation, now=now
    )
    # What was refused before what stays of the spec of before.
    previous["conditions"] = sorted(said, key=lambda each: _ORDER.get(each["type"], len(_ORDER)))
    return previous


def _store_of_a_refused(
    ranks: Sequence[RankState], *, nodes: Mapping[str, NodeFacts], ready: int
) -> Condition:
    total = len(ranks)
    if ready < total:
        return Condition(
            type=reasons.STORE_READY,
            status=False,
            reason=reasons.RANKS_NOT_READY,
            message=not_ready(ranks, nodes=nodes, ready=ready),
        )
    return Condition(
        type=reasons.STORE_READY,
        status=True,
        reason=reasons.ALL_RANKS_READY,
        message=f"{_all(total)} ready, as the spec was before.",
    )


def _all(total: int) -> str:
    return "The only rank is" if total == 1 else f"All {total} ranks are"


def _same_node(entry: Mapping[str, Any], state: RankState) -> str | None:
    domain: str | None = entry.get("domain")
    return domain if entry.get("node") == state.node else None


def _merged(
    tier: KVCacheTier, conditions: Sequence[Condition], *, now: str
) -> list[dict[str, Any]]:
    return merge(
        tier.status.get("conditions", []),
        conditions,
        observed_generation=tier.metadata.generation,
        now=now,
    )


def _store_ready(observed: Observed, *, plan: Plan, outcome: Outcome, ready: int) -> Condition:
    total = observed.tier.spec.pool.ranks
    problem = _store_problem(observed, plan=plan, outcome=outcome, ready=ready)
    if problem is not None:
        reason, message = problem
        return Condition(type=reasons.STORE_READY, status=False, reason=reason, message=message)
    if plan.pending:
        return Condition(
            type=reasons.STORE_READY,
            status=True,
            reason=reasons.PAUSED,
            message=f"Paused; waiting: {'; '.join(plan.pending)}.",
        )
    return Condition(
        type=reasons.STORE_READY,
        status=True,
        reason=reasons.ALL_RANKS_READY,
        message=f"{_all(total)} ready with the wanted settings." + _renewal(outcome),
    )


def _renewal(outcome: Outcome) -> str:
    if not outcome.undelivered:
        return ""
    ranks = ", ".join(map(str, outcome.undelivered))
    return f" A renewed certificate has yet to be delivered to the pod of rank {ranks}."


def _store_problem(
    observed: Observed, *, plan: Plan, outcome: Outcome, ready: int
) -> tuple[str, str] | None:
    """The first thing that keeps the store from being ready, as (reason, message)."""
    total = observed.tier.spec.pool.ranks
    if plan.rejected is not None:
        return reasons.PLACEMENT_REJECTED, (
            f"Nothing is made ({plan.rejected.reason}): {plan.rejected.message} To have it all the"
            " same, set spec.placement.onReject to Warn."
        )
    if plan.leftovers:
        names = ", ".join(f"{kind} {name}" for kind, name in plan.leftovers)
        return reasons.RANKS_NOT_READY, (
            f"Waiting until what a deleted tier of this name left is collected: {names}."
        )
    taken = sorted({*plan.conflicts, *outcome.conflicts})
    if taken:
        names = ", ".join(f"{kind} {name}" for kind, name in taken)
        return reasons.NAME_CONFLICT, (
            f"{names} exists and is not this tier's: it is left alone. "
            "Delete it, or give the tier another name."
        )
    if outcome.failures:
        return reasons.APPLY_FAILED, "; ".join(outcome.failures)
    if plan.waits_for:
        return plan.waits_for
    if plan.held:
        return reasons.ROLLING, f"{plan.held}."
    rolling = {*(deletion.name for deletion in (*plan.restarts, *plan.moves))}
    if not plan.pending and (rolling or plan.outdated):
        count = max(len(rolling), len(plan.outdated))
        return reasons.ROLLING, f"{count} of {total} ranks are restarting."
    if plan.missing:
        return reasons.PAUSED, f"Paused, and not complete; waiting: {'; '.join(plan.pending)}."
    if ready < total:
        return reasons.RANKS_NOT_READY, not_ready(plan.ranks, nodes=observed.nodes, ready=ready)
    tls = observed.tier.spec.store.tls
    if outcome.untrusted and tls is not None:
        return reasons.TLS_RANK_UNTRUSTED, _untrusted(plan, outcome, tier=observed.tier, tls=tls)
    if outcome.unverified:
        detail = "; ".join(f"rank {rank}: {why}" for rank, why in outcome.unverified.items())
        return reasons.SETTINGS_NOT_APPLIED, f"Not as wanted yet: {detail}."
    return None


def _untrusted(plan: Plan, outcome: Outcome, *, tier: KVCacheTier, tls: Tls) -> str:
    why = "; ".join(f"rank {rank}: {outcome.unverified[rank]}" for rank in outcome.untrusted)
    pods = " ".join(str(plan.ranks[rank].pod) for rank in outcome.untrusted)
    return (
        f"{why}. Neither the CA in Secret {tls.secret_name} nor one that engines "
        f"were given signed it for this name: kubectl -n {tier.metadata.namespace} delete pod "
        f"{pods} has it start with the Secret's. Engines do not trust it either: nothing is lost."
    )


def _overall(parts: Sequence[Condition]) -> Condition:
    for part in parts:
        if part.status is not True:
            return Condition(
                type=reasons.READY,
                status=False,
                reason=reasons.NOT_READY,
                message=f"{part.type} is False ({part.reason}): {part.message}",
            )
    return Condition(
        type=reasons.READY,
        status=True,
        reason=reasons.TIER_READY,
        message="The tier serves.",
    )


def _finding(finding: Finding) -> dict[str, Any]:
    entry = {
        "severity": finding.severity.value,
        "reason": finding.reason,
        "message": bounded(finding.message),
    }
    return entry | {"blocks": True} if finding.blocks else entry


def _rank_status(state: RankState, *, domain: str | None) -> dict[str, Any]:
    entry: dict[str, Any] = {"rank": state.rank, "ready": state.ready}
    if state.node:
        entry["node"] = state.node
    if domain:
        entry["domain"] = domain
    if state.started_at:
        entry["startedAt"] = state.started_at
    return entry


def _domain(observed: Observed, node: str | None) -> str | None:
    """The node's value of the nearest declared domain that is wider than one node."""
    found = observed.nodes.get(node or "")
    labels = found.labels if found else {}
    for domain in observed.tier.spec.placement.domains:
        value = labels.get(domain.key)
        if value and domain.key != "kubernetes.io/hostname":
            return f"{domain.name}={value}"
    return None
