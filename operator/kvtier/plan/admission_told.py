"""Pure: what people are told of a tier's admission: conditions, one finding, events."""

from collections.abc import Mapping
from typing import Any, Final

from kvtier.admission.storm import Cause, State
from kvtier.api import reasons
from kvtier.api.conditions import Condition, find
from kvtier.api.types import KVCacheTier
from kvtier.breakeven.words import counted, digits
from kvtier.placement.findings import Finding
from kvtier.plan.admission import PLANNED, Enforcement, View
from kvtier.plan.observed import EventSpec, EventType

COLD_BELOW: Final = 0.02
WARM_FROM: Final = 0.05
"""Shares of prompt tokens that hit below which a warm tier is cold, and from which a cold one is
warm."""
CAUSES: Final = {
    Cause.RANK_LOST.value: "a rank is lost",
    Cause.RANK_RESTARTED.value: "a rank has started again, empty",
    Cause.RANK_EMPTIED.value: "a rank was emptied",
    Cause.HITS_COLLAPSED.value: "far fewer prompt tokens hit than did",
    PLANNED: "kvtier restarts ranks",
}
"""Why it is not Open, in words."""


def warm(tier: KVCacheTier, admission: Mapping[str, Any], *, view: View | None) -> Condition:
    """Whether the tier serves hits; Unknown where no engine tells of any."""
    stood = find(tier.status.get("conditions", ()), reasons.WARM)
    state, since = admission["state"], admission["since"]
    why = CAUSES.get(admission.get("reason", ""), "too few prompts hit")
    if state == State.STORM:
        return _warm(False, reasons.STORM, f"A storm since {since}: {why}.")
    if state == State.RECOVERING:
        return _warm(False, reasons.RECOVERING, f"Hits come back since {since}; before, {why}.")
    if view is None and stood.get("reason") in (reasons.SERVING_HITS, reasons.COLD):
        return _as_before(stood)
    if view is None or view.hit is None:
        return _warm(
            None,
            reasons.HITS_NOT_KNOWN,
            "No engine tells of hits: only lost and restarted ranks are noticed.",
        )
    if view.hit >= (COLD_BELOW if stood.get("status") == "True" else WARM_FROM):
        return _warm(True, reasons.SERVING_HITS, "Prompt tokens hit.")
    return _warm(
        False, reasons.COLD, "Hardly any prompt token hits, and engines can do all of the work."
    )


def _warm(status: bool | None, reason: str, message: str) -> Condition:
    return Condition(type=reasons.WARM, status=status, reason=reason, message=message)


def _as_before(stood: Mapping[str, Any]) -> Condition:
    """What was said, while nobody has looked yet."""
    status = {"True": True, "False": False}.get(stood["status"])
    return Condition(
        type=stood["type"], status=status, reason=stood["reason"], message=stood["message"]
    )


def admission_enforced(tier: KVCacheTier, *, view: View | None) -> Condition:
    """Whether somebody holds the limit in a storm."""
    stood = find(tier.status.get("conditions", ()), reasons.ADMISSION_ENFORCED)
    if view is None and stood and tier.spec.admission.enforces:
        return _as_before(stood)
    status, reason, message = _enforced(tier, view.enforcement if view else Enforcement())
    return Condition(type=reasons.ADMISSION_ENFORCED, status=status, reason=reason, message=message)


