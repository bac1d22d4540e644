"""What of a rank's memory holds KV."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtier.api.types import KVCacheTierSpec
from kvtier.render.memory import MemoryTooSmall, allocated_bytes, memory

MIB, GIB = 1 << 20, 1 << 30


def spec_of(*, limit: str, bytes_per_token: int, engines: int = 8) -> KVCacheTierSpec:
    return KVCacheTierSpec.model_validate(
        {
            "model": {
                "name": "m",
                "revision": "r",
                "kvCacheDtype": "bfloat16",
                "layout": {"bytesPerToken": bytes_per_token},
            },
            "pool": {
                "ranks": 4,
                "prefillRate": [{"tokensPerSecond": 5000}],
                "maxEngines": engines,
            },
            "store": {"memoryPerRank": limit},
        }
    )


@pytest.mark.parametrize(
    ("limit", "bytes_per_token", "engines", "reserve"),
    [
        # 10 % of the limit.
        ("64Gi", 1024, 8, -(-64 * GIB // 10)),
        # Two chunks for each of 8 x 8 connections: 2 x 64 x 256 x 48,400 bytes.
        ("8Gi", 48_400, 8, 1_585_971_200),
        ("8Gi", 48_400, 2, 858_993_460),
        # 25 % of the limit up to 2 GiB, then 512 MiB.
        ("256Mi", 256, 8, 64 * MIB),
        ("4Gi", 256, 8, 512 * MIB),
        # The process itself and its allocator.
        ("64Mi", 16, 8, 24 * MIB),
    ],
)
def test_the_reserve_is_the_largest_of_four(
    limit: str, bytes_per_token: int, engines: int, reserve: int
) -> None:
    found = memory(spec_of(limit=limit, bytes_per_token=bytes_per_token, engines=engines))
    assert found.reserve == reserve
    assert found.maxmemory == found.limit - reserve
    assert found.connections == 8 * engines
    assert found.chunk_bytes == 256 * bytes_per_token
    assert found.chunks == found.maxmemory // found.stored_bytes - found.connections


def test_shard_keeps_a_wth_of_every_chunk_on_a_rank(make_tier: Any) -> None:
    shard = memory(make_tier().spec)
    whole = memory(make_tier({"pool.striping": "Hash"}).spec)
    assert (shard.chunk_bytes, whole.chunk_bytes) == (10_485_760, 83_886_080)


def test_a_laptops_rank_of_256_mebibytes_holds_a_small_models_chunks(make_tier: Any) -> None:
    """Four ranks, 16 layers of 8 heads of 64 in bfloat16 (the size of Llama-3.2-1B), Shard."""
    tier = make_tier(
        {
            "model.layout": {"gqa": {"layers": 16, "kvHeads": 8, "headDim": 64}},
            "pool.ranks": 4,
            "pool.maxEngines": 1,
            "store.memoryPerRank": "256Mi",
        }
    )
    found = memory(tier.spec)
    assert found.chunk_bytes == 2 * MIB
    # 192 MiB of 2.5 each, and 8 connections that may hold one.
    assert (found.reserve, found.chunks) == (64 * MIB, 76 - 8)


@pytest.mark.parametrize(
    ("size", "taken"),
    [(2 * MIB, 5 * MIB // 2), (10 * MIB, 12 * MIB), (8 * MIB, 10 * MIB), (10 * MIB - 64, 10 * MIB)],
)
def test_a_chunk_takes_the_allocators_next_size(size: int, taken: int) -> None:
    """2 and 10 MiB were measured: jemalloc 5.3.0 under Valkey 8.1.1."""
    assert allocated_bytes(size) == taken


def test_a_rank_that_would_hold_fewer_than_16_chunks_is_refused() -> None:
    with pytest.raises(MemoryTooSmall) as error:
        memory(spec_of(limit="1Gi", bytes_per_token=48_400))
    message = str(error.value)
    assert message.startswith("spec.store.memoryPerRank: 1Gi leaves room for 0 chunks")
    assert "chunks of 11.8 MiB beside" in message
    assert message.endswith("set it to at least 2473Mi, or lower spec.pool.maxEngines to at most 2")
    assert "\n" not in message


def test_one_engine_less_is_offered_where_that_is_enough() -> None:
    with pytest.raises(MemoryTooSmall, match=r"at least 2473Mi, or lower .* to at most 7$"):
        memory(spec_of(limit="2472Mi", bytes_per_token=48_400))


def test_a_chunk_that_valkey_would_not_store_is_refused() -> None:
    with pytest.raises(
        MemoryTooSmall, match=r"spec.pool.chunkTokens: .* at most 128, or correct spec"
    ):
        memory(spec_of(limit="1Ti", bytes_per_token=4 * MIB))


def test_a_token_of_which_not_even_the_smallest_chunk_fits_is_the_layout_s_fault() -> None:
    match = r"^spec.model.layout: one token's KV is 67108864 bytes .* write the model's own layout"
    with pytest.raises(MemoryTooSmall, match=match):
        memory(spec_of(limit="1Ti", bytes_per_token=64 * MIB))


@given(
    bytes_per_token=st.integers(1, 2 * MIB),
    engines=st.integers(1, 1024),
    limit=st.integers(64 * MIB, 1 << 44),
)
def test_the_named_figures_are_enough_and_a_mebibyte_less_or_an_engine_more_is_not(
    bytes_per_token: int, engines: int, limit: int
) -> None:
    try:
        found = memory(spec_of(limit=str(limit), bytes_per_token=bytes_per_token, engines=engines))
    except MemoryTooSmall as error:
        least = str(error).split("at least ")[1].split(",")[0]
        enough = spec_of(limit=least, bytes_per_token=bytes_per_token, engines=engines)
        assert memory(enough).chunks >= 16
        fewer = int(str(error).partition("maxEngines to at most ")[2] or 0)
        if fewer:
            spec = spec_of(limit=str(limit), bytes_per_token=bytes_per_token, engines=fewer)
            assert memory(spec).chunks >= 16
        with pytest.raises(MemoryTooSmall):
            memory(spec_of(limit=str(limit), bytes_per_token=bytes_per_token, engines=fewer + 1))
        less = enough.store.memory_bytes - MIB
        with pytest.raises(MemoryTooSmall):
            memory(spec_of(limit=str(less), bytes_per_token=bytes_per_token, engines=engines))
    else:
        assert found.chunks >= 16
        assert found.reserve >= 2 * found.connections * found.chunk_bytes
        assert 10 * found.reserve >= found.limit


def test_what_valkey_must_take_is_one_workers_object_of_a_chunk() -> None:
    """GQA with Hash: LMCache makes an object of each worker's part of a chunk."""

    def spec(ranks: int, connector: str = "LMCacheMP") -> KVCacheTierSpec:
        document = spec_of(limit="1Ti", bytes_per_token=1, engines=1).model_dump(
            mode="json", by_alias=True, exclude_none=True
        )
        # 4 MiB a token, 1 GiB a chunk.
        gqa = {"layers": 128, "kvHeads": 8, "headDim": 1024}
        document["model"]["layout"] = {"gqa": gqa}
        document["pool"] |= {"ranks": ranks, "engine": {"connector": connector}}
        return KVCacheTierSpec.model_validate(document)

    assert memory(spec(8)).chunk_bytes == GIB
    for refused in (spec(1), spec(8, "Generic")):
        with pytest.raises(MemoryTooSmall, match=r"spec.pool.chunkTokens: .* at most 128"):
            memory(refused)
