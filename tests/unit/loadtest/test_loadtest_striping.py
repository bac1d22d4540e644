"""Where chunks are, and how long a hit is, against the definition."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtier.loadtest.keys import chunk_hashes
from kvtier.loadtest.striping import Striping, answer, chunks_by_rank, hit_chunks, holders

STRIPINGS = list(Striping)
WORLDS = st.integers(2, 16)
Place = tuple[int, int]


def hashes_of(chunks: int, *, seed: int = 0) -> list[bytes]:
    tokens = b"".join((seed * 100_000 + n).to_bytes(4, "little") for n in range(chunks))
    return chunk_hashes(tokens, chunk_tokens=1)


def hit_by_ranks(
    striping: Striping, *, hashes: list[bytes], ranks: int, missing: set[Place]
) -> int:
    """What an engine finds: each rank knows its own chunks only. ``missing`` are (chunk, rank)."""
    held = chunks_by_rank(striping, hashes=hashes, ranks=ranks)
    return hit_chunks(
        [
            answer(mine, [(chunk, rank) not in missing for chunk in mine], chunks=len(hashes))
            for rank, mine in enumerate(held)
        ]
    )


def hit_by_definition(
    striping: Striping, *, hashes: list[bytes], ranks: int, missing: set[Place]
) -> int:
    """The longest prefix whose chunks are all present everywhere they must be."""
    for index, chunk_hash in enumerate(hashes):
        for rank in holders(striping, index=index, chunk_hash=chunk_hash, ranks=ranks):
            if (index, rank) in missing:
                return index
    return len(hashes)


@pytest.mark.parametrize("striping", STRIPINGS)
@settings(max_examples=60)
@given(data=st.data(), ranks=WORLDS, chunks=st.integers(0, 800), seed=st.integers(0, 1000))
def test_the_minimum_over_ranks_is_the_longest_prefix_that_is_all_there(
    striping: Striping, data: st.DataObject, ranks: int, chunks: int, seed: int
) -> None:
    hashes = hashes_of(chunks, seed=seed)
    places = st.tuples(st.integers(0, max(chunks - 1, 0)), st.integers(0, ranks - 1))
    missing = data.draw(st.sets(places, max_size=8))
    asked = {"hashes": hashes, "ranks": ranks, "missing": missing}
    assert hit_by_ranks(striping, **asked) == hit_by_definition(striping, **asked)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("striping", STRIPINGS)
def test_it_is_so_for_every_set_of_missing_chunks_of_up_to_ten(
    striping: Striping, ranks: int
) -> None:
    for chunks in range(11):
        hashes = hashes_of(chunks)
        for absent in product((False, True), repeat=chunks):
            # With Shard one rank's part is enough to lose a chunk: another one for each.
            missing = {
                (index, holders(striping, index=index, chunk_hash=each, ranks=ranks)[-1 - index])
                if striping is Striping.SHARD and index < ranks
                else (index, holders(striping, index=index, chunk_hash=each, ranks=ranks)[0])
                for index, (each, gone) in enumerate(zip(hashes, absent, strict=True))
                if gone
            }
            expected = absent.index(True) if any(absent) else chunks
            found = hit_by_ranks(striping, hashes=hashes, ranks=ranks, missing=missing)
            assert found == expected


@settings(max_examples=60)
@given(ranks=WORLDS, chunks=st.integers(1, 800), data=st.data())
def test_losing_one_rank_loses_the_tier(ranks: int, chunks: int, data: st.DataObject) -> None:
    lost = data.draw(st.integers(0, ranks - 1))
    hashes = hashes_of(chunks)
    asked = {
        "hashes": hashes,
        "ranks": ranks,
        "missing": {(chunk, lost) for chunk in range(chunks)},
    }
    assert hit_by_ranks(Striping.SHARD, **asked) == 0
    assert hit_by_ranks(Striping.CHUNK_MODULO, **asked) == min(lost, chunks)
    first = next(
        (n for n, each in enumerate(hashes) if int.from_bytes(each, "big") % ranks == lost), chunks
    )
    assert hit_by_ranks(Striping.HASH, **asked) == first


def test_with_hash_a_lost_rank_leaves_about_as_many_chunks_as_there_are_ranks() -> None:
    """The first chunk on the lost rank comes, on average, after W - 1 others."""
    left = [
        hit_by_ranks(
            Striping.HASH,
            hashes=hashes_of(200, seed=seed),
            ranks=8,
            missing={(chunk, 3) for chunk in range(200)},
        )
        for seed in range(400)
    ]
    assert sum(left) / len(left) == pytest.approx(7, abs=1)


@given(ranks=WORLDS, chunks=st.integers(0, 800))
def test_chunk_c_is_on_rank_c_mod_w_and_ranks_differ_by_one_chunk_at_most(
    ranks: int, chunks: int
) -> None:
    held = chunks_by_rank(Striping.CHUNK_MODULO, hashes=hashes_of(chunks), ranks=ranks)
    assert all(mine == list(range(rank, chunks, ranks)) for rank, mine in enumerate(held))
    assert max(map(len, held)) - min(map(len, held)) <= 1


def test_with_shard_every_rank_has_a_part_of_every_chunk() -> None:
    held = chunks_by_rank(Striping.SHARD, hashes=hashes_of(5), ranks=3)
    assert held == [[0, 1, 2, 3, 4]] * 3


@pytest.mark.parametrize("ranks", [2, 3, 8, 16])
def test_with_hash_each_chunk_is_on_one_rank_and_each_rank_has_its_share(ranks: int) -> None:
    chunks = 20_000
    held = chunks_by_rank(Striping.HASH, hashes=hashes_of(chunks), ranks=ranks)
    assert sorted(chunk for mine in held for chunk in mine) == list(range(chunks))
    # Four standard deviations of a fair choice.
    share = chunks / ranks
    allowed = 4 * (share * (1 - 1 / ranks)) ** 0.5
    assert all(abs(len(mine) - share) < allowed for mine in held)


def test_hash_does_not_care_where_in_a_prompt_a_chunk_is() -> None:
    (chunk_hash,) = hashes_of(1)
    chosen = {
        tuple(holders(Striping.HASH, index=index, chunk_hash=chunk_hash, ranks=8))
        for index in range(20)
    }
    assert len(chosen) == 1
