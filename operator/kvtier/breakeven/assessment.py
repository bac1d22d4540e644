"""What break-even says about one tier: plain data, and how the tier's status shows it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kvtier.breakeven.load import Load
from kvtier.breakeven.search import Wins


class Verdict(StrEnum):
    """Does the tier pay?"""

    UNKNOWN = "Unknown"
    PAYS = "Pays"
    PAYS_WHEN_LONG = "PaysWhenLong"
    PAYS_UNDER_LOAD = "PaysUnderLoad"
    NEVER_PAYS = "NeverPays"


class Evidence(StrEnum):
    """Where a figure came from: the spec, a probe, or the engines' own metrics."""

    DECLARED = "Declared"
    PROBED = "Probed"
    OBSERVED = "Observed"


@dataclass(frozen=True, slots=True)
class LinkFigures:
    """A link and where its figures came from.

    ``bytes_per_second`` is B, the whole path into one engine's node, all ranks read at once. Of a
    measured link ``at`` says when (RFC 3339), ``node`` from which node, and
    ``slowest_rank_bytes_per_second`` the rate of the rank that a prompt waits for. ``lower_bound``:
    whoever measured was itself the limit, so the link gives at least this.
    """

    domain: str
    bytes_per_second: float
    round_trip_seconds: float
    evidence: Evidence = Evidence.DECLARED
    at: str | None = None
    node: str | None = None
    slowest_rank_bytes_per_second: float | None = None
    lower_bound: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One hit length: seconds each way, and the bandwidth above which the fetch wins.

    ``fetch_seconds`` and ``wins`` are None without a link or T0, ``bytes_per_second`` (B*(n),
    infinite when no bandwidth is enough) without a round trip or T0.
    """

    tokens: int
    recompute_seconds: float
    fetch_seconds: float | None
    wins: bool | None
    bytes_per_second: float | None


@dataclass(frozen=True, slots=True)
class Lengths:
    """The hit lengths that the verdict is about, and the field they came from.

    ``weighted`` says that every length stands for an equal share of hits.
    """

    source: str
    tokens: tuple[int, ...]
    weighted: bool


@dataclass(frozen=True, slots=True)
class Assessment:
    """Figures and verdict of one tier. Bytes, seconds, tokens, bytes/s.

    A hit on n tokens moves ``bytes_per_token`` x n and, beyond the longest sliding window,
    ``constant_bytes``: windows and the states of linear attention, zero without them.
    ``wins`` are the lengths for which a fetch beats the prefill, None when link or T0 is not known.
    ``gain_seconds`` (per
    hit) and ``share_won`` are None unless the lengths of hits are declared. ``floor_hit`` is the
    minimum hit on a link without limits: what T0 alone asks for. ``also`` are the verdicts that
    hold beside ``verdict``. ``observed`` is R as engines show it [tokens/s], where it is not as
    declared. ``comparison`` is the sentence of link and break-even, empty without a
    link.
    """

    logical_bytes_per_token: int
    bytes_per_token: int
    constant_bytes: int
    chunk_bytes: int
    chunk_bytes_per_rank: int
    compression: float
    break_even: float
    link: LinkFigures | None
    t0_seconds: float | None
    wins: Wins | None
    rows: tuple[Row, ...]
    lengths: Lengths
    gain_seconds: float | None
    share_won: float | None
    floor_hit: float | None
    load: Load | None
    requests_per_second: float | None
    observed: float | None
    comparison: str
    verdict: Verdict
    also: tuple[Verdict, ...]
    reason: str
    message: str

    @property
    def minimum_hit(self) -> float | None:
        """The fewest tokens for which a fetch wins: a whole number, ``math.inf`` when no length is
        enough, None when link or T0 is not known."""
        return None if self.wins is None else self.wins.least

    @property
    def link_full(self) -> bool:
        """Whether the declared requests ask for more than the link carries."""
        load, rate = self.load, self.requests_per_second
        return load is not None and rate is not None and load.link.utilisation(rate) >= 1

    @property
    def loaded(self) -> bool:
        """Whether at the declared request rate hits are the faster way on average."""
        threshold = None if self.load is None else self.load.threshold
        if threshold is None or self.link_full:
            return False
        rate = self.requests_per_second
        return threshold == 0 or (rate is not None and rate >= threshold)

    @property
    def earns(self) -> bool | None:
        """Whether the tier makes requests faster as it is used; None where that is not known.

        ``PaysWhenLong`` tells nothing as long as nobody says how long hits are, ``PaysUnderLoad``
        as long as nobody says what the load is. On a link that is full no verdict helps.
        """
        if self.verdict is Verdict.UNKNOWN:
            return None
        if self.link_full:
            return None if self.link is not None and self.link.lower_bound else False
        if self.verdict is Verdict.PAYS or (self.loaded and self.also_under_load):
            return True
        if self.link is not None and self.link.lower_bound:
            return None
        if self.verdict is Verdict.PAYS_UNDER_LOAD and self.requests_per_second is None:
            return None
        if self.verdict is Verdict.PAYS_WHEN_LONG and not self.lengths.weighted:
            return None
        return False

    @property
    def also_under_load(self) -> bool:
        return Verdict.PAYS_UNDER_LOAD in (self.verdict, *self.also)

    @property
    def ratio(self) -> float | None:
        """B/B*: how far the link is above break-even."""
        return None if self.link is None else self.link.bytes_per_second / self.break_even

    def status(self, *, held: float = math.inf) -> dict[str, Any]:
        """``status.breakEven``: times to two digits, all else exact.

        ``held`` is how many tokens the store holds: of no longer hit a row says that it fits.

        B* too: whoever shows it rounds it, and what is rounded twice is two figures to people.
        """
        return self._break_even(two_digits, held=held)

    def figures(self, *, held: float = math.inf) -> dict[str, Any]:
        """The same fields unrounded."""
        return self._break_even(lambda figure: figure, held=held)

    def measured(self) -> dict[str, Any] | None:
        """The link under the field names of ``status.measured``, unrounded; None without one."""
        if self.link is None:
            return None
        document: dict[str, Any] = {
            "bytesPerSecond": _whole(self.link.bytes_per_second),
            "roundTripSeconds": self.link.round_trip_seconds,
            "evidence": self.link.evidence.value,
            "ratio": self.ratio,
        }
        if self.link.at is not None:
            document["at"] = self.link.at
        if self.link.node is not None:
            document["node"] = self.link.node
        if self.link.lower_bound:
            document["lowerBound"] = True
        return document

    def _break_even(self, rounded: Callable[[float], float], *, held: float) -> dict[str, Any]:
        document: dict[str, Any] = {
            "bytesPerToken": self.bytes_per_token,
            "logicalBytesPerToken": self.logical_bytes_per_token,
            **({"constantBytes": self.constant_bytes} if self.constant_bytes else {}),
            "chunkBytes": self.chunk_bytes,
            "bytesPerSecond": _whole(self.break_even),
        }
        if self.minimum_hit is not None and math.isfinite(self.minimum_hit):
            document["minimumHitTokens"] = int(self.minimum_hit)
        if self.observed is not None:
            document["observedTokensPerSecond"] = int(self.observed)
        document["perLength"] = [_row(row, rounded, fits=row.tokens <= held) for row in self.rows]
        return document


def _row(row: Row, rounded: Callable[[float], float], *, fits: bool) -> dict[str, Any]:
    document: dict[str, Any] = {
        "tokens": row.tokens,
        "recomputeSeconds": rounded(row.recompute_seconds),
    }
    if row.fetch_seconds is not None:
        document["fetchSeconds"] = rounded(row.fetch_seconds)
        document["wins"] = row.wins
    if not fits:
        document["fits"] = False
    return document


def two_digits(figure: float) -> float:
    """``figure`` as the status shows it."""
    return float(f"{figure:.2g}")


def _whole(bytes_per_second: float) -> int:
    return math.ceil(bytes_per_second)
