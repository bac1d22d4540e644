"""R as engines show it beside R as declared: when it counts, and for what.

A greater R makes a hit worth less. So engines that are quicker than declared count for the verdict;
that they are slower is told, and the verdict stays by what was declared: what bounds R from above
assumes more than what bounds it from below.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from kvtier.api.types import KVCacheTierSpec
from kvtier.breakeven.assessment import two_digits
from kvtier.breakeven.load import prefill_points

MOST_OFF: Final = 0.25
"""Share by which an observed prefill rate may differ from the declared one."""
SAME: Final = 1.1
"""Factor within which two figures are the same one, measured twice."""
OUTDATED: Final = 86400.0
"""Seconds after which newer bounds replace older ones, even if both may be true."""


@dataclass(frozen=True, slots=True)
class SeenRate:
    """Bounds of R [tokens/s] for the prompts for which the least is declared.

    ``at`` is the monotonic time of the oldest of them, None if another process saw them.
    """

    at_least: float = 0.0
    at_most: float | None = None
    at: float | None = None


@dataclass(frozen=True, slots=True)
class RateOff:
    """R as engines show it, of prompts for which ``declared`` is: more than 25 % off. Tokens/s."""

    seen: float
    declared: float

    @property
    def factor(self) -> float:
        return self.seen / self.declared

    @property
    def faster(self) -> bool:
        return self.seen > self.declared


def counted(off: RateOff | None) -> float | None:
    """The R that a verdict goes by instead of the declared one, None if it goes by that."""
    return off.seen if off is not None and off.faster else None


def slowest(spec: KVCacheTierSpec) -> float:
    """The least R that is declared [tokens/s]: that of B*."""
    return min(rate for _, rate in prefill_points(spec))


def hold(before: SeenRate | None, new: SeenRate) -> SeenRate:
    """What to go by after another sample: what was known, as far as both can be true.

    A bound that is tighter by more than 10 % replaces the older one; samples that contradict each
    other by more, or that are a day apart, leave only the new one. So another load moves nothing.
    """
    if before is None or _contradict(before, new) or _is_outdated(before, new):
        return new
    tighter = before
    if new.at_least > SAME * before.at_least:
        tighter = replace(tighter, at_least=new.at_least)
    if new.at_most is not None and (before.at_most is None or new.at_most * SAME < before.at_most):
        tighter = replace(tighter, at_most=new.at_most)
    return tighter if before.at is not None else replace(tighter, at=new.at)


def _contradict(one: SeenRate, other: SeenRate) -> bool:
    return any(
        first.at_most is not None and second.at_least > SAME * first.at_most
        for first, second in ((one, other), (other, one))
    )


def _is_outdated(before: SeenRate, new: SeenRate) -> bool:
    return before.at is not None and new.at is not None and new.at - before.at > OUTDATED


def rate_off(spec: KVCacheTierSpec, seen: SeenRate | None) -> RateOff | None:
    """How far engines are from what is declared; None within 25 %, or if that is not known.

    The figure has two digits: it is the one that the status keeps.
    """
    if seen is None:
        return None
    declared = slowest(spec)
    if seen.at_least > (1 + MOST_OFF) * declared:
        return RateOff(seen=two_digits(seen.at_least), declared=declared)
    if seen.at_most is not None and seen.at_most < (1 - MOST_OFF) * declared:
        return RateOff(seen=max(two_digits(seen.at_most), 1.0), declared=declared)
    return None


def as_seen(spec: KVCacheTierSpec, off: RateOff | None) -> KVCacheTierSpec:
    """The spec to judge by: with all its prefill rates as much greater as engines show."""
    if off is None or counted(off) is None:
        return spec
    points = [
        point.model_copy(update={"tokens_per_second": point.tokens_per_second * off.factor})
        for point in spec.pool.prefill_rate
    ]
    pool = spec.pool.model_copy(update={"prefill_rate": points})
    return spec.model_copy(update={"pool": pool})


def seen_before(spec: KVCacheTierSpec, status: Mapping[str, Any]) -> SeenRate | None:
    """What the status keeps of it, for a process that has seen nothing yet."""
    kept = (status.get("breakEven") or {}).get("observedTokensPerSecond")
    if not kept:
        return None
    found = float(kept)
    return SeenRate(at_least=found) if found > slowest(spec) else SeenRate(at_most=found)
