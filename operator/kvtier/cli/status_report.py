"""A tier's status as one screen, and as a document. Nothing is asked or computed anew here."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from kvtier.api import reasons
from kvtier.api.conditions import find
from kvtier.breakeven.assessment import Evidence, Verdict
from kvtier.breakeven.words import age, counted, digits, gigabits, seconds, size
from kvtier.cli import changes, status_admission, status_generations
from kvtier.cli.active import Controller
from kvtier.cli.changes import NO_HISTORY, History
from kvtier.cli.next_steps import next_step
from kvtier.cli.screen import WIDTH, RankRow, Screen, screen
from kvtier.cli.status_generations import Pool
from kvtier.placement.findings import Finding, Severity
from kvtier.plan.probing import seconds_of

Body = Mapping[str, Any]
NO_STATUS: Final = (
    "The operator has written no status yet: see whether it runs, and whether it watches this "
    "namespace."
)
_SOURCES: Final = {
    Evidence.DECLARED.value: "the spec, not measured",
    Evidence.PROBED.value: "a probe",
    Evidence.OBSERVED.value: "the engines' own metrics",
}


def is_ready(body: Body) -> bool:
    """Whether the tier is Ready, by a status that is about the spec as it is."""
    status = _status(body)
    current = status.get("observedGeneration") == body["metadata"].get("generation")
    return current and find(status.get("conditions", ()), reasons.READY).get("status") == "True"


def text(
    body: Body,
    *,
    now: datetime,
    runs: Controller,
    pool: Pool,
    history: History = NO_HISTORY,
    runbooks: str = "",
    width: int | None = None,
) -> str:
    """The screen, ending in a newline; ``now`` is what ages are counted to, ``runbooks`` the URL of
    this organisation's, ``width`` that of a terminal."""
    status = _status(body)
    conditions = status.get("conditions", ())
    earning = find(conditions, reasons.EARNING_ITS_KEEP)
    if not earning and _is_refused(status):
        # A spec that was never accepted is judged by nobody.
        reason = find(conditions, reasons.SPEC_VALID)["reason"]
        earning = {"reason": reason, "message": f"{_refusal(status)}: nothing is made or judged."}
    step = next_step(body, active=runs.active, runbooks=runbooks)
    return screen(
        Screen(
            heading=[*_heading(body), *_controller(runs)],
            verdict=status.get("verdict", Verdict.UNKNOWN.value),
            reason=earning.get("reason", reasons.NOT_MEASURED),
            message=earning.get("message", NO_STATUS if not status else ""),
            facts=list(_facts(body, now=now)),
            ranks=[_row(rank) for rank in status.get("rankStates", ())],
            findings=list(_findings(status)),
            admission=list(status_admission.facts(body, now=now)),
            generations=list(status_generations.rows(body, pool=pool, now=now)),
            remark=pool.hint,
            changes=list(_changes(status, history, now=now)),
            changes_remark=history.hint,
            step=(step.text, step.runbook),
        ),
        width=width or WIDTH,
        clip=width is not None,
    )


def document(
    body: Body, *, runs: Controller, pool: Pool, history: History = NO_HISTORY, runbooks: str = ""
) -> dict[str, Any]:
    """Name, namespace, the status as the API server has it, the pods of the pool, the events, and
    what to do now.

    ``controllerActive``, ``poolPods`` and ``events`` are null where this person may not know.
    """
    metadata = body["metadata"]
    return {
        "name": metadata["name"],
        "namespace": metadata["namespace"],
        "ready": is_ready(body),
        "controllerActive": runs.active,
        **_status(body),
        "poolPods": status_generations.document(body, pool),
        "events": changes.documents(history),
        "next": next_step(body, active=runs.active, runbooks=runbooks).document(),
    }


def _changes(
    status: Mapping[str, Any], history: History, *, now: datetime
) -> Iterator[tuple[str, str, str]]:
    for each in changes.latest(status, history):
        yield age(now.timestamp() - seconds_of(each.at)), each.title, each.message


def _heading(body: Body) -> Iterator[str]:
    metadata, spec, status = body["metadata"], body.get("spec") or {}, _status(body)
    model, pool = spec.get("model") or {}, spec.get("pool") or {}
    yield (
        f"Tier {metadata['namespace']}/{metadata['name']}: {model.get('name')}, KV in "
        f"{model.get('kvCacheDtype')}, {counted(pool.get('ranks', 0), 'rank')}, "
        f"striping {pool.get('striping')}"
    )
    generations = [f"{each['id']} ({each['state']})" for each in status.get("generations", ())]
    yield (
        f"{'Ready' if is_ready(body) else 'Not ready'}: {status.get('ranks', 'no')} ranks"
        + (f", generation {', '.join(generations)}" if generations else "")
    )
    if spec.get("paused"):
        yield "Paused: nothing is changed, restarted or probed"
    if _is_refused(status) and find(status["conditions"], reasons.EARNING_ITS_KEEP):
        yield f"{_refusal(status)}: verdict, figures and other findings are of before"
    if status and status.get("observedGeneration") != metadata.get("generation"):
        yield "The spec has changed since: the operator has not looked at it yet"


