"""Quantities in the form in which the API server gives them back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtier.api.scalars import parse_quantity
from kvtier.render.quantities import cpu_quantity, memory_quantity


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (64 << 30, "64Gi"),
        (1536 << 20, "1536Mi"),
        (1024, "1Ki"),
        (1000, "1k"),
        (64_000_000_000, "62500000Ki"),
        (1_000_000_001, "1000000001"),
        (1 << 60, "1Ei"),
    ],
)
def test_memory_has_the_largest_unit_that_leaves_a_whole_number(size: int, text: str) -> None:
    assert memory_quantity(size) == text


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("0.5", "500m"),
        ("500m", "500m"),
        ("1000m", "1"),
        ("2", "2"),
        ("1.5", "1500m"),
        ("0.0001", "1m"),
        ("1000", "1k"),
    ],
)
def test_cpus_are_whole_or_in_thousandths(given: str, text: str) -> None:
    assert cpu_quantity(given) == text


@given(st.integers(0, 1 << 50))
def test_a_canonical_quantity_is_the_same_amount(size: int) -> None:
    assert parse_quantity(memory_quantity(size)) == size
