"""How long a hit is, of what LMCache asks for row by row."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtier_lmcache.hits import hit_is_short


def short(found: str, *, groups: str = "a", least: int) -> bool:
    """``found`` has a word for each row, one letter for each chunk: x where it is there.
    ``groups`` names each row's object group; it has a row for itself."""
    rows = found.split()
    names = [(number, group) for number, group in enumerate(groups * len(rows))][: len(rows)]
    return hit_is_short(
        [name for row, name in zip(rows, names, strict=True) for _ in row],
        [name[1] for row, name in zip(rows, names, strict=True) for _ in row],
        [letter == "x" for row in rows for letter in row],
        least=least,
    )


@pytest.mark.parametrize(
    ("found", "hit"),
    [("xxx-x", 3), ("-xxxx", 0), ("xxxxx", 5), ("xxx-x xx--x", 2), ("xx x-", 1)],
)
def test_a_hit_is_the_leading_run_of_chunks_that_every_rank_has(found: str, hit: int) -> None:
    assert not short(found, least=hit)
    assert short(found, least=hit + 1)


def test_a_hybrids_hit_may_end_behind_what_its_windows_no_longer_have() -> None:
    assert not short("xxxxx ---xx", groups="ab", least=5)
    assert short("xxxx- ---xx", groups="ab", least=5)
    assert short("xxxxx -----", groups="ab", least=1)


def test_objects_that_are_no_rows_are_not_held_back() -> None:
    assert not hit_is_short(["a", "b", "b"], ["g"] * 3, [False] * 3, least=9)
    assert not hit_is_short([], [], [], least=9)


@given(
    st.integers(1, 5).flatmap(
        lambda rows: st.lists(
            st.lists(st.booleans(), min_size=rows, max_size=rows), min_size=1, max_size=20
        )
    ),
    st.integers(0, 25),
)
def test_it_agrees_with_counting(chunks: list[list[bool]], least: int) -> None:
    rows = len(chunks[0])
    found = [chunk[row] for row in range(rows) for chunk in chunks]
    names = [row for row in range(rows) for _ in chunks]
    run = next((at for at, chunk in enumerate(chunks) if not all(chunk)), len(chunks))
    assert hit_is_short(names, [0] * len(names), found, least=least) == (run < least)
