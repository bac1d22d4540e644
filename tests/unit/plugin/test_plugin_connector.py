"""The connector that LMCache has inside the engine, against real Valkey servers."""

import asyncio
import importlib.util
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest
from plugin_kit import PATIENCE, Chunk, NewTier, Tier

from kvtier_lmcache import StripedConnectorAdapter

BYTES = 2 * 2 * 16 * 8 * 2
"""Of a chunk: K and V, two layers, 16 tokens, hidden size 8, two bytes each."""
AT_ONCE = 1.0


@dataclass(frozen=True)
class Key:
    chunk_hash: int
    worker_id: int = 0

    def to_string(self) -> str:
        return f"org/model@2@{self.worker_id}@{self.chunk_hash:x}@bfloat16"


@dataclass
class Memory:
    """LMCache's pool of host memory, of ``room`` chunks."""

    room: int = 1000
    given: list[Chunk] = field(default_factory=list)

    def allocate(
        self, shapes: Any, dtypes: Any, fmt: Any, *, eviction: bool = True, busy_loop: bool = True
    ) -> Chunk | None:
        if len(self.given) >= self.room:
            assert eviction
            assert not busy_loop, "LMCache would wait for ever"
            return None
        self.given.append(Chunk(bytes(BYTES)))
        return self.given[-1]

    def held(self) -> int:
        return sum(each.references for each in self.given)


def context(given: Any, memory: Memory, **extra: object) -> Any:
    shapes: tuple[list[Any], list[Any]] = ([], [])
    if importlib.util.find_spec("torch"):
        import torch

        shapes = ([torch.Size([2, 2, 16, 8])], [torch.bfloat16])
    settings = {"kvtier": given, "save_chunk_meta": False, **extra}
    return SimpleNamespace(
        url="plugin://kvtier",
        config=SimpleNamespace(extra_config=settings, use_layerwise=False),
        metadata=SimpleNamespace(
            get_shapes=lambda: shapes[0],
            get_dtypes=lambda: shapes[1],
            get_num_groups=lambda: 1,
            use_mla=False,
            chunk_size=16,
            world_size=2,
            worker_id=0,
        ),
        local_cpu_backend=memory,
    )


@asynccontextmanager
async def connected(given: Any, memory: Memory | None = None) -> AsyncIterator[Any]:
    connector = StripedConnectorAdapter().create_connector(context(given, memory or Memory()))
    try:
        yield connector
    finally:
        await connector.close()


def values(count: int) -> list[Chunk]:
    return [Chunk(bytes([number]) * BYTES) for number in range(count)]


def some(start: int, count: int) -> list[Key]:
    return [Key(number) for number in range(start, start + count)]


async def test_what_was_put_is_found_and_got(tier: Tier) -> None:
    async with connected(tier.given()) as connector:
        chunks, put = some(1000, 20), values(20)
        await connector.batched_put(chunks, put)
        assert [each.references for each in put] == [1] * 20
        assert await connector.exists(chunks[3])
        assert await connector.batched_async_contains("id", chunks + some(0, 1)) == 20
        found = await asyncio.to_thread(connector.batched_contains, some(0, 1) + chunks)
        assert found == 0
        assert await asyncio.to_thread(connector.exists_sync, chunks[0])
        got = await connector.batched_get(chunks)
        assert [bytes(each.byte_array) for each in got] == [bytes(c.byte_array) for c in put]
        assert await connector.list() == []


async def test_what_is_not_there_gives_its_memory_back(tier: Tier) -> None:
    memory = Memory()
    async with connected(tier.given(), memory) as connector:
        await connector.put(Key(2000), values(1)[0])
        await connector.put(Key(2002), values(1)[0])
        got = await connector.batched_get(some(2000, 3))
        assert [each is not None for each in got] == [True, False, True]
        assert memory.held() == 2
        leading = await connector.batched_get_non_blocking("id", some(2000, 3))
        assert len(leading) == 1
        assert memory.held() == 3
        assert await connector.get(Key(2001)) is None
        assert memory.held() == 3


async def test_with_no_memory_left_the_rest_is_a_miss(tier: Tier) -> None:
    async with connected(tier.given(), Memory(room=2)) as connector:
        await connector.batched_put(some(3000, 4), values(4))
        got = await connector.batched_get(some(3000, 4))
        assert [each is not None for each in got] == [True, True, False, False]


