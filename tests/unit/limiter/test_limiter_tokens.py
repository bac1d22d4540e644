"""What a request counts for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtier.limiter.tokens_of_request import number_of, tokens_of


@pytest.mark.parametrize(
    ("method", "size", "stated", "tokens"),
    [
        ("POST", "b=4000", None, 1000),
        ("POST", "4000", None, 1000),
        # Chunked: Envoy writes no size, its header mutation an empty one.
        ("POST", None, None, 700),
        ("POST", "b=", None, 700),
        ("POST", "", None, 700),
        # A statement is bounded by the size.
        ("POST", "b=4000", "1", 1000),
        ("POST", "b=4000", "2000", 2000),
        ("POST", "b=4000", "999999999", 4000),
        ("POST", None, "1", 700),
        ("POST", None, "5000", 5000),
        # One that never sends its body must not be the peak of the day.
        ("POST", None, "9" * 15, 16 * 700),
        ("POST", "b=" + "9" * 15, None, 2**20),
        ("POST", "b=" + "9" * 15, "9" * 15, 2**20),
        ("POST", "b=4000", "-3", 1000),
        ("POST", "b=4000", "many", 1000),
        ("POST", "b=4000", "9" * 400, 1000),
        ("POST", "b=-4", None, 700),
        ("POST", "b=１２", None, 700),
        ("POST", "b=1e9", None, 700),
        # No prompt.
        ("GET", None, None, 0),
        ("HEAD", None, None, 0),
        ("POST", "b=0", None, 0),
        # A gateway that asks by GET, whatever the client sends, tells a size.
        ("GET", "4000", None, 1000),
        ("GET", None, "50", 700),
    ],
)
def test_tokens_are_a_fourth_of_the_size_or_the_mean(
    method: str, size: str | None, stated: str | None, tokens: float
) -> None:
    assert tokens_of(method=method, length=number_of(size), stated=stated, mean=700.0) == tokens


@given(size=st.integers(0, 10**9), stated=st.text(max_size=20) | st.integers().map(str))
def test_no_statement_makes_a_request_cheaper_than_a_fourth_of_its_bytes(
    size: int, stated: str
) -> None:
    tokens = tokens_of(method="POST", length=size, stated=stated, mean=700.0)
    assert min(size / 4, 2**20) <= tokens <= size


@given(text=st.text(max_size=30))
def test_any_text_is_a_number_or_none(text: str) -> None:
    found = number_of(text)
    assert found is None or found >= 0
