"""Pure: ``status.admission``, as a projection of hits, load, engines and limiters.

What moves all the time is smoothed before it gets here or kept within 10 %: a tier at steady state
writes nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kvtier.admission.capacity import (
    max_queued_tokens,
    prefill_capacity,
    required_engines,
    sizes_of,
    storm_factor,
    zero_hit_capacity,
)
from kvtier.admission.signals import Sizes
from kvtier.admission.storm import Cause, State
from kvtier.api import reasons
from kvtier.api.conditions import find
from kvtier.api.types import KVCacheTier, KVCacheTierSpec
from kvtier.breakeven.assessment import two_digits
from kvtier.breakeven.observed import SeenRate, rate_off

SAME: Final = 0.1
"""Share by which a figure may move before the status tells of it."""
MOST_COUNTED: Final = 2**31 - 1
PLANNED: Final = Cause.PLANNED.value


@dataclass(frozen=True, slots=True)
class PolicyTold:
    """Envoy Gateway's part: the policy that it gets in a storm, by ``name``. ``problem`` is
    (reason, message) of why it gets none."""

    name: str
    problem: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Enforcement:
    """Who could hold a limit.

    ``told``: whether the operator was told where limiters are. ``replicas`` are those that answer
    and know the tier, ``strangers`` those that answer and do not, ``silent`` the addresses of those
    that have not answered for some looks. ``policy`` is None where Envoy Gateway is to hold none.
    """

    told: bool = False
    replicas: int = 0
    strangers: int = 0
    silent: tuple[str, ...] = ()
    policy: PolicyTold | None = None


@dataclass(frozen=True, slots=True)
class View:
    """A tier's admission as last seen, by limiters or by the operator's own machine.

    ``cause`` is why it is not Open, ``rank`` which rank that was, where it was one. ``hit`` is the
    share of prompt tokens that hit lately, ``offered`` and its decaying ``peak`` what came in,
    ``limit`` what may (None: all); tokens/s, None where it is not known.
    """

    state: State = State.OPEN
    cause: str | None = None
    hit: float | None = None
    offered: float | None = None
    peak: float | None = None
    limit: float | None = None
    enforcement: Enforcement = field(default_factory=Enforcement)


def sizes(spec: KVCacheTierSpec, *, seen: SeenRate | None = None) -> Sizes:
    """The tier's sizes, with R as declared or, where engines show less, as they show it."""
    declared = sizes_of(spec)
    off = rate_off(spec, seen)
    if off is None or off.faster:
        return declared
    return sizes_of(spec, engine_rate=declared.engine_rate * off.factor)


def admission_status(
    tier: KVCacheTier,
    *,
    engines: int,
    seen: SeenRate | None,
    view: View | None,
    planned: bool,
    now: str,
) -> dict[str, Any]:
    """``status.admission``. ``engines`` are the Ready ones, ``now`` is RFC 3339.

    ``planned``: ranks are to restart, or are restarting, because somebody wants it so. Without a
    ``view`` nobody has looked yet, and the state before stays.
    """
    before: Mapping[str, Any] = tier.status.get("admission") or {}
    state, reason = _state(before, view, planned=planned)
    same = before.get("state") == state
    if planned and before.get("reason") != PLANNED:
        same = False
    found: dict[str, Any] = {"state": state.value}
    if reason is not None:
        found["reason"] = reason
    found["since"] = before.get("since", now) if same else now
    figures = _figures(tier.spec, engines=engines, seen=seen, view=view)
    if state is not State.OPEN or view is None:
        # In a storm there are no hits, and people come again: neither says what is usual.
        for name in ("stormFactor", "requiredEngines"):
            if name in before:
                figures[name] = before[name]
    as_before = tier.status.get("observedGeneration") == tier.metadata.generation
    return found | {
        name: _held(before.get(name) if as_before else None, figure, name=name)
        for name, figure in figures.items()
        if figure is not None
    }


def _state(
    before: Mapping[str, Any], view: View | None, *, planned: bool
) -> tuple[State, str | None]:
    if planned:
        return State.STORM, PLANNED
    was = before.get("state", State.OPEN)
    if view is None:
        found = State(was) if was in set(State) else State.OPEN
        reason: str | None = before.get("reason")
    else:
        found, reason = view.state, view.cause
    if found is State.OPEN:
        return found, None
    if reason == PLANNED:
        # Limiters hold what is Planned here until it is over, and it is: what is left is a restart.
        reason = Cause.RANK_RESTARTED.value
    return found, reason


def _figures(
    spec: KVCacheTierSpec, *, engines: int, seen: SeenRate | None, view: View | None
) -> dict[str, float | None]:
    known = sizes(spec, seen=seen)
    rate, utilization = known.engine_rate, known.utilization
    hit = view.hit if view is not None and view.hit is not None else known.expected_hit
    offered = _offered(spec, known, engines=engines, view=view)
    found: dict[str, float | None] = {
        "engineTokensPerSecond": rate,
        "meanPromptTokens": known.mean_prompt,
        "zeroHitTokensPerSecond": None,
        "stormFactor": None if hit is None else storm_factor(hit),
        "maxQueuedTokens": None,
        "requiredEngines": None,
    }
    if engines:
        found["zeroHitTokensPerSecond"] = zero_hit_capacity(
            engines=engines, engine_rate=rate, utilization=utilization
        )
        if known.target_ttft is not None:
            prefill = prefill_capacity(engines=engines, engine_rate=rate)
            found["maxQueuedTokens"] = max_queued_tokens(
                target_ttft=known.target_ttft, prefill=prefill
            )
    if offered:
        found["requiredEngines"] = required_engines(
            offered=offered, engine_rate=rate, utilization=utilization
        )
    return found


def _offered(
    spec: KVCacheTierSpec, known: Sizes, *, engines: int, view: View | None
) -> float | None:
    """The highest rate of prompt tokens of late; as declared where nobody has seen any."""
    if view is not None and view.peak:
        return view.peak
    declared = spec.workload.requests_per_second
    return None if declared is None else float(declared) * engines * known.mean_prompt


def _held(before: object, figure: float, *, name: str) -> float:
    """The figure as the status shows it: what it showed, where that is the same one."""
    if name == "requiredEngines":
        count = min(int(figure), MOST_COUNTED)
        # One too few is told at once, one too many only where it is clear.
        if isinstance(before, int) and count <= before and count >= before * (1 - SAME):
            return before
        return count
    shown = two_digits(figure)
    if isinstance(before, int | float) and abs(figure - before) <= SAME * before:
        return before
    return shown if name == "stormFactor" else int(shown)


def hits_before(status: Mapping[str, Any]) -> float | None:
    """The share of hits that the status goes by, None if it goes by none or by what is declared."""
    said = find(status.get("conditions", ()), reasons.WARM).get("reason")
    factor = (status.get("admission") or {}).get("stormFactor")
    known = said in (reasons.SERVING_HITS, reasons.COLD)
    return 1 - 1 / factor if known and factor and factor >= 1 else None


def peak_before(tier: KVCacheTier, known: Sizes) -> float:
    """The offered rate that the status's requiredEngines are for [tokens/s]; 0 without."""
    needed = (tier.status.get("admission") or {}).get("requiredEngines", 0)
    return float(needed) * known.engine_rate * known.utilization


def planned_before(status: Mapping[str, Any]) -> bool:
    """Whether the status says that ranks restart because somebody wants it so."""
    found = status.get("admission") or {}
    return found.get("state") == State.STORM and found.get("reason") == PLANNED
