"""What changed in a tier between two looks at it, a line each. Nothing is asked here."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvtier.api import reasons
from kvtier.api.conditions import find
from kvtier.breakeven.words import digits, gigabits
from kvtier.cli.changes import NORMAL, WARNING, of_event
from kvtier.plan.planned import ROLL_REQUESTED
from kvtier.plan.probing import REQUESTED

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Line:
    """``kind`` says what changed: Condition, Event, Rank, Generation, Verdict, Admission, Finding,
    Link, Spec, Tier, Alert, Controller or Server. ``severity`` is Normal or Warning."""

    kind: str
    message: str
    namespace: str = ""
    tier: str = ""
    severity: str = NORMAL
    reason: str = ""

    def text(self, at: str, *, named: bool) -> str:
        """``named`` where it is not clear from elsewhere which tier it is about."""
        which = f"{self.namespace}/{self.tier}  " if named and self.tier else ""
        return f"{at}  {which}{self.message}"

    def document(self, at: str) -> dict[str, str]:
        """The same for programs; what is empty is left out."""
        found = {
            "at": at,
            "namespace": self.namespace,
            "tier": self.tier,
            "kind": self.kind,
            "type": self.severity,
            "reason": self.reason,
            "message": self.message,
        }
        return {name: text for name, text in found.items() if text}


def first(body: Body) -> list[Line]:
    """How a tier is when somebody begins to look: in a line, and what is not True in it."""
    status = _status(body)
    ready = find(status.get("conditions", ()), reasons.READY).get("status") == "True"
    admission = (status.get("admission") or {}).get("state")
    parts = (
        "Ready" if ready else "not Ready",
        f"{status.get('ranks', 'no')} ranks",
        f"verdict {status.get('verdict', 'Unknown')}",
        f"admission {admission}" if admission else "",
        "paused" if _spec(body).get("paused") else "",
    )
    about = _About(body)
    return [
        about.line("Tier", ", ".join(filter(None, parts)), severity=NORMAL if ready else WARNING),
        *(
            about.condition(each)
            for each in status.get("conditions", ())
            if each["status"] == "False" and each["type"] != reasons.READY
        ),
    ]


def event_line(event: Body) -> Line:
    """A line for an event of a tier."""
    change, about = of_event(event), event["involvedObject"]
    return Line(
        kind="Event",
        message=f"{change.title}: {change.message}",
        namespace=str(about.get("namespace", "")),
        tier=str(about.get("name", "")),
        severity=change.severity,
        reason=change.reason,
    )


def gone(body: Body) -> Line:
    """The tier was deleted."""
    return _About(body).line("Tier", "the tier is deleted", severity=WARNING)


def between(before: Body, after: Body) -> list[Line]:
    """What is different; the order is that in which people ask for it."""
    about = _About(after)
    was, now = _status(before), _status(after)
    return [
        *_spec_changes(about, before, after),
        *_conditions(about, was, now),
        *_ranks(about, was, now),
        *_generations(about, was, now),
        *_admission(about, was, now),
        *_link(about, was, now),
        *_verdict(about, was, now),
        *_findings(about, was, now),
    ]


class _About:
    """Makes lines about one tier."""

    def __init__(self, body: Body) -> None:
        metadata = body["metadata"]
        self._of = {"namespace": metadata["namespace"], "tier": metadata["name"]}

    def line(self, kind: str, message: str, *, severity: str = NORMAL, reason: str = "") -> Line:
        text = " ".join(message.split())
        return Line(kind=kind, message=text, severity=severity, reason=reason, **self._of)

    def condition(self, found: Body) -> Line:
        # Ready repeats what another one says.
        said = "" if found["type"] == reasons.READY else found.get("message", "")
        return self.line(
            "Condition",
            f"{found['type']} is {found['status']} ({found['reason']}){': ' if said else ''}{said}",
            severity=WARNING if found["status"] == "False" else NORMAL,
            reason=found["reason"],
        )


_ASKED: Final = {REQUESTED: "a probe", ROLL_REQUESTED: "a roll"}
_TELLING: Final = (reasons.STORE_READY, reasons.GENERATION_CURRENT)
"""Conditions whose message tells how far it is."""


def _spec_changes(about: _About, before: Body, after: Body) -> Iterator[Line]:
    was, now = before["metadata"], after["metadata"]
    if was.get("uid") != now.get("uid"):
        yield about.line("Tier", "the tier was deleted and made anew", severity=WARNING)
    elif was.get("generation") != now.get("generation"):
        yield about.line("Spec", f"the spec changed (generation {now.get('generation')})")
    if now.get("deletionTimestamp") and not was.get("deletionTimestamp"):
        yield about.line("Tier", "the tier is being deleted", severity=WARNING)
    paused = bool(_spec(after).get("paused"))
    if paused != bool(_spec(before).get("paused")):
        yield about.line("Spec", "paused" if paused else "no longer paused")
    for annotation, what in _ASKED.items():
        at = (now.get("annotations") or {}).get(annotation)
        if at and at != (was.get("annotations") or {}).get(annotation):
            yield about.line("Spec", f"{what} was asked for at {at}")


def _conditions(about: _About, was: Body, now: Body) -> Iterator[Line]:
    for each in now.get("conditions", ()):
        old = find(was.get("conditions", ()), each["type"])
        same = (old.get("status"), old.get("reason")) == (each["status"], each["reason"])
        tells = each["type"] in _TELLING and each["status"] != "True"
        if not same or (tells and old.get("message") != each.get("message")):
            yield about.condition(each)


def _ranks(about: _About, was: Body, now: Body) -> Iterator[Line]:
    old = {each["rank"]: each for each in was.get("rankStates", ())}
    for each in now.get("rankStates", ()):
        rank, before = each["rank"], old.pop(each["rank"], {})
        where = f" on {each['node']}" if "node" in each else ""
        started = each.get("startedAt")
        if started and before.get("startedAt") and started != before["startedAt"]:
            yield about.line("Rank", f"rank {rank} has restarted{where}, empty", severity=WARNING)
        if each["ready"] != before.get("ready"):
            said = "is ready" if each["ready"] else "is not ready"
            severity = NORMAL if each["ready"] else WARNING
            yield about.line("Rank", f"rank {rank} {said}{where}", severity=severity)
        elif each.get("node") != before.get("node"):
            yield about.line("Rank", f"rank {rank} is{where or ' on no node'}")
    for rank in old:
        yield about.line("Rank", f"rank {rank} is gone")


def _generations(about: _About, was: Body, now: Body) -> Iterator[Line]:
    old = {each["id"]: each for each in was.get("generations", ())}
    for each in now.get("generations", ()):
        before = old.pop(each["id"], None)
        if before is not None and before["state"] == each["state"]:
            continue
        cause = f" ({each['cause']})" if each.get("cause") else ""
        said = each.get("message", "")
        yield about.line(
            "Generation",
            f"generation {each['id']} is {each['state']}{cause}{': ' if said else ''}{said}",
            severity=WARNING if each["state"] == "Contaminated" else NORMAL,
            reason=each["state"],
        )
    for name in old:
        yield about.line("Generation", f"generation {name} is gone")
    secret = now.get("engineSecret")
    if secret and secret != was.get("engineSecret"):
        yield about.line("Generation", f"engines are to mount the Secret {secret}")


def _admission(about: _About, was: Body, now: Body) -> Iterator[Line]:
    found, before = now.get("admission") or {}, was.get("admission") or {}
    state = (found.get("state"), found.get("reason"))
    if not found or state == (before.get("state"), before.get("reason")):
        return
    why = f" ({found['reason']})" if "reason" in found else ""
    limit = found.get("zeroHitTokensPerSecond")
    takes = f": engines take {limit:,} tokens/s while nothing hits" if limit and why else ""
    storms = found["state"] == "Storm"
    yield about.line(
        "Admission",
        f"admission is {found['state']}{why}{takes}",
        severity=WARNING if storms else NORMAL,
        reason=found.get("reason", ""),
    )


def _link(about: _About, was: Body, now: Body) -> Iterator[Line]:
    measured = now.get("measured") or {}
    if measured.get("at") and measured["at"] != (was.get("measured") or {}).get("at"):
        where = f" from {measured['node']}" if "node" in measured else ""
        ratio = f", {digits(measured['ratio'])} x break-even" if "ratio" in measured else ""
        yield about.line(
            "Link", f"the link gives {gigabits(measured['bytesPerSecond'])}{where}{ratio}"
        )
    if now.get("domain") and now["domain"] != was.get("domain"):
        yield about.line("Link", f"ranks belong in {now['domain']}")


def _verdict(about: _About, was: Body, now: Body) -> Iterator[Line]:
    verdict, before = now.get("verdict", "Unknown"), was.get("verdict", "Unknown")
    if verdict != before:
        yield about.line("Verdict", f"the verdict is {verdict}, was {before}", reason=verdict)


def _findings(about: _About, was: Body, now: Body) -> Iterator[Line]:
    old = _reasons(was.get("findings", ()))
    for each in now.get("findings", ()):
        if each["reason"] not in old:
            severity = WARNING if each["severity"] in ("Error", "Warning") else NORMAL
            yield about.line(
                "Finding",
                f"finding {each['severity']} {each['reason']}: {each['message']}",
                severity=severity,
                reason=each["reason"],
            )
    for reason in sorted(old - _reasons(now.get("findings", ()))):
        yield about.line("Finding", f"finding {reason} is gone", reason=reason)


def _reasons(findings: Sequence[Body]) -> set[str]:
    return {each["reason"] for each in findings}


def _status(body: Body) -> Body:
    return body.get("status") or {}


def _spec(body: Body) -> Body:
    return body.get("spec") or {}
