"""Names of chunks, and requests that share them."""

from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtier.loadtest.keys import TOKEN_BYTES, chunk_hashes, wire_key
from kvtier.loadtest.workload import Workload, arrivals, prompt

LOAD = Workload(rate=5.0, prompt_tokens=1000, prefixes=3, prefix_tokens=600, seed=7)


def test_a_key_is_what_lmcache_writes() -> None:
    key = wire_key(
        prefix="kvt-0123456789ab-r3",
        model="meta-llama/Llama-3.1-70B-Instruct",
        kv_rank="01000100",
        chunk_hash=bytes.fromhex("00ff"),
    )
    assert key == b"kvt-0123456789ab-r3@meta-llama/Llama-3.1-70B-Instruct@01000100@0@00ff"


@given(
    chunks=st.integers(1, 20), changed=st.integers(0, 19), rest=st.integers(0, 15), bit=st.binary()
)
def test_a_chunks_hash_covers_every_token_before_it_and_none_after(
    chunks: int, changed: int, rest: int, bit: bytes
) -> None:
    changed %= chunks
    tokens = bytearray(range(256)) * ((chunks * 16 + rest) * TOKEN_BYTES // 256 + 1)
    tokens = tokens[: (chunks * 16 + rest) * TOKEN_BYTES]
    before = chunk_hashes(bytes(tokens), chunk_tokens=16)
    assert len(before) == len(set(before)) == chunks
    tokens[changed * 16 * TOKEN_BYTES + len(bit) % (16 * TOKEN_BYTES)] ^= 1
    after = chunk_hashes(bytes(tokens), chunk_tokens=16)
    assert after[:changed] == before[:changed]
    assert not set(after[changed:]) & set(before)


def test_a_chunk_that_is_not_full_has_no_hash() -> None:
    assert chunk_hashes(bytes(15 * TOKEN_BYTES), chunk_tokens=16) == []
    assert len(chunk_hashes(bytes(31 * TOKEN_BYTES), chunk_tokens=16)) == 1


def test_prompts_of_one_beginning_share_exactly_its_full_chunks() -> None:
    first, second = (prompt(LOAD, prefix=1, unique=unique) for unique in ("a", "b"))
    other = prompt(LOAD, prefix=2, unique="a")
    assert len(first) == len(other) == 1000 * TOKEN_BYTES
    hashes = [chunk_hashes(each, chunk_tokens=256) for each in (first, second, other)]
    shared = [left == right for left, right in zip(hashes[0], hashes[1], strict=True)]
    assert shared == [True, True, False]
    assert not set(hashes[0]) & set(hashes[2])


def test_another_seed_has_other_beginnings_and_the_same_one_the_same() -> None:
    here = prompt(LOAD, prefix=1, unique="a")
    assert here == prompt(LOAD, prefix=1, unique="a")
    there = prompt(replace(LOAD, seed=8), prefix=1, unique="a")
    assert here[: 600 * TOKEN_BYTES] != there[: 600 * TOKEN_BYTES]


def test_requests_come_by_a_poisson_process_of_the_rate() -> None:
    """Gaps of mean 1/rate whose deviation is their mean, and every beginning as often."""
    came = list(islice(arrivals(LOAD, engine=0), 20_000))
    gaps = [later - at for (at, _), (later, _) in zip([(0.0, 0), *came], came, strict=False)]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert mean == pytest.approx(1 / LOAD.rate, rel=0.03)
    assert deviation == pytest.approx(mean, rel=0.03)
    for prefix in range(3):
        count = sum(chosen == prefix for _, chosen in came)
        assert count == pytest.approx(20_000 / 3, rel=0.05)


def test_the_same_seed_and_engine_have_the_same_requests_and_another_engine_others() -> None:
    def first(engine: int, seed: int = 7) -> list[tuple[float, int]]:
        return list(islice(arrivals(replace(LOAD, seed=seed), engine=engine), 20))

    assert first(0) == first(0)
    assert first(0) != first(1)
    assert first(0) != first(0, seed=8)
