"""The report: one document, and the same as a table."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kvtier.breakeven.words import seconds, size
from kvtier.loadtest.connection import Connection
from kvtier.loadtest.measures import Completed, Outage, RankMeasures, percentile

Document = dict[str, Any]
UNFINISHED = "Unfinished"
"""How a run ended of which an engine did not end in time: the last that it told is reported."""


@dataclass(frozen=True, slots=True)
class Results:
    """All engines together. ``begin`` is in seconds since the epoch; ``reading`` are, by rank, the
    seconds in which any engine read; ``ended_by`` is Duration, Bytes, Signal or Unfinished."""

    begin: float
    seconds: float
    engines: int
    requests: int
    ended_by: str
    stores_dropped: int
    completed: Sequence[Completed]
    errors: Sequence[float]
    ranks: Sequence[RankMeasures]
    reading: Sequence[float]
    outages: Sequence[Outage]


def document(connection: Connection, results: Results) -> Document:
    """The report as docs/loadtest.md has it."""
    tokens = sum(each.tokens for each in results.completed)
    hit = sum(each.hit_tokens for each in results.completed)
    hits = [each.hit for each in results.completed if each.hit is not None]
    return {
        "tier": f"{connection.namespace}/{connection.tier}",
        "generation": connection.generation,
        "striping": connection.striping.value,
        "engines": results.engines,
        "endedBy": results.ended_by,
        "seconds": round(results.seconds, 3),
        "requests": results.requests,
        "completed": len(results.completed),
        "storesDropped": results.stores_dropped,
        "ttftSeconds": _spread([each.ttft for each in results.completed]),
        "fetchSeconds": _spread([hit.fetch for hit in hits]),
        "recomputeSeconds": _spread([hit.recompute for hit in hits]),
        "tokens": {"requested": tokens, "hit": hit},
        "hitRate": _ratio(hit, tokens),
        "bytes": {
            "read": sum(rank.bytes_read for rank in results.ranks),
            "written": sum(rank.bytes_written for rank in results.ranks),
        },
        "ranks": [
            _rank(rank, reading)
            for rank, reading in zip(results.ranks, results.reading, strict=True)
        ],
        "wrong": _wrong(results),
        "outages": [_outage(outage) for outage in results.outages],
        "timeline": timeline(results),
    }


def timeline(results: Results) -> list[Document]:
    """What was completed and what failed in each second of the run."""
    count = max(1, math.ceil(results.seconds - 0.1))
    done: list[list[Completed]] = [[] for _ in range(count)]
    errors = [0] * count
    for each in results.completed:
        done[_second(each.at - results.begin, count)].append(each)
    for at in results.errors:
        errors[_second(at - results.begin, count)] += 1
    return [
        {
            "at": timestamp(results.begin + number),
            "requests": len(mine),
            "hitRate": _ratio(
                sum(each.hit_tokens for each in mine), sum(each.tokens for each in mine)
            ),
            "ttftP99Seconds": _rounded(percentile([each.ttft for each in mine], 0.99)),
            "errors": failed,
        }
        for number, (mine, failed) in enumerate(zip(done, errors, strict=True))
    ]


def _second(after: float, count: int) -> int:
    # Clocks differ by what they like: nothing falls off either end.
    return min(max(int(after), 0), count - 1)


def progress(results: Results) -> Document:
    """The last whole second that all engines have told of, and what is wrong up to now."""
    seconds = timeline(results)
    shown = dict(seconds[max(len(seconds) - 2, 0)])
    shown["down"] = [outage.rank for outage in results.outages if outage.end is None]
    shown["wrong"] = _wrong(results)
    return shown


def _wrong(results: Results) -> Document:
    return {
        "corrupt": sum(rank.corrupt for rank in results.ranks),
        "foreign": sum(rank.foreign for rank in results.ranks),
        "stale": sum(rank.stale for rank in results.ranks),
    }


def exit_code(results: Results) -> int:
    """1 if a byte was wrong, no rank ever answered, or an engine had to be ended."""
    bad = any(_wrong(results).values()) or results.ended_by == UNFINISHED
    return int(bad or not any(rank.answered for rank in results.ranks))


def nothing_reached(connection: Connection, results: Results) -> str | None:
    """Why the run was in vain, in one line; None if any rank ever answered."""
    if any(rank.answered for rank in results.ranks):
        return None
    said = "no rank ever answered"
    if not results.outages:
        return f"{said}, and none failed: the run was ended too early"
    outage = results.outages[0]
    host = next(each.host for each in connection.ranks if each.rank == outage.rank)
    if not outage.reason.startswith(f"{host}: "):
        return f"{said}: rank {outage.rank} ({host}): {outage.reason}"
    why = outage.reason.removeprefix(f"{host}: ")
    return (
        f"{said}: {host} was not resolved ({why}); ranks have names of the cluster's own DNS: run "
        "it there, as the pod in docs/loadtest.md"
    )


def table(report: Document) -> str:
    """The document for people; the timeline is left to the JSON."""
    return "".join(f"{line}\n" for line in _lines(report))


def timestamp(moment: float) -> str:
    """RFC 3339 in UTC with milliseconds."""
    text = datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def _lines(report: Document) -> Iterator[str]:
    ttft, wrong, moved = report["ttftSeconds"], report["wrong"], report["bytes"]
    fetch, recompute = report["fetchSeconds"]["p50"], report["recomputeSeconds"]["p50"]
    rate = "-" if report["hitRate"] is None else f"{report['hitRate']:.1%}"
    yield (
        f"Tier {report['tier']}, generation {report['generation']}, striping {report['striping']}"
    )
    yield ""
    yield f"  engines    {report['engines']}, {report['seconds']:.1f} s ({report['endedBy']})"
    yield f"  requests   {report['requests']:,} came, {report['completed']:,} completed"
    if report["storesDropped"]:
        dropped = report["storesDropped"]
        yield f"  not stored what {dropped:,} of them lacked: stores were too far behind"
    if ttft["max"] is not None:
        yield "  TTFT       " + ", ".join(f"{name} {seconds(ttft[name])}" for name in ttft)
    yield f"  hit rate   {rate} of {report['tokens']['requested']:,} tokens"
    if fetch is not None:
        yield f"  a hit      p50 {seconds(fetch)}, to recompute it p50 {seconds(recompute)}"
    yield f"  moved      {size(moved['read'])} read, {size(moved['written'])} written"
    yield "  wrong      " + (
        ", ".join(f"{count} {name}" for name, count in wrong.items() if count) or "nothing"
    )
    yield ""
    yield "  RANK        READ     WRITTEN   BANDWIDTH  ERRORS  STALLS  LONGEST"
    for rank in report["ranks"]:
        speed = rank["bytesPerSecond"]
        bandwidth = "-" if speed is None else f"{speed / 1e9:.2f} GB/s"
        yield (
            f"  {rank['rank']:>4} {size(rank['bytesRead']):>11} {size(rank['bytesWritten']):>11} "
            f"{bandwidth:>11} {rank['errors']:>7} {rank['stalls']:>7} "
            f"{seconds(rank['longestStallSeconds']):>8}"
        )
    yield from _outage_lines(report["outages"])


def _outage_lines(outages: Sequence[Document]) -> Iterator[str]:
    """One line for all outages of a rank and kind: when the first began and the last ended, and
    the longest that ended."""
    groups: dict[tuple[int, str], list[Document]] = {}
    for outage in outages:
        groups.setdefault((outage["rank"], outage["kind"]), []).append(outage)
    for (rank, kind), group in sorted(groups.items()):
        first, last = group[0], group[-1]
        until = last["to"] or "the end"
        lengths = [_length(each) for each in group if each["to"] is not None]
        count = f" {len(group)} times" if len(group) > 1 else ""
        longest = f", {seconds(max(lengths))} at most" if len(group) > 1 and lengths else ""
        yield (
            f"  rank {rank} {kind}{count} from {first['from']} to {until}{longest}: "
            + first["reason"]
        )


def _length(outage: Document) -> float:
    begin, end = (datetime.fromisoformat(outage[name]) for name in ("from", "to"))
    return (end - begin).total_seconds()


def _spread(values: list[float]) -> Document:
    return {
        "p50": _rounded(percentile(values, 0.5)),
        "p90": _rounded(percentile(values, 0.9)),
        "p99": _rounded(percentile(values, 0.99)),
        "max": _rounded(max(values, default=None)),
        "mean": _rounded(sum(values) / len(values) if values else None),
    }


def _rank(rank: RankMeasures, reading: float) -> Document:
    return {
        "rank": rank.rank,
        "bytesRead": rank.bytes_read,
        "bytesWritten": rank.bytes_written,
        "bytesPerSecond": round(rank.bytes_read / reading) if reading > 0 else None,
        "errors": rank.errors,
        "stalls": rank.stalls,
        "stallSeconds": _rounded(rank.stall_seconds),
        "longestStallSeconds": _rounded(rank.longest_stall),
    }


def _outage(outage: Outage) -> Document:
    return {
        "rank": outage.rank,
        "kind": outage.kind.value,
        "reason": outage.reason,
        "from": timestamp(outage.begin),
        "to": None if outage.end is None else timestamp(outage.end),
    }


def _ratio(part: int, whole: int) -> float | None:
    return round(part / whole, 6) if whole else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
