"""Keys of a prompt by rank, and the bits that stand for some of them."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtier.loadtest.connection import Connection
from kvtier.loadtest.objects import Held, flat, objects, pack, unpack
from kvtier.loadtest.striping import Striping
from kvtier.store.address import RankAddress

HASHES = [bytes([number]) * 32 for number in range(5)]


def connection(striping: Striping, *, kv_ranks: Sequence[str] = ("01000100",)) -> Connection:
    return Connection(
        tier="chat",
        namespace="models",
        generation="0123456789ab",
        striping=striping,
        model="m",
        kv_ranks=tuple(kv_ranks),
        chunk_tokens=256,
        chunk_bytes=4096,
        prefill_rates=((0.0, 1.0),),
        hit_latency=0.0,
        hit_engine_time=0.0,
        username="user",
        password="word",
        workers=1,
        request_timeout=1.0,
        ca_file=None,
        ranks=tuple(RankAddress(rank=rank, host="h", port=1, prefix=f"r{rank}") for rank in (0, 1)),
    )


@pytest.mark.parametrize(
    ("striping", "chunks"),
    [
        (Striping.SHARD, [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]),
        (Striping.HASH, [[0, 2, 4], [1, 3]]),
        (Striping.CHUNK_MODULO, [[0, 2, 4], [1, 3]]),
    ],
)
def test_each_rank_has_keys_of_its_chunks_under_its_prefix(
    striping: Striping, chunks: list[list[int]]
) -> None:
    held = objects(connection(striping, kv_ranks=("a", "b")), HASHES)
    assert [list(mine) for mine in held] == chunks
    assert held[1][1] == [f"r1@m@{part}@0@{HASHES[1].hex()}".encode() for part in ("a", "b")]


@given(st.data())
def test_what_was_packed_is_unpacked(data: st.DataObject) -> None:
    chunks = data.draw(st.lists(st.integers(0, 900), unique=True, max_size=40).map(sorted))
    held: Held = {chunk: [b"%d/%d" % (chunk, part) for part in (0, 1)] for chunk in chunks}
    keys = flat(held)
    some = {key for key in keys if data.draw(st.booleans())}
    assert unpack(held, pack(held, some)) == [key for key in keys if key in some]


def test_a_key_of_no_chunk_of_the_rank_is_not_packed() -> None:
    assert pack({0: [b"a"]}, {b"b"}) == 0
    assert pack({}, {b"b"}) == 0