def _enforced(tier: KVCacheTier, seen: Enforcement) -> tuple[bool, str, str]:
    if not tier.spec.admission.enforces:
        told = f" {counted(seen.replicas, 'limiter')} tell what would be refused."
        return (
            False,
            reasons.OBSERVE_ONLY,
            (
                "spec.admission.mode is Observe: in a storm everything is let in."
                + (told if seen.replicas else "")
            ),
        )
    missing = f" No answer from {counted(len(seen.silent), 'limiter')}: {_named(seen)}."
    if seen.policy is not None and seen.policy.problem is not None:
        # Somebody counts on it, so that limiters hold the limit elsewhere makes it no less.
        reason, message = seen.policy.problem
        held = f" The limit is held by {counted(seen.replicas, 'limiter')} all the same."
        return False, reason, message + (held if seen.replicas else "")
    holders = [counted(seen.replicas, "limiter")] if seen.replicas else []
    if seen.policy is not None:
        holders.append(f"Envoy Gateway, in requests (BackendTrafficPolicy {seen.policy.name})")
    if holders:
        return (
            True,
            reasons.ENFORCED,
            (
                f"In a storm the limit is held by {' and by '.join(holders)}."
                + (missing if seen.silent else "")
            ),
        )
    if seen.silent:
        return (
            False,
            reasons.LIMITER_UNREACHABLE,
            (f"The operator reaches no limiter.{missing} They may hold a limit all the same."),
        )
    if seen.strangers:
        return (
            False,
            reasons.NO_LIMITER,
            (
                f"The tier is unknown to the {counted(seen.strangers, 'limiter')} there: see which"
                " namespaces they watch."
            ),
        )
    hint = (
        "the name given in --limiter-service has no address"
        if seen.told
        else ("the operator runs without --limiter-service")
    )
    return False, reasons.NO_LIMITER, f"No limiter is known: {hint}."


def _named(seen: Enforcement) -> str:
    more = len(seen.silent) - 3
    return ", ".join(seen.silent[:3]) + (f" and {more} more" if more > 0 else "")


def undersized(
    tier: KVCacheTier, admission: Mapping[str, Any], *, engines: int
) -> tuple[Finding, ...]:
    """The finding that a cold tier would get more work than all its engines can do."""
    needed, capacity = admission.get("requiredEngines"), admission.get("zeroHitTokensPerSecond")
    if needed is None or not capacity or needed <= engines:
        return ()
    rate = admission["engineTokensPerSecond"]
    message = (
        f"{counted(needed, 'engine')} are needed to do without hits what comes in at the peak, and"
        f" {engines} {'is' if engines == 1 else 'are'} Ready: they take {capacity:,} tokens/s"
        f" ({tier.spec.admission.utilization} x {engines} x {rate:,}). What is above that waits, or"
        " is refused, while the tier is cold."
    )
    return (Finding(reasons.UNDERSIZED_FOR_ZERO_HIT, message),)


def storm_events(
    tier: KVCacheTier, before: Mapping[str, Any], after: Mapping[str, Any], *, view: View | None
) -> list[EventSpec]:
    """What people are told when the state in a new status is another one than before."""
    was = before.get("state", State.OPEN.value)
    now = after["state"]
    if was == now:
        return []
    if now == State.OPEN:
        text = "The storm is over: everything is let in."
        return [EventSpec(EventType.NORMAL, reasons.STORM_OVER, text)]
    limited = _limited(tier, after, view=view)
    if now == State.RECOVERING:
        text = f"Hits come back. {limited}"
        return [EventSpec(EventType.NORMAL, reasons.STORM_RECOVERING, text)]
    reason = after.get("reason", "")
    planned = reason == PLANNED
    why = CAUSES.get(reason, "too few prompts hit")
    text = f"A {'planned ' if planned else ''}storm began: {why}. {limited}"
    kind = EventType.NORMAL if planned else EventType.WARNING
    return [EventSpec(kind, reasons.STORM_BEGAN, text)]


def _limited(tier: KVCacheTier, admission: Mapping[str, Any], *, view: View | None) -> str:
    """Who lets in how much, with figures."""
    capacity = admission.get("zeroHitTokensPerSecond")
    if capacity is None:
        return "No engine is Ready: nothing is limited."
    limit = view.limit if view is not None and view.limit is not None else capacity
    offered = view.offered if view is not None else None
    share = f" of the {digits(offered)} that come" if offered else ""
    figures = f"{digits(limit)} tokens/s{share} (engines take {capacity:,} while nothing hits)"
    seen = view.enforcement if view else Enforcement()
    status, reason, _ = _enforced(tier, seen)
    if tier.spec.admission.enforces and seen.replicas:
        return f"Limiters let in {figures}."
    if status:
        return f"Envoy Gateway is told to let in {figures}."
    if reason == reasons.OBSERVE_ONLY:
        return f"In mode Enforce limiters would let in {figures}."
    return f"Nobody is known to hold the limit of {figures}: {reason}."
