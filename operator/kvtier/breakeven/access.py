"""Access patterns other than one fetch per request, and what each token then costs.

A prefix fetched once per request is what the break-even model judges. Reading KV for every decoded
token is another matter: the history crosses the link, or the query does at every layer.
"""

from typing import Final

from kvtier.breakeven.checks import not_negative, positive

HBM_BYTES_PER_SECOND: Final = 3.35e12
"""Memory bandwidth of one H100 SXM: what a local read of the same bytes gets."""

FABRIC_ROUND_TRIP_SECONDS: Final = 0.36e-3
"""The longest query transfer at which Infinite-LLM's DistAttention still overlaps it (0.075 to
0.36 ms, arXiv 2401.02669). Above it every layer of every token waits."""


def stream_seconds_per_token(
    *, tokens: float, bytes_per_token: float, bandwidth: float, round_trip: float
) -> float:
    """Seconds per decoded token when the whole history of ``tokens`` is read over the link.

    n s / B + rtt. Raises ValueError for figures that are not finite or out of range.
    """
    not_negative(tokens=tokens, round_trip=round_trip)
    positive(bytes_per_token=bytes_per_token, bandwidth=bandwidth)
    return tokens * bytes_per_token / bandwidth + round_trip


def offload_seconds_per_token(*, layers: int, round_trip: float) -> float:
    """Least seconds per decoded token when each layer's query is sent to where the KV is.

    layers x rtt, one after the other; no bandwidth helps. Raises ValueError for figures that are
    not finite or out of range.
    """
    positive(layers=layers)
    not_negative(round_trip=round_trip)
    return layers * round_trip


def local_read_seconds(
    *, tokens: float, bytes_per_token: float, memory_bandwidth: float = HBM_BYTES_PER_SECOND
) -> float:
    """Seconds to read the same history from one GPU's own memory.

    Raises ValueError for figures that are not finite or out of range.
    """
    not_negative(tokens=tokens)
    positive(bytes_per_token=bytes_per_token, memory_bandwidth=memory_bandwidth)
    return tokens * bytes_per_token / memory_bandwidth


def local_decode_seconds_per_token(
    *, read_seconds: float, round_trips: float, round_trip: float
) -> float:
    """Seconds per decoded token of a local or pipelined decode.

    ``read_seconds`` is the work of the step, ``round_trips`` how many it waits for one after the
    other (one per pipeline stage). Raises ValueError for figures that are not finite or out of
    range.
    """
    not_negative(read_seconds=read_seconds, round_trips=round_trips, round_trip=round_trip)
    return read_seconds + round_trips * round_trip
