import pytest

from kvtier.breakeven import words


@pytest.mark.parametrize(
    ("figure", "text"),
    [(0, "0"), (13.107, "13.1"), (0.2157, "0.216"), (1638.4, "1,638"), (99.96, "100"),
     (0.00005, "0.00005"), (1e-9, "1.0e-09"), (-0.09, "-0.09")],
)  # fmt: skip
def test_figures_have_three_digits_and_no_exponent_within_reason(figure: float, text: str) -> None:
    assert words.digits(figure) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (words.gigabits(1.6384e9), "13.1 Gb/s"),
        (words.counted(1, "worker"), "1 worker"),
        (words.counted(4851, "chunk"), "4,851 chunks"),
        (words.gigabits(125_000_000_000), "1,000 Gb/s"),
        (words.gigabytes(1.71e9), "1.71 GB/s"),
        (words.age(59.9), "59 s"),
        (words.age(60), "1 min"),
        (words.age(7200), "2 h"),
        (words.age(200_000), "2 d"),
        (words.age(-3), "0 s"),
        (words.seconds(1.6384), "1.64 s"),
        (words.seconds(0.33), "330 ms"),
        (words.seconds(50e-6), "0.05 ms"),
        (words.size(327_680), "320 KiB"),
        (words.size(83_886_080), "80 MiB"),
        (words.size(2**40), "1 TiB"),
        (words.size(7), "7 B"),
    ],
)
def test_units_are_those_that_people_read(text: str, expected: str) -> None:
    assert text == expected
