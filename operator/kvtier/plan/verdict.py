"""Pure: the conditions that say whether a tier pays."""

from collections.abc import Mapping
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
    """False with the worst error; True, or not known without link or T0, with what warns."""
    errors, assessment = judgement.errors, judgement.assessment
    if errors:
        status, reason, told = False, errors[0].reason, f"{errors[0].message}"
        rest = _listed((*errors[1:], *judgement.warnings))
    elif assessment.reason in _OPEN:
        status, reason, told = None, assessment.reason, assessment.message
        rest = _listed(judgement.warnings)
    else:
        status, reason, told = True, reasons.ACCEPTED, "No check found an error."
        rest = _listed(judgement.warnings)
    source = ""
    if assessment.link is not None and not judgement.measured:
        source = " By declared figures, not measured ones."
    return Condition(
        type=reasons.PLACEMENT_ACCEPTED,
        status=status,
        reason=reason,
        message=f"{told}{source}{rest}",
    )


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


def _listed(findings: tuple[Finding, ...]) -> str:
    return "".join(f" {one.severity.value} {one.reason}: {one.message}" for one in findings)
