import math

import pytest

from kvtier.breakeven.search import LONGEST_TOKENS, first_win

FLAT = [(0.0, 5000.0)]


@pytest.mark.parametrize("least", [1, 2, 17, 4096, 99_999_999, LONGEST_TOKENS])
def test_the_first_length_that_wins_is_found_exactly(least: int) -> None:
    assert first_win(lambda tokens: tokens >= least, points=FLAT) == least


def test_no_length_that_wins_is_infinite() -> None:
    assert first_win(lambda tokens: tokens > LONGEST_TOKENS, points=FLAT) == math.inf


def test_few_lengths_are_tried() -> None:
    tried = []

    def wins(tokens: int) -> bool:
        tried.append(tokens)
        return tokens >= 12_345

    first_win(wins, points=FLAT)
    assert len(tried) < 30
    assert min(tried) >= 1


def test_a_win_only_in_the_middle_of_a_rising_rate_is_found() -> None:
    rising = [(1000.0, 1000.0), (9000.0, 9000.0)]
    assert first_win(lambda tokens: 3000 <= tokens <= 6000, points=rising) == 3000


def test_a_win_before_the_first_declared_length_is_found() -> None:
    assert first_win(lambda tokens: tokens >= 10, points=[(5000.0, 1.0), (9000.0, 2.0)]) == 10


def test_a_narrow_win_at_a_length_that_matters_is_found() -> None:
    """A rate that rises over six decades, and a win at one length only."""
    rising = [(1.0, 1.0), (1e8, 1e8)]
    assert first_win(lambda tokens: tokens == 5003, points=rising) == math.inf
    assert first_win(lambda tokens: tokens == 5003, points=rising, lengths=[5003]) == 5003
