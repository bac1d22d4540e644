from fractions import Fraction

import pytest

from kvtier.api.scalars import parse_duration, parse_quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("64Gi", 64 * 2**30),
        ("25G", 25 * 10**9),
        ("500m", Fraction(1, 2)),
        ("1.5Mi", 3 * 2**19),
        ("0.1", Fraction(1, 10)),
        (1024, 1024),
        ("2P", 2 * 10**15),
        ("2Pi", 2**51),
    ],
)
def test_a_quantity_is_read_exactly(text: str | int, value: Fraction | int) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize("text", ["", "64GB", "-5Gi", "1e3", "Gi", ".5", "1.", "NaN", "٣", "1\n"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        parse_quantity(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("330ms", 0.33), ("50us", 5e-5), ("1h30m", 5400), ("1.5s", 1.5), ("3ns", 3e-9), ("0s", 0)],
)
def test_a_duration_is_read_in_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize("text", ["", "0.33", "1d", "PT5S", "-1s", "1 s", "s", "1s\n", "٣s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)
