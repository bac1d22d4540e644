"""The break-even model: when reading KV from a store beats computing it again.

Symbols, as in docs/break-even.md: n tokens of the hit, s wire bytes per token, R prefill rate of
one engine [tokens/s], B bandwidth that a hit gets [bytes/s], C compression ratio (1 is none), T0
fixed engine cost of a hit [s], rtt round trip [s].

    recompute(n) = n / R
    fetch(n)     = T0 + rtt + n s / (B C)

Every function raises ValueError naming the figure that is zero or negative where it may not be,
infinite, or not a number.
"""

import math

from kvtier.breakeven.checks import not_negative, positive, share


def recompute_seconds(tokens: float, rate: float) -> float:
    """Seconds that one engine needs to prefill ``tokens``."""
    not_negative(tokens=tokens)
    positive(rate=rate)
    return tokens / rate


def fetch_seconds(
    *,
    tokens: float,
    bytes_per_token: float,
    bandwidth: float,
    round_trip: float = 0.0,
    fixed: float = 0.0,
    compression: float = 1.0,
) -> float:
    """Seconds of a hit on ``tokens``; ``fixed`` is T0."""
    not_negative(tokens=tokens, round_trip=round_trip, fixed=fixed)
    positive(bytes_per_token=bytes_per_token, bandwidth=bandwidth, compression=compression)
    return fixed + round_trip + tokens * bytes_per_token / (bandwidth * compression)


def fetch_wins(
    *,
    tokens: float,
    bytes_per_token: float,
    rate: float,
    bandwidth: float,
    round_trip: float = 0.0,
    fixed: float = 0.0,
    compression: float = 1.0,
) -> bool:
    """Whether the fetch is the faster one; never for no tokens, nor for a tie."""
    fetch = fetch_seconds(
        tokens=tokens,
        bytes_per_token=bytes_per_token,
        bandwidth=bandwidth,
        round_trip=round_trip,
        fixed=fixed,
        compression=compression,
    )
    return fetch < recompute_seconds(tokens, rate)


def break_even_bandwidth(*, bytes_per_token: float, rate: float, compression: float = 1.0) -> float:
    """B* = s R / C [bytes/s]: at or below it no hit of any length can win."""
    positive(bytes_per_token=bytes_per_token, rate=rate, compression=compression)
    return bytes_per_token * rate / compression


def break_even_bandwidth_at(
    *,
    tokens: float,
    bytes_per_token: float,
    rate: float,
    round_trip: float = 0.0,
    fixed: float = 0.0,
    compression: float = 1.0,
) -> float:
    """B*(n) = n s / ((n/R - T0 - rtt) C) [bytes/s]: a hit on n tokens wins exactly above it.

    Infinite when the fixed costs alone take as long as the prefill. Falls towards B* as n grows.
    """
    not_negative(round_trip=round_trip, fixed=fixed)
    positive(bytes_per_token=bytes_per_token, compression=compression)
    left = recompute_seconds(tokens, rate) - fixed - round_trip
    return tokens * bytes_per_token / (left * compression) if left > 0 else math.inf


def minimum_hit_tokens(
    *,
    bytes_per_token: float,
    rate: float,
    bandwidth: float,
    round_trip: float = 0.0,
    fixed: float = 0.0,
    compression: float = 1.0,
) -> float:
    """(T0 + rtt) / (1/R - s/(B C)): the fetch of any longer hit wins; infinite at or below B*."""
    not_negative(round_trip=round_trip, fixed=fixed)
    positive(rate=rate, bandwidth=bandwidth)
    threshold = break_even_bandwidth(
        bytes_per_token=bytes_per_token, rate=rate, compression=compression
    )
    if bandwidth <= threshold:
        return math.inf
    # The same quotient, multiplied by R: near B* the difference of the two inverses cancels.
    return (fixed + round_trip) * rate * bandwidth / (bandwidth - threshold)


def expected_gain_seconds(*, hit_rate: float, recompute: float, fetch: float) -> float:
    """h x (recompute - fetch): what the tier saves per request; negative when hits are slower."""
    share(hit_rate=hit_rate)
    not_negative(recompute=recompute, fetch=fetch)
    return hit_rate * (recompute - fetch)
