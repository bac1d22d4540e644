"""``kvtier plan`` for people: the verdict first, then what it compares, then length by length."""

import math
import textwrap
from collections.abc import Mapping, Sequence

from kvtier.api.combinations import row_of
from kvtier.api.types import KVCacheTier, Striping
from kvtier.breakeven.assessment import Assessment, Evidence, Row, Verdict
from kvtier.breakeven.patterns import AccessAssessment
from kvtier.breakeven.words import age, counted, digits, gigabits, seconds, size
from kvtier.placement.findings import Finding, errors
from kvtier.render.memory import held_chunks, held_tokens, memory

_WIDTH = 92
_UNKNOWN = "-"


def table(
    tier: KVCacheTier,
    assessment: Assessment,
    *,
    findings: Sequence[Finding],
    access: AccessAssessment | None,
    changes: Mapping[str, str],
    links: str | None = None,
    link_age: float | None = None,
    place: Sequence[tuple[str, str]] = (),
) -> str:
    """The whole text, ending in a newline.

    ``links`` is the file that they are from, if not the tier's own; ``link_age`` how many seconds
    ago the link was measured; ``place`` are facts about where the tier runs.
    """
    spec = tier.spec
    judged = assessment if access is None else access
    lines = [
        f"Tier {tier.metadata.name}: {spec.model.name}, KV in {spec.model.kv_cache_dtype.value}, "
        f"{counted(spec.pool.ranks, 'rank')}, striping {spec.pool.striping.value}",
    ]
    if changes:
        asked = ", ".join(f"{name}={value}" for name, value in changes.items())
        lines.append(f"What if: {asked}")
    lines += ["", _headline(judged.verdict, findings), *_wrapped(judged.message), ""]
    lines += _pairs([*_facts(tier, assessment, link_age=link_age), *place])
    if access is None:
        lines += ["", *_by_length(assessment, held=held_tokens(spec))]
    else:
        lines += ["", *_by_token(access)]
    lines += _findings(findings)
    lines += ["", f"{_source(assessment, links)} docs/break-even.md explains each line."]
    return "\n".join(lines) + "\n"


def _headline(verdict: Verdict, findings: Sequence[Finding]) -> str:
    """The verdict, and beside one that is no bad news how many errors speak against the tier."""
    found = len(errors(findings))
    if not found or verdict is Verdict.NEVER_PAYS:
        return f"Verdict: {verdict.value}"
    joined = "and" if verdict is Verdict.UNKNOWN else "but"
    return f"Verdict: {verdict.value}, {joined} {found} error{'s' if found > 1 else ''} below"


def _findings(findings: Sequence[Finding]) -> list[str]:
    """One paragraph each, what is worst first; docs/runbooks.md has a section for each reason."""
    lines: list[str] = []
    for found in findings:
        blocks = ", refused with onReject: Block" if found.blocks else ""
        lines += ["", f"{found.severity.value}: {found.reason}{blocks}", *_wrapped(found.message)]
    return lines


def _source(assessment: Assessment, links: str | None) -> str:
    if assessment.link is not None and assessment.link.evidence is not Evidence.DECLARED:
        seen = ", and engines' prefill rate seen" if assessment.observed is not None else ""
        return f"The link was measured{seen}; all else is the file's own figures."
    files = "The file's own figures" if links is None else f"The figures of the file and of {links}"
    return f"{files}, not measured ones."


def _facts(
    tier: KVCacheTier, assessment: Assessment, *, link_age: float | None
) -> list[tuple[str, str]]:
    pool = tier.spec.pool
    copies = assessment.bytes_per_token / assessment.logical_bytes_per_token
    facts = [
        (
            "KV of one token",
            f"{size(assessment.bytes_per_token)} stored and moved"
            + (f" ({digits(copies)} copies)" if copies > 1 else ""),
        ),
        *_constant(assessment),
        ("KV of one chunk", _chunk(tier, assessment)),
        *_engine(tier),
        ("the store holds", _held(tier)),
        (
            "break-even (B*)",
            f"{gigabits(assessment.break_even)}: up to it no hit is faster than the prefill",
        ),
        ("link", _link(assessment, link_age)),
        *_observed(assessment),
        ("fixed time (T0)", _fixed(assessment)),
        ("minimum hit", _minimum_hit(assessment, pool.chunk_tokens)),
    ]
    if assessment.compression != 1:
        facts.append(("compression", f"{digits(assessment.compression)} (no connector has any)"))
    return facts


