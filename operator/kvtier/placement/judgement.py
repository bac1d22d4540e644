"""All that kvtier has to say about one tier: figures, verdict, findings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvtier.api.types import KVCacheTierSpec
from kvtier.breakeven.assessment import Assessment, Evidence, LinkFigures, Verdict
from kvtier.breakeven.tier import assess
from kvtier.placement.chain import examine, ordered, rejection
from kvtier.placement.findings import Finding, Severity
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
        return tuple(one for one in self.findings if one.severity is Severity.ERROR)

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
    before: Shown | None = None,
    engines: int | None = None,
    ranks_together: int | None = None,
    observed_rate: float | None = None,
    others: Sequence[Finding] = (),
) -> Judgement:
    """Judge a tier by a measured ``link``, or else by what it declares.

    ``before`` is what was shown of it last. ``engines``, ``ranks_together`` and ``observed_rate``
    are those of ``chain.Case``; ``others`` are findings about where it runs. Raises nothing for a
    spec that ``parse_tier`` returned and a link that some probe gave.
    """
    assessment = assess(spec, link=link)
    found = examine(
        spec,
        assessment=assessment,
        engines=engines,
        ranks_together=ranks_together,
        observed_rate=observed_rate,
    )
    findings = ordered((*found, *others))
    return Judgement(
        assessment=assessment,
        findings=findings,
        shown=after_probe(
            before, spec=spec, generation=generation, link=link, verdict=assessment.verdict
        ),
        rejected=rejection(spec, findings),
    )


def shown_before(status: Mapping[str, Any]) -> Shown | None:
    """What a tier's status shows, for a process that remembers nothing."""
    verdict, measured = status.get("verdict"), status.get("measured") or {}
    if verdict not in set(Verdict):
        return None
    return Shown(
        verdict=Verdict(verdict),
        generation=status.get("observedGeneration", 0),
        at=measured.get("at"),
    )
