"""What to do now about a tier: one step, from the heaviest reason, with its runbook."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Final

import yaml

from kvtier.api import reasons
from kvtier.api.conditions import find
from kvtier.placement.findings import Severity

RUNBOOKS: Final = "docs/runbooks.md"
OPERATOR_DOWN: Final = "KVTierOperatorDown"
NO_STATUS: Final = "NoStatus"
_OPERATOR: Final = (
    "Bring the operator back: `kubectl get pods,lease -A -l app.kubernetes.io/name=kvtier`. "
    "The ranks serve on without it."
)


@dataclass(frozen=True, slots=True)
class Step:
    """``reason`` is empty where there is nothing to do; ``runbook`` is a page and a section."""

    reason: str
    text: str
    runbook: str = ""

    def document(self) -> dict[str, Any]:
        """The same for programs."""
        found = {"reason": self.reason, "text": self.text, "runbook": self.runbook}
        return {name: text for name, text in found.items() if text}


def next_step(body: Mapping[str, Any], *, active: bool | None, runbooks: str = "") -> Step:
    """``active`` tells whether a controller runs, None if that is not known; ``runbooks`` is the
    URL under which this organisation serves the runbooks, if it does."""
    where = runbooks or RUNBOOKS
    if active is False:
        return Step(OPERATOR_DOWN, _OPERATOR, _link(where, OPERATOR_DOWN))
    metadata = body["metadata"]
    texts = _texts()
    for reason in _reasons(body):
        if text := texts.get(reason):
            said = text.format(tier=metadata["name"], namespace=metadata["namespace"])
            return Step(reason, said, _link(where, reason))
    if not body.get("status"):
        return Step(NO_STATUS, _OPERATOR, _link(where, OPERATOR_DOWN))
    return Step("", "Nothing to do.")


def _link(where: str, reason: str) -> str:
    return f"{where.partition('#')[0]}#{reason.lower()}"


def _reasons(body: Mapping[str, Any]) -> Iterator[str]:
    """The heaviest first: what keeps it from serving, a storm, errors, what it does not earn."""
    status = body.get("status") or {}
    conditions = status.get("conditions", ())
    for kind in (reasons.SPEC_VALID, reasons.STORE_READY, reasons.GENERATION_CURRENT):
        yield from _unless_true(conditions, kind)
    if (body.get("spec") or {}).get("paused"):
        yield reasons.PAUSED
    warm = find(conditions, reasons.WARM).get("reason")
    enforces = ((body.get("spec") or {}).get("admission") or {}).get("mode") == "Enforce"
    # Where nothing is limited, there is nothing to do about hits that come back.
    if warm == reasons.STORM or (enforces and warm == reasons.RECOVERING):
        yield from _unless_true(conditions, reasons.ADMISSION_ENFORCED)
        yield str(warm)
    findings = status.get("findings", ())
    yield from _of_severity(findings, Severity.ERROR)
    earning = find(conditions, reasons.EARNING_ITS_KEEP)
    if earning.get("status") == "False":
        yield str(earning["reason"])
    yield from _of_severity(findings, Severity.WARNING)
    for kind in (reasons.PLACEMENT_ACCEPTED, reasons.EARNING_ITS_KEEP, reasons.WARM):
        yield from _unless_true(conditions, kind)
    if enforces:
        yield from _unless_true(conditions, reasons.ADMISSION_ENFORCED)


def _unless_true(conditions: Any, kind: str) -> Iterator[str]:
    found = find(conditions, kind)
    if found.get("status", "True") != "True":
        yield str(found["reason"])


def _of_severity(findings: Any, severity: Severity) -> Iterator[str]:
    for each in findings:
        if each["severity"] == severity.value:
            yield str(each["reason"])


@cache
def _texts() -> Mapping[str, str | None]:
    file = resources.files("kvtier.cli").joinpath("next_steps.yaml")
    found: dict[str, str | None] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return found


def steps() -> Mapping[str, str | None]:
    """By reason; None where there is nothing to do."""
    return _texts()
