"""What people are told of a reconcile: its events, and why a change is refused."""

from collections.abc import Sequence

from kvtier.api import reasons
from kvtier.api.types import KVCacheTier
from kvtier.cluster.protocol import TIER, Object
from kvtier.generation.record import Record
from kvtier.placement.findings import Finding, named
from kvtier.placement.topology_checks import Placed
from kvtier.plan.observed import EventSpec, EventType, Plan, RankState
from kvtier.plan.rank_events import rank_events
from kvtier.plan.status import Outcome
from kvtier.reconcile.execute import Report
from kvtier.reconcile.memory import TierMemory
from kvtier.render.names import acl_name


def subject(tier: KVCacheTier) -> Object:
    """What events of a tier are about."""
    metadata = tier.metadata
    named = {"namespace": metadata.namespace, "name": metadata.name, "uid": metadata.uid}
    return {"apiVersion": TIER.api_version, "kind": TIER.kind, "metadata": named}


def outcome(report: Report) -> Outcome:
    """What happened, as far as the status tells of it."""
    return Outcome(
        failures=tuple(report.failures),
        conflicts=tuple(report.taken),
        unverified=report.unverified,
        undelivered=tuple(sorted(report.undelivered)),
        untrusted=tuple(sorted(report.untrusted)),
        created=tuple(report.created),
    )


def chosen(before: Record, record: Record, *, place: Placed | None) -> tuple[EventSpec, ...]:
    """Where the ranks belong from now on, if that is new."""
    if record.domain is None or record.domain == before.domain or place is None:
        return ()
    ready = [engine for engine in place.topology.engines if engine.ready]
    inside = sum(place.inside(engine.node) for engine in ready)
    message = (
        f"The ranks belong in {record.domain}: {inside} of {len(ready)} Ready engines are there."
    )
    return (EventSpec(EventType.NORMAL, reasons.DOMAIN_CHOSEN, message),)


def done(report: Report, *, tier: KVCacheTier, new_record: bool = False) -> list[EventSpec]:
    """What was written, in one event each.

    It was a repair if neither spec nor record is a new one and, by the status before, nothing was
    lacking. What the record goes through by itself has events of its own, or is a clock's.
    """
    complete = _was_complete(tier)
    repaired = complete and not new_record
    applied = report.applied
    if complete and new_record:
        record = f" of Secret {acl_name(tier.metadata.name)}"
        applied = [each for each in applied if not each.endswith(record)]
    events: list[EventSpec] = []
    if report.created:
        what = named([f"{kind} {name}" for kind, name in report.created])
        reason, verb = (
            (reasons.REPAIRED, "Created again") if repaired else (reasons.CREATED, "Created")
        )
        events.append(EventSpec(EventType.NORMAL, reason, f"{verb}: {what}."))
    if applied:
        what = named(applied)
        reason, verb = (
            (reasons.REPAIRED, "Brought back") if repaired else (reasons.APPLIED, "Applied")
        )
        events.append(EventSpec(EventType.NORMAL, reason, f"{verb}: {what}."))
    if report.reloaded:
        ranks = ", ".join(map(str, sorted(report.reloaded)))
        text = f"Rank {ranks} serves the renewed certificate, without a restart."
        events.append(EventSpec(EventType.NORMAL, reasons.CERTIFICATE_RELOADED, text))
    return events


def _was_complete(tier: KVCacheTier) -> bool:
    if tier.status.get("observedGeneration") != tier.metadata.generation:
        return False
    conditions = {each["type"]: each for each in tier.status.get("conditions", ())}
    reason = conditions.get(reasons.STORE_READY, {}).get("reason", "")
    lacking = ("", reasons.NAME_CONFLICT, reasons.APPLY_FAILED, reasons.PAUSED)
    nothing = (reasons.PLACEMENT_REJECTED, *reasons.TLS_SECRET_NOT_USABLE)
    return reason not in (*lacking, *nothing)


def problems(plan: Plan, report: Report) -> list[EventSpec]:
    """Told once, when the status says something new, not at every retry."""
    taken = [
        EventSpec(
            EventType.WARNING,
            reasons.NAME_CONFLICT,
            f"{kind} {name} exists and is not this tier's: it is left alone.",
        )
        for kind, name in sorted({*plan.conflicts, *report.taken})
    ]
    refused_writes = [
        EventSpec(EventType.WARNING, reasons.APPLY_FAILED, failure) for failure in report.failures
    ]
    unusable = [EventSpec(EventType.WARNING, *plan.waits_for)] if plan.waits_for else []
    return unusable + taken + refused_writes


def newly_found(before: Object, found: Sequence[Finding]) -> list[EventSpec]:
    """Findings that the status ``before`` did not have."""
    known = {each["reason"] for each in before.get("findings", ())}
    return [
        EventSpec(EventType.WARNING, each.reason, each.message)
        for each in found
        if each.reason not in known
    ]


def lost_and_back(
    memory: TierMemory, before: Object, ranks: Sequence[RankState], *, plan: Plan | None = None
) -> list[EventSpec]:
    """Ranks that were lost, or are back, since the status ``before``; ``memory`` knows it then."""
    events, memory.down = rank_events(
        before, ranks, nodes=memory.nodes, plan=plan, down=memory.down
    )
    return events