def _constant(assessment: Assessment) -> list[tuple[str, str]]:
    if not assessment.constant_bytes:
        return []
    text = f"{size(assessment.constant_bytes)} of sliding windows and linear states, once per hit"
    return [("and beside it", text)]


def _chunk(tier: KVCacheTier, assessment: Assessment) -> str:
    pool = tier.spec.pool
    where = "all on one rank"
    if pool.striping is Striping.SHARD:
        where = f"{size(assessment.chunk_bytes_per_rank)} on each of {pool.ranks} ranks"
    return f"{size(assessment.chunk_bytes)} ({pool.chunk_tokens} tokens), {where}"


def _engine(tier: KVCacheTier) -> list[tuple[str, str]]:
    row = row_of(tier.spec)
    if row is None:
        return []
    return [
        ("engines", row.client(tier.spec.pool.ranks)),
        *([("", row.note)] if row.note else []),
    ]


def _held(tier: KVCacheTier) -> str:
    rank = memory(tier.spec)
    chunks = held_chunks(tier.spec, rank)
    return (
        f"{chunks * tier.spec.pool.chunk_tokens:,} tokens ({counted(chunks, 'chunk')}; "
        f"{size(rank.maxmemory)} of {size(rank.limit)} on each rank)"
    )


def _link(assessment: Assessment, link_age: float | None) -> str:
    link = assessment.link
    if link is None or assessment.ratio is None:
        return "not declared (placement.links)"
    known = f"{link.domain}, {link.evidence.lower()}"
    if link.evidence is not Evidence.DECLARED:
        when = "" if link_age is None else f" {age(link_age)} ago"
        known = link.evidence.lower() + when + (f" from {link.node}" if link.node else "")
    return (
        f"{'at least ' if link.lower_bound else ''}{gigabits(link.bytes_per_second)}, round trip "
        f"{seconds(link.round_trip_seconds)} ({known}): {digits(assessment.ratio)} x break-even"
    )


def _observed(assessment: Assessment) -> list[tuple[str, str]]:
    if assessment.observed is None:
        return []
    return [("engines prefill", f"{assessment.observed:,.0f} tokens/s, by their own metrics")]


def _fixed(assessment: Assessment) -> str:
    if assessment.t0_seconds is None:
        return "not declared (pool.hitLatency and pool.hitEngineTime)"
    return f"{seconds(assessment.t0_seconds)} for every hit, whatever its length"


def _minimum_hit(assessment: Assessment, chunk_tokens: int) -> str:
    tokens = assessment.minimum_hit
    if tokens is None:
        return "not known without link and fixed time"
    if math.isinf(tokens):
        return "none: no length is enough"
    chunks = f"{tokens:,.0f} tokens ({counted(math.ceil(tokens / chunk_tokens), 'chunk')})"
    wins = assessment.wins
    if wins is None or math.isinf(wins.most):
        return chunks
    return f"{chunks}; {'some' if wins.again else 'all'} above {wins.most:,.0f} lose again"


def _by_length(assessment: Assessment, *, held: int) -> list[str]:
    rows = [[f"{row.tokens:,}", *_times(row, fits=row.tokens <= held)] for row in assessment.rows]
    return _columns(["tokens of the hit", "recompute", "fetch", "faster", "fetch wins above"], rows)


def _times(row: Row, *, fits: bool) -> list[str]:
    recompute = seconds(row.recompute_seconds)
    if not fits:
        return [recompute, _UNKNOWN, "does not fit", _UNKNOWN]
    if row.fetch_seconds is None:
        return [recompute, _UNKNOWN, _UNKNOWN, _UNKNOWN]
    faster = "fetch" if row.wins else "recompute"
    needed = row.bytes_per_second
    return [
        recompute,
        seconds(row.fetch_seconds),
        faster,
        _UNKNOWN if needed is None else gigabits(needed) if math.isfinite(needed) else "never",
    ]


def _by_token(access: AccessAssessment) -> list[str]:
    rows = [
        [
            f"{row.tokens:,}",
            _UNKNOWN if row.remote_seconds is None else seconds(row.remote_seconds),
            seconds(row.local_seconds),
        ]
        for row in access.rows
    ]
    return _columns(["tokens so far", "per token, link", "per token, GPU memory"], rows)


def _columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    return [
        "  " + "   ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in (header, *rows)
    ]


def _pairs(facts: Sequence[tuple[str, str]]) -> list[str]:
    width = max(len(name) for name, _ in facts)
    return [f"  {name.ljust(width)}  {value}" for name, value in facts]


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
    )