@pytest.mark.parametrize(
    ("striping", "rank_of"),
    [("Shard", lambda key: key.worker_id), ("Hash", lambda key: key.chunk_hash % 3)],
)
async def test_a_chunk_is_on_its_workers_or_its_hashs_rank(
    tier: Tier, striping: str, rank_of: Callable[[Key], int]
) -> None:
    async with connected(tier.given(striping=striping)) as connector:
        chunks = [Key(number, worker) for number in range(4000, 4003) for worker in (0, 1)]
        await connector.batched_put(chunks, values(6))
    for each in chunks:
        for number, rank in enumerate(tier.ranks):
            there = rank.admin(f"EXISTS {rank.prefix}@{each.to_string()}") == [b":1\r\n"]
            assert there == (number == rank_of(each))
    for rank in tier.ranks:
        rank.admin("FLUSHALL")


async def test_a_worker_connects_to_its_own_rank_alone(new_tier: NewTier) -> None:
    tier = new_tier(ranks=3)
    async with connected(tier.given(striping="Shard")) as connector:
        await connector.put(Key(1, 0), values(1)[0])
        assert b"user=token-1 " in tier.ranks[0].clients()
        assert b"user=token-1 " not in tier.ranks[1].clients()
        await connector.put(Key(1, 1), values(1)[0])
        assert await connector.exists(Key(1, 1))
        assert b"user=token-1 " not in tier.ranks[2].clients()


async def test_a_hung_rank_is_a_miss_without_an_exception(new_tier: NewTier) -> None:
    tier, memory = new_tier(), Memory()
    given = tier.given(request_timeout=0.5, connection_timeout=1.0)
    async with connected(given, memory) as connector:
        chunks = some(0, 64)
        await connector.batched_put(chunks, values(64))
        tier.ranks[0].signal(signal.SIGSTOP)
        await connector.batched_async_contains("id", chunks)
        begun = monotonic()
        assert await asyncio.to_thread(connector.batched_contains, chunks) == 0
        assert await connector.batched_get(chunks) == [None] * 64
        await connector.batched_put(chunks, values(64))
        assert monotonic() - begun < AT_ONCE
        assert memory.held() == 0


async def test_memory_is_held_until_a_call_that_was_given_up_is_over(new_tier: NewTier) -> None:
    tier, memory = new_tier(), Memory()
    async with connected(tier.given(request_timeout=1.0), memory) as connector:
        put = values(1)
        await connector.batched_put(some(0, 1), put)
        tier.ranks[0].signal(signal.SIGSTOP)
        calls = [
            asyncio.ensure_future(connector.batched_get(some(0, 1))),
            asyncio.ensure_future(connector.batched_put(some(0, 1), put)),
        ]
        await asyncio.sleep(0.1)
        for call in calls:
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        assert memory.held() == 1
        assert put[0].references == 2
        begun = monotonic()
        while memory.held() or put[0].references > 1:
            assert monotonic() - begun < PATIENCE
            await asyncio.sleep(0.02)


def test_it_is_found_by_its_name_alone() -> None:
    adapter = StripedConnectorAdapter()
    parsed = [adapter.can_parse(f"plugin://{name}") for name in ("kvtier", "kvtier.a", "kvtiers")]
    assert parsed == [True, True, False]


def test_parameters_that_cannot_work_are_one_line(tier: Tier) -> None:
    create, given = StripedConnectorAdapter().create_connector, tier.given(striping="Shard")
    with pytest.raises(ValueError, match=r"^extra_config.save_chunk_meta: must be false"):
        create(context(given, Memory(), save_chunk_meta=True))
    with pytest.raises(ValueError, match=r"^ranks: 1 for 2 workers"):
        create(context(given | {"ranks": given["ranks"][:1]}, Memory()))
    with pytest.raises(ValueError, match=r"^wrokers: no such field"):
        create(context(given | {"wrokers": 1}, Memory()))
    nothing = context(given, Memory())
    nothing.config.extra_config = None
    with pytest.raises(ValueError, match=r"^extra_config.kvtier: missing"):
        create(nothing)
