"""Hashing n chunks over W ranks: exact enumeration, simulation, and what LMCache's hash showed."""

import random
from collections import Counter
from itertools import pairwise, product

import pytest

from kvtier.breakeven.imbalance import expected_imbalance

PUBLISHED = [(32, 1.76), (64, 1.54), (128, 1.37), (512, 1.18)]


def simulated(chunks: int, ranks: int, *, rounds: int) -> float:
    random_ = random.Random(20)
    total = sum(
        max(Counter(random_.choices(range(ranks), k=chunks)).values()) for _ in range(rounds)
    )
    return total / rounds * ranks / chunks


@pytest.mark.parametrize(("chunks", "measured"), PUBLISHED)
def test_eight_ranks_are_as_uneven_as_measured(chunks: int, measured: float) -> None:
    """lmcache 0.5.6, imbalance of hashing over 8 ranks."""
    assert expected_imbalance(chunks, 8) == pytest.approx(measured, abs=0.012)


@pytest.mark.parametrize(
    ("chunks", "ranks"), [(32, 8), (64, 8), (128, 8), (512, 8), (40, 3), (100, 64), (20, 2)]
)
def test_simulation_agrees(chunks: int, ranks: int) -> None:
    assert expected_imbalance(chunks, ranks) == pytest.approx(
        simulated(chunks, ranks, rounds=2000), rel=0.01
    )


@pytest.mark.parametrize(("chunks", "ranks"), [(1, 8), (2, 3), (5, 2), (6, 3), (4, 5), (7, 4)])
def test_few_chunks_are_exact(chunks: int, ranks: int) -> None:
    """Every way to place them is counted."""
    ways = [max(Counter(way).values()) for way in product(range(ranks), repeat=chunks)]
    assert expected_imbalance(chunks, ranks) == pytest.approx(
        sum(ways) / len(ways) * ranks / chunks
    )


def test_one_rank_is_always_even() -> None:
    assert expected_imbalance(1000, 1) == 1


def test_one_chunk_is_on_one_rank() -> None:
    assert expected_imbalance(1, 64) == pytest.approx(64)


@pytest.mark.parametrize("ranks", [2, 3, 8, 17, 64])
def test_more_chunks_are_never_less_even(ranks: int) -> None:
    """Removing a random chunk cannot make the mean maximum fall by more than its share. The
    expansion may err by 0.2 %, also where one method takes over from another."""
    counts = [*range(1, 130), 512, 4095, 4096, 4097, 10_000, 10**6, 10**9]
    found = [expected_imbalance(chunks, ranks) for chunks in counts]
    for before, after in pairwise(found):
        assert after <= before * 1.002
    assert found[-1] == pytest.approx(1, abs=0.001)
