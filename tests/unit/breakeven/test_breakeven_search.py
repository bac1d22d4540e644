import math

import pytest

from kvtier.breakeven.search import LONGEST_TOKENS, Wins, first_win, winning

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


RISING = [(1000.0, 1000.0), (9000.0, 9000.0)]


def test_where_the_rate_rises_the_first_loss_above_a_win_is_found() -> None:
    found = winning(lambda tokens: 400 <= tokens <= 6000, points=RISING)
    assert found == Wins(400, most=6000)
    assert found.inside() == "400 to 6,000 tokens"
    assert found.outside() == "below 400 and above 6,000 tokens"


def test_a_win_above_such_a_loss_is_told_of() -> None:
    found = winning(lambda tokens: not 6000 < tokens < 10**6, points=RISING)
    assert found == Wins(1, most=6000, again=True)
    assert found.inside() == "1 to 6,000 tokens, and some longer ones,"
    assert found.outside() == "below 1 and some above 6,000 tokens"
    lengths = [20_000, 30_000]
    narrow = winning(lambda n: n <= 6000 or n == 20_000, points=RISING, lengths=lengths)
    assert narrow.again


@pytest.mark.parametrize("points", [FLAT, RISING, RISING[::-1]])
def test_without_a_loss_every_longer_hit_wins(points: list[tuple[float, float]]) -> None:
    found = winning(lambda tokens: tokens >= 4096, points=points)
    assert found == Wins(4096)
    assert found.inside() == "4,096 tokens and more"
    assert found.outside() == "below 4,096 tokens"
    assert winning(lambda _: False, points=points) == Wins(math.inf)
