"""Break-even of a ``KVCacheTier``: from its spec to figures and a verdict.

B is the measured link, else the declared one, divided for ``Hash`` by the imbalance of the hit's
chunks over the ranks: a prompt waits for the fullest one. R is linear between the declared prompt
lengths and that of the nearest outside them. B* takes the smallest declared R: below that bandwidth
no length can win.
"""

import math
from collections.abc import Iterable
from typing import Final

from kvtier.api.scalars import parse_duration
from kvtier.api.types import KVCacheTierSpec, Link, Striping
from kvtier.breakeven import footprint, model, rates
from kvtier.breakeven.assessment import Assessment, Lengths, LinkFigures, Row, Verdict
from kvtier.breakeven.checks import not_negative, positive
from kvtier.breakeven.footprint import (
    chunk_bytes,
    chunk_bytes_per_rank,
    logical_bytes_per_token,
    wire_bytes_per_token,
)
from kvtier.breakeven.imbalance import expected_imbalance
from kvtier.breakeven.load import Load, prefill_points, requests_per_second, under_load
from kvtier.breakeven.load import lengths as sampled
from kvtier.breakeven.observed import RateOff, as_seen, counted
from kvtier.breakeven.search import Wins, first_win, winning
from kvtier.breakeven.verdict import compared, judge

__all__ = [
    "STANDARD_LENGTHS",
    "Assessment",
    "Verdict",
    "assess",
    "chunk_bytes_per_rank",
    "curve",
    "declared_link",
    "farthest_link",
    "logical_bytes_per_token",
    "minimum_hit",
    "wire_bytes_per_token",
]

STANDARD_LENGTHS: Final = tuple(1024 * 2**power for power in range(8))
"""1k to 128k tokens: what a tier without declared hit or prompt lengths is judged over."""


def t0_seconds(spec: KVCacheTierSpec) -> float | None:
    """T0: waiting plus GPU-held time of a hit. None unless both are declared: neither is zero."""
    pool = spec.pool
    if pool.hit_latency is None or pool.hit_engine_time is None:
        return None
    return parse_duration(pool.hit_latency) + parse_duration(pool.hit_engine_time)


def declared_link(spec: KVCacheTierSpec, *, reach: str | None = None) -> LinkFigures | None:
    """The declared link that hits cross; None if none is declared.

    ``reach`` names the farthest level between an engine and a rank, where they run already: then it
    is the link of that level, or else of the next farther one that has any: no nearer one, which no
    hit crosses. Without it, the level is ``placement.within``, and without that it is the farthest
    link that is declared.
    """
    order = [domain.name for domain in spec.placement.domains]
    level = crossed_level(spec, reach=reach)
    if level is None:
        return farthest_link(spec)
    beyond = order[order.index(level) :]
    known = [link for link in spec.placement.links if link.domain in beyond]
    return _figures(min(known, key=lambda link: order.index(link.domain), default=None))


def farthest_link(spec: KVCacheTierSpec) -> LinkFigures | None:
    """The declared link of the farthest level that has one; None if none is declared."""
    order = [domain.name for domain in spec.placement.domains]
    known = [link for link in spec.placement.links if link.domain in order]
    return _figures(max(known, key=lambda link: order.index(link.domain), default=None))


def crossed_level(spec: KVCacheTierSpec, *, reach: str | None) -> str | None:
    """The level that hits cross, None where that is not known."""
    order = [domain.name for domain in spec.placement.domains]
    return next((level for level in (reach, spec.placement.within) if level in order), None)


def _figures(link: Link | None) -> LinkFigures | None:
    if link is None:
        return None
    return LinkFigures(
        domain=link.domain,
        bytes_per_second=link.bytes_per_second,
        round_trip_seconds=link.round_trip_seconds,
    )


