"""What ``kvtier try`` found, as a screen and as a document."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kvtier.api import reasons
from kvtier.api.types import KVCacheTier
from kvtier.breakeven.assessment import Assessment, Verdict
from kvtier.breakeven.tier import curve
from kvtier.breakeven.words import counted, digits, gigabits, seconds, size
from kvtier.cli import output
from kvtier.cli.screen import RankRow, Screen, screen
from kvtier.placement.findings import Finding
from kvtier.probe.result import ProbeResult
from kvtier.render.memory import held_tokens
from kvtier.trial.keeper import HOST
from kvtier.trial.reference import Fetched

EVIDENCE: Final = "Loopback"
"""Of figures measured on one machine: they say what it can do, and nothing of any network."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What stays: where engines find their configuration, and who ends it all."""

    engine: Path
    pid: int


@dataclass(frozen=True, slots=True)
class Trial:
    """Everything about one trial.

    ``assessment`` and ``findings`` are of the tier as its file has it, by declared figures;
    ``changes`` is what is not so here; ``used`` are (used, most) bytes of each rank, None of one
    that did not answer. ``fetched`` is None where nothing could be.
    """

    tier: KVCacheTier
    assessment: Assessment
    findings: Sequence[Finding]
    server: str
    changes: Sequence[str]
    ports: Sequence[int]
    probe: ProbeResult
    fetched: Fetched | None
    used: Sequence[tuple[int, int] | None]

    @property
    def works(self) -> bool:
        """Whether every rank answered, was measured and gave right bytes."""
        fetched = self.fetched is not None and self.fetched.wrong is None
        return fetched and None not in self.used and not self.probe.troubles

    @property
    def message(self) -> str:
        assessment = self.assessment
        about = "Loopback was measured, which says nothing of your network."
        if assessment.verdict is Verdict.UNKNOWN:
            return f"{about} {assessment.message}"
        return (
            f"{about} If the links do what the file declares: {assessment.verdict.value}. "
            f"{assessment.message}"
        )

    def ranks(self) -> list[RankRow]:
        measured = {each.rank: each for each in self.probe.ranks}
        rows = []
        for rank, (port, used) in enumerate(zip(self.ports, self.used, strict=True)):
            found = measured.get(rank)
            rows.append(
                RankRow(
                    rank=rank,
                    where=f"{HOST}:{port}",
                    ready=used is not None,
                    bytes_per_second=None if found is None else found.bytes_per_second,
                    round_trip_seconds=None if found is None else found.round_trip,
                    used_bytes=used and used[0],
                    max_bytes=used and used[1],
                )
            )
        return rows

    def recompute_seconds(self) -> float | None:
        """What the fetched tokens take to compute, by the declared rate."""
        if self.fetched is None:
            return None
        [row] = curve(self.tier.spec, [self.fetched.tokens])
        return row.recompute_seconds


def text(trial: Trial, *, kept: Kept | None) -> str:
    """The screen, and what to do with what was kept."""
    spec = trial.tier.spec
    shown = Screen(
        heading=(
            f"Tier {trial.tier.metadata.name}: {spec.model.name}, KV in "
            f"{spec.model.kv_cache_dtype.value}, {counted(spec.pool.ranks, 'rank')}, striping "
            f"{spec.pool.striping.value}",
            "; ".join([f"On this machine: {trial.server}, loopback only", *trial.changes]),
        ),
        verdict=Verdict.UNKNOWN.value,
        reason=reasons.NOT_MEASURED,
        message=trial.message,
        facts=list(_facts(trial)),
        ranks=trial.ranks(),
        findings=trial.findings,
    )
    return screen(shown) + ("" if kept is None else _kept(trial, kept))


