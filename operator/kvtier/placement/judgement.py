"""All that kvtier has to say about one tier: figures, verdict, findings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvtier.api.types import KVCacheTierSpec
from kvtier.breakeven.assessment import Assessment, Evidence, LinkFigures, Verdict
from kvtier.breakeven.observed import SeenRate, as_seen, counted, rate_off
from kvtier.breakeven.tier import assess
from kvtier.placement.chain import examine, ordered, rejection
from kvtier.placement.findings import Finding, Severity, errors
from kvtier.placement.hysteresis import Shown, after_probe


@dataclass(frozen=True, slots=True)
class Judgement:
    """``assessment`` is by the newest figures; ``shown`` is the verdict that people see.

    ``findings`` are ordered, what is worst first; ``rejected`` is the one for which a tier with
    ``onReject: Block`` is not made.
    """

    assessment: Assessment
    findings: tuple[Finding, ...]
    shown: Shown
    rejected: Finding | None

    @property
    def errors(self) -> tuple[Finding, ...]:
        return errors(self.findings)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        return tuple(one for one in self.findings if one.severity is Severity.WARNING)

    @property
    def measured(self) -> bool:
        """Whether the link was, rather than declared or unknown."""
        link = self.assessment.link
        return link is not None and link.evidence is not Evidence.DECLARED


def judge(
    spec: KVCacheTierSpec,
    *,
    generation: int = 0,
    link: LinkFigures | None = None,
    reach: str | None = None,
    before: Shown | None = None,
    engines: int | None = None,
    ranks_together: int | None = None,
    seen: SeenRate | None = None,
    others: Sequence[Finding] = (),
) -> Judgement:
    """Judge a tier by a measured ``link``, or else by what it declares for ``reach``, the farthest
    level between its engines and its ranks (None: not known).

    ``before`` is what was shown of it last. ``engines`` and ``ranks_together`` are those of
    ``chain.Case``, ``seen`` is what engines show of their prefill rate; ``others`` are findings
    about where it runs. Raises nothing for a spec that ``parse_tier`` returned and a link that some
    probe gave.
    """
    off = rate_off(spec, seen)
    spec, declared = as_seen(spec, off), spec
    assessment = assess(declared, link=link, reach=reach, off=off)
    found = examine(
        spec,
        assessment=assessment,
        engines=engines,
        ranks_together=ranks_together,
        off=off,
    )
    findings = ordered((*found, *others))
    return Judgement(
        assessment=assessment,
        findings=findings,
        shown=after_probe(
            before,
            spec=spec,
            generation=generation,
            link=link,
            verdict=assessment.verdict,
            rate=counted(off),
        ),
        rejected=rejection(spec, findings),
    )


def shown_before(status: Mapping[str, Any], *, rate: float | None = None) -> Shown | None:
    """What a tier's status shows, for a process that remembers nothing.

    ``rate`` is the observed prefill rate that the status keeps, where the verdict is by that.
    """
    verdict, measured = status.get("verdict"), status.get("measured") or {}
    if verdict not in set(Verdict):
        return None
    return Shown(
        verdict=Verdict(verdict),
        generation=status.get("observedGeneration", 0),
        at=measured.get("at"),
        rate=rate,
    )