def assess(
    spec: KVCacheTierSpec,
    *,
    link: LinkFigures | None = None,
    reach: str | None = None,
    link_age: float | None = None,
    compression: float = 1.0,
    off: RateOff | None = None,
) -> Assessment:
    """Judge a tier by what it declares, or by a link that was measured.

    ``link`` takes the place of the declared one, for which ``reach`` says where engines and ranks
    are (``declared_link``); ``link_age`` is how many seconds ago it was
    measured, for the message (without it the message has the time, and so stays the same).
    ``compression`` is 1 for every connector of today: they move raw bytes. ``off`` is the prefill
    rate that engines show, where it is not as declared. Raises ValueError when a figure is not
    positive; a spec that ``parse_tier`` returned never makes it raise.
    """
    spec = as_seen(spec, off)
    positive(compression=compression)
    if link is not None:
        positive(bytes_per_second=link.bytes_per_second)
        not_negative(round_trip_seconds=link.round_trip_seconds)
    wire = footprint.wire(spec)
    link = link or declared_link(spec, reach=reach)
    tier = _Tier(spec, link=link, wire=wire, compression=compression)
    break_even = model.break_even_bandwidth(
        bytes_per_token=float(wire.slope),
        rate=min(rate for _, rate in tier.rates),
        compression=compression,
    )
    lengths = judged_lengths(spec)
    shown = shown_lengths(spec)
    wins = tier.wins([*shown, *lengths.tokens])
    by_length = {tokens: tier.gain(tokens) for tokens in set(lengths.tokens)}
    gains = [by_length[tokens] for tokens in lengths.tokens]
    known = [gain for gain in gains if gain is not None]
    averaged = lengths.weighted and bool(known)
    gain = sum(known) / len(known) if averaged else None
    won = sum(gain > 0 for gain in known) / len(known) if known else None
    load = tier.load(spec)
    floor_hit = tier.floor_hit([*shown, *lengths.tokens])
    comparison = ""
    if tier.link is not None:
        comparison = compared(
            tier.link,
            break_even=break_even,
            ranks=spec.pool.ranks,
            age_seconds=link_age,
            observed=counted(off),
        )
    verdict = judge(
        break_even=break_even,
        link=tier.link,
        missing=crossed_level(spec, reach=reach),
        comparison=comparison,
        t0_seconds=tier.t0,
        wins=wins,
        lengths=lengths,
        gain_seconds=gain,
        share_won=won,
        hopeless=floor_hit is not None and math.isinf(floor_hit),
        load=load,
        requests_per_second=requests_per_second(spec),
    )
    return Assessment(
        logical_bytes_per_token=logical_bytes_per_token(spec),
        bytes_per_token=wire_bytes_per_token(spec),
        constant_bytes=wire.constant,
        chunk_bytes=chunk_bytes(spec),
        chunk_bytes_per_rank=chunk_bytes_per_rank(spec),
        compression=compression,
        break_even=break_even,
        link=tier.link,
        t0_seconds=tier.t0,
        wins=wins,
        rows=tuple(tier.row(tokens) for tokens in shown),
        lengths=lengths,
        gain_seconds=gain,
        share_won=won if averaged else None,
        floor_hit=floor_hit,
        load=load,
        requests_per_second=requests_per_second(spec),
        observed=None if off is None else off.seen,
        comparison=comparison,
        verdict=verdict.verdict,
        also=verdict.also,
        reason=verdict.reason,
        message=verdict.message,
    )


def curve(
    spec: KVCacheTierSpec,
    lengths: Iterable[int],
    *,
    link: LinkFigures | None = None,
    compression: float = 1.0,
) -> tuple[Row, ...]:
    """The rows of any ``lengths`` (tokens, from 1 on), by the same figures as ``assess``."""
    wire = footprint.wire(spec)
    tier = _Tier(spec, link=link or declared_link(spec), wire=wire, compression=compression)
    return tuple(tier.row(tokens) for tokens in lengths)


def minimum_hit(spec: KVCacheTierSpec) -> float | None:
    """The fewest tokens for which a fetch is faster, by what is declared: that of ``assess``."""
    wire = footprint.wire(spec)
    tier = _Tier(spec, link=declared_link(spec), wire=wire, compression=1.0)
    wins = tier.wins([*shown_lengths(spec), *judged_lengths(spec).tokens])
    return None if wins is None else wins.least


