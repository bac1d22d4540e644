"""A tier's admission on its screen. Nothing is asked or computed anew here."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from kvtier.admission.storm import State
from kvtier.api import reasons
from kvtier.api.conditions import find
from kvtier.breakeven.words import age, counted, digits
from kvtier.plan.probing import seconds_of


def facts(body: Mapping[str, Any], *, now: datetime) -> Iterator[tuple[str, str]]:
    """Names and texts; none for a tier whose status does not tell of it."""
    status = body.get("status") or {}
    found = status.get("admission") or {}
    if not found:
        return
    yield "state", _state(found, now=now)
    warm = find(status.get("conditions", ()), reasons.WARM)
    if warm:
        yield "hits", f"{warm['reason']}: {warm['message']}"
    yield "limit", _limit(body, found)
    if "zeroHitTokensPerSecond" in found:
        yield (
            "while nothing hits",
            f"{found['zeroHitTokensPerSecond']:,} tokens/s, each engine prefills "
            f"{found['engineTokensPerSecond']:,} at {found['meanPromptTokens']:,} tokens",
        )
    else:
        yield "while nothing hits", "no engine is Ready"
    if "stormFactor" in found:
        yield "a cold tier means", f"{digits(found['stormFactor'])} x the prefill work of now"
    if "maxQueuedTokens" in found:
        yield "may wait in engines", f"{found['maxQueuedTokens']:,} tokens (workload.targetTTFT)"
    if "requiredEngines" in found:
        yield "engines needed cold", counted(found["requiredEngines"], "engine")
    enforced = find(status.get("conditions", ()), reasons.ADMISSION_ENFORCED)
    if enforced:
        yield "enforced", f"{enforced['reason']}: {enforced['message']}"


def _state(found: Mapping[str, Any], *, now: datetime) -> str:
    why = f" ({found['reason']})" if "reason" in found else ""
    since = seconds_of(found.get("since"))
    ago = f", for {age(now.timestamp() - since)} (since {found['since']})" if since else ""
    return f"{found['state']}{why}{ago}"


def _limit(body: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    if found["state"] == State.OPEN:
        return "none"
    mode = ((body.get("spec") or {}).get("admission") or {}).get("mode", "Observe")
    if mode != "Enforce":
        return "none: spec.admission.mode is Observe"
    return (
        "what engines take while nothing hits, and more as hits return "
        "(kvtier_admission_limit_tokens_per_second)"
    )
