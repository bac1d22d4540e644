"""The access patterns that kvtier refuses, with the figures that say why."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kvtier.api import reasons
from kvtier.api.types import KVCacheTierSpec
from kvtier.breakeven import access, footprint
from kvtier.breakeven.assessment import LinkFigures, Verdict
from kvtier.breakeven.checks import positive
from kvtier.breakeven.tier import declared_link, shown_lengths
from kvtier.breakeven.words import seconds


class Access(StrEnum):
    """How often a request reads KV over the link."""

    ONCE_PER_REQUEST = "OncePerRequest"
    PER_TOKEN_STREAM = "PerTokenStream"
    PER_TOKEN_ATTENTION = "PerTokenAttention"


@dataclass(frozen=True, slots=True)
class TokenCost:
    """Seconds per decoded token after a history of ``tokens``.

    ``remote_seconds`` is None when link or layers are not known; ``local_seconds`` reads the same
    bytes from one GPU's memory.
    """

    tokens: int
    remote_seconds: float | None
    local_seconds: float


@dataclass(frozen=True, slots=True)
class AccessAssessment:
    """Verdict and figures of one per-token access pattern."""

    access: Access
    verdict: Verdict
    reason: str
    message: str
    rows: tuple[TokenCost, ...]

    def figures(self) -> dict[str, Any]:
        """As plain data, unrounded; what is not known is absent."""
        rows: list[Mapping[str, Any]] = []
        for row in self.rows:
            remote = {} if row.remote_seconds is None else {"secondsPerToken": row.remote_seconds}
            rows.append({"tokens": row.tokens, **remote, "localSecondsPerToken": row.local_seconds})
        return {"pattern": self.access.value, "perLength": rows}


def assess_access(
    spec: KVCacheTierSpec,
    pattern: Access,
    *,
    link: LinkFigures | None = None,
    reach: str | None = None,
    compression: float = 1.0,
) -> AccessAssessment:
    """Judge reading KV at every decoded token, by ``link``, or else the declared one.

    ``reach`` is that of ``declared_link``.

    ``compression`` is of what crosses the link; a GPU's own memory holds raw KV.

    Streaming the history never pays. Sending the query to the KV could on a fabric quick enough to
    hide every layer's round trip, in an engine that does so: no Valkey computes attention. Raises
    ValueError for ``OncePerRequest``: that is ``tier.assess``, and for a compression that is not
    positive.
    """
    positive(compression=compression)
    link = link or declared_link(spec, reach=reach)
    if pattern is Access.PER_TOKEN_STREAM:
        return _stream(spec, link, compression=compression)
    if pattern is Access.PER_TOKEN_ATTENTION:
        return _attention(spec, link)
    raise ValueError(f"access {pattern} is judged by its break-even, not per token")


def _stream(
    spec: KVCacheTierSpec, link: LinkFigures | None, *, compression: float
) -> AccessAssessment:
    wire = footprint.wire(spec)
    rows = tuple(
        TokenCost(
            tokens=tokens,
            remote_seconds=None
            if link is None
            else access.stream_seconds_per_token(
                tokens=tokens,
                bytes_per_token=wire.of(tokens) / tokens / compression,
                bandwidth=link.bytes_per_second,
                round_trip=link.round_trip_seconds,
            ),
            local_seconds=access.local_read_seconds(
                tokens=tokens, bytes_per_token=wire.of(tokens) / tokens
            ),
        )
        for tokens in shown_lengths(spec)
    )
    return AccessAssessment(
        access=Access.PER_TOKEN_STREAM,
        verdict=Verdict.NEVER_PAYS,
        reason=reasons.BELOW_BREAK_EVEN,
        message=(
            "The whole history would cross the link for every decoded token; a GPU reads it from "
            f"its own memory instead{_example(rows)}. Fetch a prefix once per request."
        ),
        rows=rows,
    )


def _example(rows: tuple[TokenCost, ...]) -> str:
    longest = rows[-1]
    if longest.remote_seconds is None:
        return ""
    return (
        f" ({longest.tokens:,} tokens: {seconds(longest.remote_seconds)} a token over the link, "
        f"{seconds(longest.local_seconds)} locally)"
    )


def _attention(spec: KVCacheTierSpec, link: LinkFigures | None) -> AccessAssessment:
    layers = footprint.attention_layers(spec.model.layout)
    bound = None
    if link is not None and layers is not None:
        bound = access.offload_seconds_per_token(layers=layers, round_trip=link.round_trip_seconds)
    wire = footprint.wire(spec)
    verdict, reason, message = _attention_verdict(link, bound)
    return AccessAssessment(
        access=Access.PER_TOKEN_ATTENTION,
        verdict=verdict,
        reason=reason,
        message=message,
        rows=tuple(
            TokenCost(
                tokens=tokens,
                remote_seconds=bound,
                local_seconds=access.local_read_seconds(
                    tokens=tokens, bytes_per_token=wire.of(tokens) / tokens
                ),
            )
            for tokens in shown_lengths(spec)
        ),
    )


def _attention_verdict(link: LinkFigures | None, bound: float | None) -> tuple[Verdict, str, str]:
    if link is None:
        return (
            Verdict.UNKNOWN,
            reasons.LINK_NOT_DECLARED,
            "Every layer of every token waits for a round trip, and none is known: declare a link "
            "in placement.links.",
        )
    waits = "" if bound is None else f" (at least {seconds(bound)} a token)"
    round_trip = f"{seconds(link.round_trip_seconds)} on the {link.domain} link"
    if link.round_trip_seconds > access.FABRIC_ROUND_TRIP_SECONDS:
        return (
            Verdict.NEVER_PAYS,
            reasons.BELOW_BREAK_EVEN,
            f"Every layer of every token waits for a round trip of {round_trip}{waits}, and no "
            "bandwidth shortens it. Fetch a prefix once per request.",
        )
    return (
        Verdict.UNKNOWN,
        reasons.NOT_MEASURED,
        f"A round trip of {round_trip}{waits} may be hidden by an engine that sends queries to "
        "where the KV is; a kvtier tier stores KV and computes no attention.",
    )