def _facts(trial: Trial) -> list[tuple[str, str]]:
    assessment, probe = trial.assessment, trial.probe
    facts = [
        (
            "KV of one chunk",
            f"{size(assessment.chunk_bytes)} ({trial.tier.spec.pool.chunk_tokens} tokens)",
        ),
        ("break-even (B*)", gigabits(assessment.break_even)),
    ]
    if assessment.link is not None and assessment.ratio is not None:
        link = assessment.link
        facts.append(
            (
                "declared link",
                f"{gigabits(link.bytes_per_second)}, round trip "
                f"{seconds(link.round_trip_seconds)} ({link.domain}): "
                f"{digits(assessment.ratio)} x break-even",
            )
        )
    if probe.link is not None and probe.client is not None and probe.round_trip is not None:
        least = "at least " if probe.lower_bound else ""
        facts.append(
            (
                "loopback",
                f"{least}{gigabits(probe.link)} by plain sockets, {gigabits(probe.client)} by a "
                f"client as engines have; round trip {seconds(probe.round_trip)}",
            )
        )
    facts += [
        (f"rank {', '.join(map(str, each.ranks))}", f"not measured: {each.text}")
        for each in probe.troubles
    ]
    facts.append(("fetched", _fetched(trial)))
    return facts


def _fetched(trial: Trial) -> str:
    fetched, recompute = trial.fetched, trial.recompute_seconds()
    if fetched is None or recompute is None:
        return "nothing"
    what = f"{fetched.tokens:,} tokens, {size(fetched.byte_count)}"
    if fetched.wrong is not None:
        return f"{what}: {fetched.wrong}"
    return (
        f"{what} in {seconds(fetched.seconds)}, every byte right; computing them takes "
        f"{seconds(recompute)} by the declared rate"
    )


def _kept(trial: Trial, kept: Kept) -> str:
    return (
        "\nThe ranks stay until you stop them.\n"
        f"  engine configuration  {kept.engine}\n"
        f"  load them             kvtier loadtest --secret-dir {kept.engine}\n"
        f"  stop, and remove all  kill {kept.pid}\n"
    )


def document(trial: Trial, *, kept: Kept | None) -> dict[str, Any]:
    """Under the names of the status fields; what is not known is absent."""
    assessment, probe, fetched = trial.assessment, trial.probe, trial.fetched
    content: dict[str, Any] = {
        "name": trial.tier.metadata.name,
        "verdict": Verdict.UNKNOWN.value,
        "reason": reasons.NOT_MEASURED,
        "message": trial.message,
        "declared": {
            "verdict": assessment.verdict.value,
            "reason": assessment.reason,
            "message": assessment.message,
        },
        "server": trial.server,
        "scaled": list(trial.changes),
        "ranks": f"{sum(used is not None for used in trial.used)}/{len(trial.used)}",
        "rankStates": [_rank(row) for row in trial.ranks()],
        "breakEven": assessment.figures(held=held_tokens(trial.tier.spec)),
        "findings": output.findings(trial.findings),
    }
    if probe.link is not None and probe.client is not None:
        content["measured"] = {
            "bytesPerSecond": round(probe.client),
            "roundTripSeconds": probe.round_trip,
            "evidence": EVIDENCE,
            "at": probe.at,
            "ratio": probe.client / assessment.break_even,
            "linkBytesPerSecond": round(probe.link),
            "lowerBound": probe.lower_bound,
        }
    if probe.troubles:
        content["troubles"] = [
            {"ranks": list(each.ranks), "message": each.text} for each in probe.troubles
        ]
    if fetched is not None:
        content["referenceFetch"] = {
            "tokens": fetched.tokens,
            "chunks": fetched.chunks,
            "bytes": fetched.byte_count,
            "seconds": fetched.seconds,
            "recomputeSeconds": trial.recompute_seconds(),
            **({} if fetched.wrong is None else {"wrong": fetched.wrong}),
        }
    if kept is not None:
        content["kept"] = {"engineConfiguration": str(kept.engine), "pid": kept.pid}
    return content


def _rank(row: RankRow) -> dict[str, Any]:
    entry = {
        "rank": row.rank,
        "address": row.where,
        "ready": row.ready,
        "bytesPerSecond": row.bytes_per_second and round(row.bytes_per_second),
        "roundTripSeconds": row.round_trip_seconds,
        "usedBytes": row.used_bytes,
        "maxBytes": row.max_bytes,
    }
    return {name: value for name, value in entry.items() if value is not None}
