"""Every wrong byte is seen, and who it belongs to."""

import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtier.store.values import (
    HEADER_BYTES,
    PIECE_BYTES,
    Checker,
    Identity,
    Verdict,
    header,
    identity,
    payload,
)

OWNER = identity(tier="models/chat", generation="0123456789ab", rank=3, key=b"key")
SIZES = st.one_of(
    st.integers(HEADER_BYTES, 4096),
    st.sampled_from([HEADER_BYTES + PIECE_BYTES + off for off in (-1, 0, 1)]),
    st.integers(HEADER_BYTES, 3 * PIECE_BYTES),
)


def value(owner: Identity = OWNER, *, size: int = 5000) -> bytes:
    return header(owner, writer="run/0", size=size) + b"".join(payload(owner, size - HEADER_BYTES))


def judged(content: bytes, *, size: int = 5000, part: int = 1 << 20) -> Verdict:
    checker = Checker(OWNER, size=size)
    for start in range(0, len(content), part):
        checker.feed(memoryview(content)[start : start + part])
    return checker.verdict()


@given(size=SIZES, part=st.integers(1, 70_000))
@settings(max_examples=50, deadline=None)
def test_a_value_is_as_long_as_asked_and_right_in_whatever_parts_it_comes(
    size: int, part: int
) -> None:
    content = value(size=size)
    assert len(content) == size
    assert judged(content, size=size, part=max(part, size // 1000)) is Verdict.RIGHT


@given(data=st.data(), size=SIZES)
@settings(max_examples=100, deadline=None)
def test_any_flipped_bit_is_seen(data: st.DataObject, size: int) -> None:
    content = bytearray(value(size=size))
    content[data.draw(st.integers(0, size - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert judged(bytes(content), size=size) is Verdict.CORRUPT


@pytest.mark.parametrize(
    ("owner", "verdict"),
    [
        (replace(OWNER, rank=2), Verdict.FOREIGN),
        (
            identity(tier="models/chat", generation="0123456789ab", rank=3, key=b"k"),
            Verdict.FOREIGN,
        ),
        (
            identity(tier="other/chat", generation="0123456789ab", rank=3, key=b"key"),
            Verdict.FOREIGN,
        ),
        (replace(OWNER, generation="ba9876543210"), Verdict.STALE),
        (replace(OWNER, generation="ba9876543210", rank=2), Verdict.STALE),
    ],
)
def test_a_whole_value_of_somebody_else_is_told_from_a_torn_one(
    owner: Identity, verdict: Verdict
) -> None:
    assert judged(value(owner)) is verdict
    assert judged(value(owner, size=700)) is verdict
    torn = value(owner)[:3000] + value()[3000:]
    # The rank is no part of where the payload begins, so that such a value is whole.
    if torn != value(owner):
        assert judged(torn) is Verdict.CORRUPT


def test_a_value_of_another_length_is_corrupt() -> None:
    assert judged(value()[:-1]) is Verdict.CORRUPT
    assert judged(value() + b"x") is Verdict.CORRUPT
    assert judged(value(size=4999)) is Verdict.CORRUPT
    assert judged(value()[: HEADER_BYTES - 1]) is Verdict.CORRUPT
    assert judged(b"") is Verdict.CORRUPT


def test_a_shifted_payload_is_corrupt() -> None:
    content = value()
    for shift in (1, 64, 4096):
        moved = content[: HEADER_BYTES + 100] + content[HEADER_BYTES + 100 + shift :]
        assert judged(moved + bytes(shift)) is Verdict.CORRUPT


def test_values_of_two_keys_are_different_bytes() -> None:
    other = identity(tier="models/chat", generation="0123456789ab", rank=3, key=b"other")
    same = sum(
        left == right
        for left, right in zip(value()[HEADER_BYTES:], value(other)[HEADER_BYTES:], strict=True)
    )
    assert same < 0.02 * 5000


def test_two_writers_of_one_key_differ_in_the_header_only() -> None:
    mine, yours = (header(OWNER, writer=writer, size=5000) for writer in ("a/0", "b/1"))
    assert mine != yours
    content = yours + value()[HEADER_BYTES:]
    assert judged(content) is Verdict.RIGHT


def test_checking_is_quicker_than_a_gigabyte_a_second() -> None:
    size = 8 << 20
    content = memoryview(value(size=size))
    best = 0.0
    for _ in range(5):
        checker = Checker(OWNER, size=size)
        begun = time.perf_counter()
        for start in range(0, size, PIECE_BYTES):
            checker.feed(content[start : start + PIECE_BYTES])
        best = max(best, size / (time.perf_counter() - begun))
        assert checker.verdict() is Verdict.RIGHT
    assert best > 1e9, f"{best / 1e9:.2f} GB/s"
