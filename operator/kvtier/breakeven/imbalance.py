"""How unevenly hashing spreads the chunks of one prompt over the ranks.

A prompt waits for the rank that holds most of its chunks, so its bandwidth is that of an even
spread divided by max/mean.
"""

import math
from functools import lru_cache

from kvtier.breakeven.checks import positive

_EXACT_CHUNKS = 16
_LARGEST_CHUNKS = 4096
_SPREAD = 7.0  # standard deviations beyond which a Poisson count is not looked for
_NEGLIGIBLE = 1e-7


@lru_cache(maxsize=4096)
def expected_imbalance(chunks: int, ranks: int) -> float:
    """Expected max/mean of the number of chunks per rank: 1 is even, ``ranks`` the worst.

    n independent, uniform chunks are a multinomial count. E[max] sums P(max > k) over k, where
    P(max <= k) is exact for few chunks (the recurrence of ``_exact``), else Levin's representation
    by truncated Poisson counts with an Edgeworth expansion (B. Levin, "A representation for
    multinomial cumulative distribution functions", Annals of Statistics 9(5), 1981), which is
    within 0.2 %; beyond 4,096 chunks the excess over 1 falls as the root of their number.
    Raises ValueError for counts that are not positive.
    """
    positive(chunks=chunks, ranks=ranks)
    if ranks == 1:
        return 1.0
    if chunks > _LARGEST_CHUNKS:
        excess = expected_imbalance(_LARGEST_CHUNKS, ranks) - 1
        return 1 + excess * math.sqrt(_LARGEST_CHUNKS / chunks)
    expected_max = _exact(chunks, ranks) if chunks <= _EXACT_CHUNKS else _levin(chunks, ranks)
    return expected_max * ranks / chunks


def _exact(chunks: int, ranks: int) -> float:
    """E[max] by adding chunks one at a time.

    With n chunks on w ranks and none above k, the next one breaks the bound only on a rank that
    has exactly k: P_w(n+1) = P_w(n) - C(n,k) (1/w)^k (1-1/w)^(n-k) P_{w-1}(n-k).
    """
    expected = 0.0
    for bound in range(chunks):
        within = [1.0] + [0.0] * chunks  # P_0: no ranks hold no chunks
        for w in range(1, ranks + 1):
            row = [1.0]
            for n in range(chunks):
                full = 0.0
                if n >= bound:
                    full = math.comb(n, bound) * (1 / w) ** bound * (1 - 1 / w) ** (n - bound)
                    full *= within[n - bound]
                row.append(row[n] - full)
            within = row
        expected += 1 - within[chunks]
    return expected


def _levin(chunks: int, ranks: int) -> float:
    mean = chunks / ranks
    reach = _SPREAD * math.sqrt(mean) + _SPREAD
    even = math.ceil(mean)
    log_poisson_total = _log_poisson(chunks, chunks)
    expected = float(even)  # below the even share P(max > k) is 1
    bound = max(0, math.floor(mean - reach))
    weight = math.exp(_log_poisson(bound, mean))
    s0 = s1 = s2 = s3 = s4 = 0.0  # of (count - mean)^i over the Poisson counts up to the bound
    while True:
        deviation = bound - mean
        square = deviation * deviation * weight
        s0 += weight
        s1 += weight * deviation
        s2 += square
        s3 += square * deviation
        s4 += square * deviation * deviation
        if bound >= even:
            if bound * ranks == chunks:
                log_all = ranks * math.log(weight)
            else:
                moments = (s1 / s0, s2 / s0, s3 / s0, s4 / s0)
                log_all = ranks * math.log(s0) + _log_density(moments, ranks)
            above = 1 - min(1.0, math.exp(log_all - log_poisson_total))
            expected += above
            if above < _NEGLIGIBLE or bound > mean + 2 * reach:
                return expected
        bound += 1
        weight *= mean / bound


def _log_poisson(value: int, mean: float) -> float:
    return value * math.log(mean) - mean - math.lgamma(value + 1)


def _log_density(moments: tuple[float, float, float, float], ranks: int) -> float:
    """Log probability that ``ranks`` truncated counts add up to ``ranks`` times the mean.

    ``moments`` are a count's first four about that mean.
    """
    m1, m2, m3, m4 = moments
    variance = m2 - m1**2
    third = m3 - 3 * m1 * m2 + 2 * m1**3
    fourth = m4 - 4 * m1 * m3 + 6 * m1**2 * m2 - 3 * m1**4
    skew = third / variance**1.5 / math.sqrt(ranks)
    kurtosis = (fourth / variance**2 - 3) / ranks
    z = -ranks * m1 / math.sqrt(ranks * variance)
    edgeworth = (
        1
        + skew / 6 * (z**3 - 3 * z)
        + kurtosis / 24 * (z**4 - 6 * z**2 + 3)
        + skew**2 / 72 * (z**6 - 15 * z**4 + 45 * z**2 - 15)
    )
    # The expansion can turn negative where the density is negligible.
    return (
        -(z**2) / 2
        - math.log(2 * math.pi * ranks * variance) / 2
        + math.log(max(edgeworth, 1e-300))
    )