def _controller(runs: Controller) -> Iterator[str]:
    if runs.hint:
        yield f"{runs.hint}. All of this is old" if runs.active is False else runs.hint


def _facts(body: Body, *, now: datetime) -> Iterator[tuple[str, str]]:
    status = _status(body)
    figures, measured = status.get("breakEven") or {}, status.get("measured") or {}
    if figures:
        yield "KV of one chunk", size(figures["chunkBytes"])
        yield "break-even (B*)", gigabits(figures["bytesPerSecond"])
    if "observedTokensPerSecond" in figures:
        source = _SOURCES[Evidence.OBSERVED.value]
        yield "engines prefill", f"{figures['observedTokensPerSecond']:,} tokens/s, by {source}"
    if "bytesPerSecond" in measured:
        ratio = f", {digits(measured['ratio'])} x break-even" if "ratio" in measured else ""
        trip = measured.get("roundTripSeconds")
        yield (
            "link",
            f"{'at least ' if measured.get('lowerBound') else ''}"
            f"{gigabits(measured['bytesPerSecond'])}"
            + (f", round trip {seconds(trip)}" if trip is not None else "")
            + ratio,
        )
        yield "known from", _source(measured, now=now)
    elif figures:
        yield "link", "not measured"
    if "minimumHitTokens" in figures:
        least = figures["minimumHitTokens"]
        # Where R rises with length a longer hit can lose again.
        lost = [row["tokens"] for row in figures.get("perLength", ()) if not row.get("wins", True)]
        longer = [f"{tokens:,}" for tokens in lost if tokens > least]
        some = f"; hits of {', '.join(longer)} lose again" if longer else ""
        yield "minimum hit", f"{least:,} tokens{some}"
    if "domain" in status:
        yield "ranks belong in", status["domain"]
    if "engineSecret" in status:
        yield "engine Secret", status["engineSecret"]


def _source(measured: Mapping[str, Any], *, now: datetime) -> str:
    where = f" from {measured['node']}" if "node" in measured else ""
    when = ""
    if at := seconds_of(measured.get("at")):
        when = f", {age(now.timestamp() - at)} ago ({measured['at']})"
    return f"{_SOURCES.get(measured.get('evidence', ''), 'somewhere')}{where}{when}"


def _row(rank: Mapping[str, Any]) -> RankRow:
    domain = f" ({rank['domain']})" if "domain" in rank else ""
    return RankRow(rank=rank["rank"], where=f"{rank.get('node', '-')}{domain}", ready=rank["ready"])


def _findings(status: Mapping[str, Any]) -> Iterator[Finding]:
    """What somebody may want to do something about: errors first, and refusals before all."""
    found = [
        Finding(
            each["reason"], each["message"], Severity(each["severity"]), each.get("blocks", False)
        )
        for each in status.get("findings", ())
    ]
    conditions = status.get("conditions", ())
    told = [
        Finding(each["reason"], each["message"], _SEVERITIES.get(each["status"], Severity.WARNING))
        for kind in _TOLD
        if (each := find(conditions, kind))
        and each["status"] != "True"
        # A condition of the checks repeats the first of what they found.
        and each["reason"] not in {one.reason for one in found}
    ]
    ready = find(conditions, reasons.READY)
    if not (told or found) and ready.get("status", "True") != "True":
        told = [Finding(ready["reason"], ready["message"], Severity.ERROR)]
    yield from sorted([*told, *found], key=lambda one: one.severity is not Severity.ERROR)


_SEVERITIES: Final = {"False": Severity.ERROR}
_TOLD: Final = (
    reasons.SPEC_VALID,
    reasons.STORE_READY,
    reasons.GENERATION_CURRENT,
    reasons.PLACEMENT_ACCEPTED,
)
"""Not Ready, which sums up, nor EarningItsKeep, which has the verdict's own sentence."""


def _is_refused(status: Mapping[str, Any]) -> bool:
    return find(status.get("conditions", ()), reasons.SPEC_VALID).get("status") == "False"


def _refusal(status: Mapping[str, Any]) -> str:
    reason = find(status["conditions"], reasons.SPEC_VALID).get("reason")
    if reason == reasons.RECORD_UNREADABLE:
        return "The tier's record cannot be read"
    return "The spec is refused"


def _status(body: Body) -> Mapping[str, Any]:
    return body.get("status") or {}
