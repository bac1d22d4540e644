"""What a tier of W ranks gives a fleet of engines, and what the fleet asks of it."""

from collections.abc import Sequence

from kvtier.breakeven.checks import positive, share


def aggregate_bandwidth(rank_bandwidths: Sequence[float]) -> float:
    """Bytes per second that a prompt striped evenly gets: W x the slowest rank's, it waits for it.

    Raises ValueError without ranks or for a bandwidth that is not positive.
    """
    positive(ranks=len(rank_bandwidths))
    for bandwidth in rank_bandwidths:
        positive(rank_bandwidth=bandwidth)
    return len(rank_bandwidths) * min(rank_bandwidths)


def demand(*, engines: int, requests_per_second: float, bytes_per_request: float) -> float:
    """Bytes per second that ``engines`` draw, each with ``requests_per_second`` full hits."""
    positive(
        engines=engines,
        requests_per_second=requests_per_second,
        bytes_per_request=bytes_per_request,
    )
    return engines * requests_per_second * bytes_per_request


def storm_factor(hit_rate: float) -> float:
    """1 / (1 - h): times the prefill work that a fleet gets when a tier with hit rate h goes cold.

    Raises ValueError unless 0 <= h < 1.
    """
    share(hit_rate=hit_rate)
    positive(miss_rate=1 - hit_rate)
    return 1 / (1 - hit_rate)


def availability(*, rank_availability: float, ranks: int) -> float:
    """p^W: one lost rank loses the tier, since every prompt has chunks or heads on each rank."""
    share(rank_availability=rank_availability)
    positive(ranks=ranks)
    return rank_availability**ranks
