"""What a probe found: figures, their JSON for a termination message, and what they say of a link.

``link`` is what plain sockets got, the floor; ``client`` what a client as engines have would get.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from kvtier.api.base import MAX_RANKS
from kvtier.breakeven.assessment import Evidence, LinkFigures
from kvtier.redact import redact

VERSION: Final = 1
MOST_BYTES: Final = 4096
"""What the kubelet takes of a termination message."""
MOST_TEXT: Final = 160
MOST_TROUBLES: Final = 4
CPU_BOUND: Final = 0.75
"""A reader that ran, or wanted to, for so much of the time may have been its own limit. (One that
shared a CPU with four others measured 0.85: a server does not send while it waits for its own.)"""
THROTTLED: Final = 0.05
"""So was a container that used up its CPU quota in so many of its periods."""
CLIENT_EFFICIENCY: Final = {False: 0.25, True: 0.6}
"""Bytes that LMCache's Valkey adapter with its eight workers loads with the CPU time in which the
probe reads one, without and with TLS (whose part both pay). Measured by LMCache's own bench,
docs/benchmarks.md. It is of CPU time, not of the network: where the network is the limit, both get
all of it (docs/verdict.md)."""
MOST_FIGURE: Final = 1e15
_AT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


@dataclass(frozen=True, slots=True)
class RankMeasure:
    """One rank, read while all others were. Bytes, seconds, bytes/s.

    ``round_trip`` is the median of PINGs before that, ``round_trip_p99`` their 99th percentile.
    ``bytes_timed`` and ``cpu_seconds`` are those of the timed reading; ``busy`` is the share of its
    time in which the reader ran or waited for a CPU.
    """

    rank: int
    bytes_per_second: float
    round_trip: float
    round_trip_p99: float
    bytes_timed: int
    cpu_seconds: float
    busy: float

    def client_limit(self, *, tls: bool) -> float:
        """Bytes/s that a client with one CPU could read from this rank if nothing else were the
        limit."""
        if self.cpu_seconds <= 0:
            return math.inf
        return CLIENT_EFFICIENCY[tls] * self.bytes_timed / self.cpu_seconds


@dataclass(frozen=True, slots=True)
class RankTrouble:
    """Why these ranks have no figure, in one line."""

    ranks: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """A whole probe.

    ``at`` is RFC 3339 in UTC. ``seconds`` is the time that the rates are of, ``throttled`` the
    share of the container's CPU periods in which its quota was used up, ``bytes_moved`` what
    crossed the network in values, both ways. With any trouble there are no ranks: a prompt needs
    all of them, so that figures of some say nothing. ``tls`` is whether they were read over TLS.
    """

    at: str
    node: str
    seconds: float
    throttled: float
    bytes_moved: int
    ranks: tuple[RankMeasure, ...]
    troubles: tuple[RankTrouble, ...] = ()
    tls: bool = False

    @property
    def slowest(self) -> RankMeasure | None:
        return min(self.ranks, key=lambda each: each.bytes_per_second, default=None)

    @property
    def link(self) -> float | None:
        """W x the slowest rank: a prompt waits for it. None without figures."""
        found = self.slowest
        return None if found is None else len(self.ranks) * found.bytes_per_second

    @property
    def client(self) -> float | None:
        """The same through a client such as engines have, None without figures."""
        rates = [min(e.bytes_per_second, e.client_limit(tls=self.tls)) for e in self.ranks]
        return len(rates) * min(rates) if rates else None

    @property
    def round_trip(self) -> float | None:
        """That of the farthest rank."""
        return max((each.round_trip for each in self.ranks), default=None)

    @property
    def lower_bound(self) -> bool:
        """Whether the probe's own CPU was the limit, so that the link may be faster than this.

        Of the slowest ranks: that a fast one was read with all of a CPU takes nothing from them.
        """
        found = self.slowest
        if found is None:
            return False
        slow = [e for e in self.ranks if e.bytes_per_second <= 1.1 * found.bytes_per_second]
        return self.throttled >= THROTTLED or any(each.busy >= CPU_BOUND for each in slow)


def figures(result: ProbeResult, *, domain: str) -> LinkFigures | None:
    """The link that a verdict judges, None where the probe has no figures."""
    client, round_trip = result.client, result.round_trip
    if not client or round_trip is None:
        return None
    return LinkFigures(
        domain=domain,
        bytes_per_second=client,
        round_trip_seconds=round_trip,
        evidence=Evidence.PROBED,
        at=result.at,
        node=result.node or None,
        slowest_rank_bytes_per_second=client / len(result.ranks),
        lower_bound=result.lower_bound,
    )


def troubles(by_rank: Mapping[int, str]) -> tuple[RankTrouble, ...]:
    """Each trouble once, with the ranks that have it; of many kinds only the first few."""
    gathered: dict[str, list[int]] = {}
    for rank, text in sorted(by_rank.items()):
        line = _plain(redact(" ".join(text.split())))[:MOST_TEXT]
        gathered.setdefault(line, []).append(rank)
    found = [RankTrouble(tuple(ranks), text) for text, ranks in gathered.items()]
    rest = [rank for each in found[MOST_TROUBLES - 1 :] for rank in each.ranks]
    if len(found) <= MOST_TROUBLES:
        return tuple(found)
    return (*found[: MOST_TROUBLES - 1], RankTrouble(tuple(sorted(rest)), "other troubles"))


def _plain(text: str) -> str:
    """Printable ASCII only, so that JSON makes it hardly longer."""
    return "".join(char if " " <= char <= "~" else "?" for char in text)


_COLUMNS: Final = (
    "rank",
    "kilobytesPerSecond",
    "roundTripMicroseconds",
    "roundTripP99Microseconds",
    "kilobytesTimed",
    "cpuMilliseconds",
    "busyPercent",
)


def to_json(result: ProbeResult) -> str:
    """At most MOST_BYTES of ASCII, whatever the result.

    ``link``, ``client`` and ``lowerBound`` are for people: a reader computes them again.
    """
    rows: list[tuple[int, ...]] = [
        (
            each.rank,
            round(each.bytes_per_second / 1e3),
            round(each.round_trip * 1e6),
            round(each.round_trip_p99 * 1e6),
            round(each.bytes_timed / 1e3),
            round(each.cpu_seconds * 1e3),
            round(each.busy * 100),
        )
        for each in result.ranks
    ]
    document: dict[str, Any] = {
        "version": VERSION,
        "at": result.at,
        "node": result.node,
        "seconds": round(result.seconds, 4),
        "throttledPercent": round(100 * result.throttled),
        "bytesMoved": result.bytes_moved,
        "tls": result.tls,
        "link": None if result.link is None else round(result.link),
        "client": None if result.client is None else round(result.client),
        "lowerBound": result.lower_bound,
        "ranks": {
            name: [row[place] for row in rows] for place, name in enumerate(_COLUMNS) if rows
        },
        "troubles": [{"ranks": list(each.ranks), "text": each.text} for each in result.troubles],
    }
    return json.dumps(document, separators=(",", ":"))


def parse(text: str | None) -> "ProbeResult | str":
    """The result in a termination message, or one line that says why there is none.

    Never raises, whatever the text: it comes from a container.
    """
    if not text:
        return "the probe left no result"
    if len(text) > MOST_BYTES:
        return f"the probe's result is longer than {MOST_BYTES} bytes"
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return f"the probe's result is no JSON: {_shown(text)}"
    try:
        version = found["version"]
        if version != VERSION:
            return f"the probe's result has version {_shown(version)}; this release reads {VERSION}"
        return _result(found)
    except KeyError as error:
        return f"the probe's result has no {_shown(error)}"
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        return f"the probe's result is not usable: {_shown(error)}"


def _result(found: Mapping[str, Any]) -> ProbeResult:
    at = found["at"]
    if not isinstance(at, str) or _AT.fullmatch(at, 0) is None or not at.isascii():
        raise ValueError(f"at is {at!r}")
    datetime.fromisoformat(at)
    columns = found["ranks"]
    ranks: tuple[RankMeasure, ...] = ()
    if columns:
        lists = [columns[name] for name in _COLUMNS]
        if not all(isinstance(each, list) for each in lists):
            raise ValueError("ranks is no table")
        if len({len(each) for each in lists}) != 1 or not 1 <= len(lists[0]) <= MAX_RANKS:
            raise ValueError("the columns of ranks do not fit together")
        ranks = tuple(_measure(row) for row in zip(*lists, strict=True))
        if len({each.rank for each in ranks}) != len(ranks):
            raise ValueError("two ranks have one number")
    told = tuple(
        RankTrouble(
            ranks=tuple(_whole(rank, most=MAX_RANKS - 1) for rank in each["ranks"]),
            text=_line(each["text"]),
        )
        for each in found["troubles"]
    )
    if bool(ranks) == bool(told):
        raise ValueError("it must have either ranks or troubles")
    return ProbeResult(
        at=at,
        node=_line(found["node"]),
        seconds=_number(found["seconds"]),
        throttled=_number(found["throttledPercent"]) / 100,
        bytes_moved=_whole(found["bytesMoved"]),
        ranks=ranks,
        troubles=told,
        tls=_flag(found["tls"]),
    )


def _measure(row: Sequence[Any]) -> RankMeasure:
    rank, rate, round_trip, p99, timed, cpu, busy = row
    return RankMeasure(
        rank=_whole(rank, most=MAX_RANKS - 1),
        bytes_per_second=1e3 * _number(rate),
        round_trip=_number(round_trip) / 1e6,
        round_trip_p99=_number(p99) / 1e6,
        bytes_timed=1000 * _whole(timed),
        cpu_seconds=_number(cpu) / 1e3,
        busy=min(1.0, _number(busy) / 100),
    )


def _number(value: object) -> float:
    """Not negative, not absurd, and no other type."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    if not 0 <= value <= MOST_FIGURE:
        raise ValueError(f"{value!r} is out of range")
    return float(value)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is neither true nor false")
    return value


def _whole(value: object, *, most: int = int(MOST_FIGURE)) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError(f"{value!r} is no whole number up to {most}")
    return value


def _line(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return redact(" ".join(value.split()))[:253]


def _shown(value: object) -> str:
    text = " ".join(str(value).split())
    return redact(text if len(text) <= 80 else f"{text[:79]}…")