def judged_lengths(spec: KVCacheTierSpec) -> Lengths:
    """The lengths that a verdict is about: of hits, else of prompts, else the standard ones."""
    if spec.workload.hit_tokens:
        tokens = tuple(sampled(spec.workload.hit_tokens))
        return Lengths(source="workload.hitTokens", tokens=tokens, weighted=True)
    if spec.workload.prompt_tokens:
        lengths = {quantile.tokens for quantile in spec.workload.prompt_tokens}
        return Lengths(
            source="workload.promptTokens", tokens=tuple(sorted(lengths)), weighted=False
        )
    return Lengths(
        source="the standard set (1k to 128k tokens)", tokens=STANDARD_LENGTHS, weighted=False
    )


def shown_lengths(spec: KVCacheTierSpec) -> list[int]:
    """The lengths that get a row: of prefill rates, of the workload, and the standard ones."""
    lengths = {point.tokens for point in spec.pool.prefill_rate if point.tokens}
    lengths.update(quantile.tokens for quantile in spec.workload.hit_tokens)
    lengths.update(quantile.tokens for quantile in spec.workload.prompt_tokens)
    return sorted(lengths.union(STANDARD_LENGTHS))


class _Tier:
    """The spec's figures as plain numbers, and the model applied to them at one length."""

    def __init__(
        self,
        spec: KVCacheTierSpec,
        *,
        link: LinkFigures | None,
        wire: footprint.Footprint,
        compression: float,
    ) -> None:
        self.link = link
        self.t0 = t0_seconds(spec)
        self.rates = prefill_points(spec)
        self._wire = wire
        self._compression = compression
        self._chunk_tokens = spec.pool.chunk_tokens
        self._hashed_ranks = spec.pool.ranks if spec.pool.striping is Striping.HASH else 1

    def row(self, tokens: int) -> Row:
        recompute = self.recompute(tokens)
        fetch = self.fetch(tokens)
        needed = None
        if self.link is not None and self.t0 is not None:
            needed = self.imbalance(tokens) * model.break_even_bandwidth_at(
                tokens=tokens,
                bytes_per_token=self._wire.of(tokens) / tokens,
                rate=rates.prefill_rate(self.rates, tokens),
                round_trip=self.link.round_trip_seconds,
                fixed=self.t0,
                compression=self._compression,
            )
        return Row(
            tokens=tokens,
            recompute_seconds=recompute,
            fetch_seconds=fetch,
            wins=None if fetch is None else fetch < recompute,
            bytes_per_second=needed,
        )

    def recompute(self, tokens: int) -> float:
        return model.recompute_seconds(tokens, rates.prefill_rate(self.rates, tokens))

    def fetch(self, tokens: int) -> float | None:
        if self.link is None or self.t0 is None:
            return None
        return self.t0 + self.link.round_trip_seconds + self.transfer(tokens, self.link)

    def transfer(self, tokens: int, link: LinkFigures) -> float:
        """Seconds for which a hit needs the link."""
        return model.fetch_seconds(
            tokens=tokens,
            bytes_per_token=self._wire.of(tokens) / tokens,
            bandwidth=link.bytes_per_second / self.imbalance(tokens),
            compression=self._compression,
        )

    def load(self, spec: KVCacheTierSpec) -> Load | None:
        link = self.link
        if link is None:
            return None
        return under_load(
            spec,
            recompute=self.recompute,
            transfer=lambda tokens: self.transfer(tokens, link),
            carry=lambda size: size / (link.bytes_per_second * self._compression),
            round_trip=link.round_trip_seconds,
        )

    def floor_hit(self, lengths: list[int]) -> float | None:
        """The minimum hit on a link without limits."""
        t0 = self.t0
        if t0 is None:
            return None
        return first_win(
            lambda tokens: self.recompute(tokens) > t0, points=self.rates, lengths=lengths
        )

    def imbalance(self, tokens: int) -> float:
        return expected_imbalance(math.ceil(tokens / self._chunk_tokens), self._hashed_ranks)

    def gain(self, tokens: int) -> float | None:
        fetch = self.fetch(tokens)
        return None if fetch is None else self.recompute(tokens) - fetch

    def wins(self, lengths: list[int]) -> Wins | None:
        if self.link is None or self.t0 is None:
            return None
        return winning(
            lambda tokens: (self.gain(tokens) or 0) > 0, points=self.rates, lengths=lengths
        )
