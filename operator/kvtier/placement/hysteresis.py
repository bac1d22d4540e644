"""When a verdict that people see changes: not at the first probe that says otherwise."""

from dataclasses import dataclass, replace
from typing import Final

from kvtier.api.types import KVCacheTierSpec
from kvtier.breakeven.assessment import Evidence, LinkFigures, Verdict
from kvtier.breakeven.tier import assess

AGREEING: Final = 3
"""Probes in a row that must say the same before the verdict does."""
MARGIN: Final = 0.2
"""Share by which a measured bandwidth may be wrong: a verdict that stands for all of that range
needs no second probe."""

_ORDER: Final = (
    Verdict.NEVER_PAYS,
    Verdict.PAYS_UNDER_LOAD,
    Verdict.PAYS_WHEN_LONG,
    Verdict.PAYS,
)


@dataclass(frozen=True, slots=True)
class Shown:
    """The verdict that people see, and the one that newer probes speak for.

    ``generation`` is metadata.generation of the spec that was judged, ``at`` the time of the last
    probe that was counted (RFC 3339), ``agreeing`` how many in a row have said ``candidate``.
    ``rate`` is the observed prefill rate that it was judged by, None for the declared one.
    """

    verdict: Verdict
    generation: int
    at: str | None = None
    candidate: Verdict | None = None
    agreeing: int = 0
    rate: float | None = None


def settle(
    before: Shown | None,
    *,
    verdict: Verdict,
    generation: int,
    at: str | None,
    decisive: bool,
    lower_bound: bool = False,
    rate: float | None = None,
) -> Shown:
    """What to show after a probe that says ``verdict``.

    At once: the first verdict, one of another spec or ``rate``, one that ends ``Unknown``, and a
    ``decisive`` one (see ``is_decisive``). Any other after the third probe in a row that says the
    same. A ``lower_bound`` raises a verdict and never lowers it. A probe is counted once, by its
    ``at``.
    """
    new = Shown(verdict=verdict, generation=generation, at=at, rate=rate)
    if before is None or before.verdict is Verdict.UNKNOWN:
        return new
    if (before.generation, before.rate) != (generation, rate):
        return new
    if at is not None and at == before.at:
        return before
    if lower_bound and not _is_higher(verdict, than=before.verdict):
        return replace(before, at=at)
    if verdict is before.verdict or decisive:
        return new
    agreeing = before.agreeing + 1 if verdict is before.candidate else 1
    if agreeing >= AGREEING:
        return new
    return replace(before, at=at, candidate=verdict, agreeing=agreeing)


def is_decisive(spec: KVCacheTierSpec, *, link: LinkFigures, before: Verdict) -> bool:
    """Whether the verdict differs from ``before`` even if the bandwidth is 20 % off, either way."""
    return all(
        assess(spec, link=replace(link, bytes_per_second=link.bytes_per_second * factor)).verdict
        is not before
        for factor in (1 - MARGIN, 1 + MARGIN)
    )


def after_probe(
    before: Shown | None,
    *,
    spec: KVCacheTierSpec,
    generation: int,
    link: LinkFigures | None,
    verdict: Verdict,
    rate: float | None = None,
) -> Shown:
    """``settle`` for what ``assess`` said of ``link``. Nothing measured is ``Unknown``."""
    if link is None or link.evidence is Evidence.DECLARED:
        return Shown(verdict=Verdict.UNKNOWN, generation=generation)
    differs = before is not None and before.verdict is not verdict
    return settle(
        before,
        verdict=verdict,
        generation=generation,
        at=link.at,
        decisive=differs
        and before is not None
        and is_decisive(spec, link=link, before=before.verdict),
        lower_bound=link.lower_bound,
        rate=rate,
    )


def _is_higher(verdict: Verdict, *, than: Verdict) -> bool:
    if verdict is Verdict.UNKNOWN:
        return False
    return _ORDER.index(verdict) > _ORDER.index(than)
