"""Pure: the conditions that say whether a tier pays."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvtier.api import reasons
from kvtier.api.conditions import Condition, find
from kvtier.breakeven.assessment import Verdict
from kvtier.placement.findings import Finding
from kvtier.placement.hysteresis import AGREEING
from kvtier.placement.judgement import Judgement
from kvtier.plan.observed import EventSpec, EventType

_STATUS = {"True": True, "False": False}
_OPEN = (reasons.LINK_NOT_DECLARED, reasons.T0_NOT_DECLARED)


def placement_accepted(judgement: Judgement) -> Condition:
    """False with the worst error; True, or not known without link or T0, with what warns.

    The message begins with the heaviest finding and names the others, which ``status.findings``
    has.
    """
    errors, assessment = judgement.errors, judgement.assessment
    source = ""
    if assessment.link is not None and not judgement.measured:
        source = " By declared figures, not measured ones."
    if errors:
        status, reason = False, errors[0].reason
        told = f"{errors[0].message}{source}{_others(judgement.findings[1:])}"
    elif assessment.reason in _OPEN:
        status, reason = None, assessment.reason
        told = f"{assessment.message}{_others(judgement.findings)}"
    else:
        status, reason, told = True, reasons.ACCEPTED, f"No check found an error.{source}"
        if judgement.warnings:
            first, *rest = judgement.warnings
            told = f"{first.severity.value} {first.reason}: {first.message}{_others(rest)} {told}"
    return Condition(type=reasons.PLACEMENT_ACCEPTED, status=status, reason=reason, message=told)


def earning_its_keep(judgement: Judgement, *, before: Mapping[str, Any]) -> Condition:
    """Whether the tier makes requests faster. Not known before it is measured.

    ``before`` is the status: while newer probes do not agree on another verdict, what it says
    stays.
    """
    assessment, shown = judgement.assessment, judgement.shown
    if not judgement.measured:
        known = assessment.reason in _OPEN
        return Condition(
            type=reasons.EARNING_ITS_KEEP,
            status=None,
            reason=assessment.reason if known else reasons.NOT_MEASURED,
            message=f"Not measured. By the declared figures {assessment.verdict.value}:"
            f" {assessment.message}",
        )
    if shown.verdict is not assessment.verdict:
        stood = find(before.get("conditions", ()), reasons.EARNING_ITS_KEEP)
        return Condition(
            type=reasons.EARNING_ITS_KEEP,
            status=_STATUS.get(stood.get("status", "")),
            reason=stood.get("reason", reasons.NOT_MEASURED),
            message=f"{shown.verdict.value}, until {AGREEING} probes in a row say otherwise. The"
            f" last one says {assessment.verdict.value}: {assessment.message}",
        )
    if assessment.link_full and assessment.earns is False:
        return Condition(
            type=reasons.EARNING_ITS_KEEP,
            status=False,
            reason=reasons.LINK_QUEUE_UNSTABLE,
            message="At the declared request rate the link's queue grows without end. On an idle"
            f" engine: {assessment.verdict.value}. {assessment.message}",
        )
    return Condition(
        type=reasons.EARNING_ITS_KEEP,
        status=assessment.earns,
        reason=assessment.reason,
        message=assessment.message,
    )


def verdict_events(
    before: Mapping[str, Any], after: Mapping[str, Any], *, judgement: Judgement
) -> list[EventSpec]:
    """What people are told when a new status is written: another verdict, or another error."""
    events = []
    old, new = before.get("verdict", Verdict.UNKNOWN.value), after["verdict"]
    if new != old:
        good = new != Verdict.NEVER_PAYS.value
        message = f"{new} (was {old}): {judgement.assessment.message}"
        kind = EventType.NORMAL if good else EventType.WARNING
        events.append(EventSpec(kind, reasons.VERDICT_CHANGED, message))
    stood = find(before.get("conditions", ()), reasons.PLACEMENT_ACCEPTED)
    worst = next(iter(judgement.errors), None)
    if worst is not None and stood.get("reason") != worst.reason:
        events.append(EventSpec(EventType.WARNING, worst.reason, worst.message))
    return events


def _others(findings: Sequence[Finding]) -> str:
    """Findings by name: their sentences are in ``status.findings``."""
    if not findings:
        return ""
    names = ", ".join(f"{one.severity.value} {one.reason}" for one in findings)
    return f" Also in status.findings: {names}."
