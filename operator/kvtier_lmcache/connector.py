"""LMCache inside the engine: a remote connector with an address and a prefix for each rank."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from lmcache.logging import init_logger
from lmcache.v1.storage_backend.connector import ConnectorAdapter
from lmcache.v1.storage_backend.connector.base_connector import RemoteConnector

from kvtier_lmcache.config import SHARD, Config, parse
from kvtier_lmcache.jobs import Kind
from kvtier_lmcache.striped import Ranks, holder

logger = init_logger(__name__)

PARAMETERS = "kvtier"
"""The name in LMCache's ``extra_config``, and of the plugin in ``remote_storage_plugins``."""
URL = f"plugin://{PARAMETERS}"

# The connector has a method named ``list``, which hides the type within it.
Objects = list[Any]
Names = list[str]
Answer = Future[list[bool]]


class StripedConnectorAdapter(ConnectorAdapter):
    """How LMCache finds the connector: by ``remote_storage_plugins: [kvtier]``."""

    def __init__(self) -> None:
        super().__init__(URL)

    def can_parse(self, url: str) -> bool:
        return url == URL or url.startswith(f"{URL}.")

    def create_connector(self, context: Any) -> RemoteConnector:
        """Raises ValueError for parameters that are nonsense; LMCache goes on without then."""
        extra = context.config.extra_config or {}
        if PARAMETERS not in extra:
            raise ValueError(f"extra_config.{PARAMETERS}: missing; use the tier's lmcache.yaml")
        if extra.get("save_chunk_meta", True):
            raise ValueError("extra_config.save_chunk_meta: must be false; chunks have no header")
        config = parse(extra[PARAMETERS])
        if config.striping == SHARD and len(config.ranks) < context.metadata.world_size:
            raise ValueError(
                f"ranks: {len(config.ranks)} for {context.metadata.world_size} workers; with Shard "
                "each needs its own"
            )
        return StripedConnector(config, context=context)


class StripedConnector(RemoteConnector):
    """Chunks have one size: LMCache is told to store no other (``save_unfull_chunk: false``).

    Nothing here raises because of a rank: LMCache would log each key.
    """

    def __init__(self, config: Config, *, context: Any) -> None:
        super().__init__(context.config, context.metadata)
        self._config = config
        self._memory = context.local_cpu_backend
        only = context.metadata.worker_id if config.striping == SHARD else None
        self._ranks = Ranks(
            config,
            rank_of=self._rank_of,
            name=lambda key: str(key.to_string()),
            told=logger.warning,
            lines=logger.info,
            only=only,
        )

    def __repr__(self) -> str:
        return f"<StripedConnector of {len(self._config.ranks)} ranks>"

    def exists_sync(self, key: Any) -> bool:
        return self.batched_contains([key]) == 1

    async def exists(self, key: Any) -> bool:
        return await self.batched_async_contains("", [key]) == 1

    def support_batched_contains(self) -> bool:
        return True

    def batched_contains(self, keys: Sequence[Any]) -> int:
        """Blocks until the ranks answer, or are known to be gone: at most the request timeout, and
        at the start of the engine the connection timeout."""
        return _leading(self._look_up(keys).result())

    async def batched_async_contains(
        self, lookup_id: str, keys: Sequence[Any], pin: bool = False
    ) -> int:
        # Shielded, as all that waits here: a worker answers though nobody waits any more.
        return _leading(await asyncio.shield(asyncio.wrap_future(self._look_up(keys))))

    def support_batched_get(self) -> bool:
        return True

    async def get(self, key: Any) -> Any:
        return (await self.batched_get([key]))[0]

    async def batched_get(self, keys: Sequence[Any]) -> Objects:
        """A memory object for each key, None where it is not there or no memory is left."""
        objects: Objects = []
        for _ in keys:
            # By default LMCache waits here until others free memory, and LMCache's event loop with
            # it: for ever, where the hit is larger than L1 and all of it is held by this very call.
            made = self._memory.allocate(
                self.meta_shapes, self.meta_dtypes, self.meta_fmt, busy_loop=False
            )
            if made is None:
                logger.warning("no memory for %d of %d chunks", len(keys) - len(objects), len(keys))
                break
            objects.append(made)
        got = self._move(Kind.LOAD, keys[: len(objects)], objects)
        try:
            loaded = await asyncio.shield(asyncio.wrap_future(got))
        except asyncio.CancelledError:
            got.add_done_callback(lambda _: _release(objects))
            raise
        _release([each for each, good in zip(objects, loaded, strict=True) if not good])
        kept = [each if good else None for each, good in zip(objects, loaded, strict=True)]
        return kept + [None] * (len(keys) - len(kept))

    async def batched_get_non_blocking(self, lookup_id: str, keys: Sequence[Any]) -> Objects:
        """The leading run of what is there; what lies behind it is released."""
        got = await self.batched_get(keys)
        end = next((at for at, each in enumerate(got) if each is None), len(got))
        _release([each for each in got[end:] if each is not None])
        return got[:end]

    def support_batched_put(self) -> bool:
        return True

    async def put(self, key: Any, memory_obj: Any) -> None:
        await self.batched_put([key], [memory_obj])

    async def batched_put(self, keys: Sequence[Any], memory_objs: Sequence[Any]) -> None:
        """What a rank does not take is dropped and counted."""
        # A reference of our own until the last byte is sent: the caller drops its own when it
        # gives up waiting, and the memory would be another chunk's while it is stored as this one.
        for each in memory_objs:
            each.ref_count_up()
        put = self._move(Kind.STORE, keys, memory_objs)
        put.add_done_callback(lambda _: _release(memory_objs))
        await asyncio.shield(asyncio.wrap_future(put))

    async def list(self) -> Names:
        return []

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._ranks.close)

    def _rank_of(self, key: Any) -> int:
        if self._config.striping == SHARD:
            # The key's worker, not this one: the scheduler looks up for the others.
            return int(key.worker_id)
        return holder(key.chunk_hash, len(self._config.ranks))

    def _look_up(self, keys: Sequence[Any]) -> Answer:
        answer: Answer = Future()
        self._ranks.look_up(keys, answer.set_result)
        return answer

    def _move(self, kind: Kind, keys: Sequence[Any], objects: Sequence[Any]) -> Answer:
        answer: Answer = Future()
        self._ranks.move(kind, keys, objects, answer.set_result)
        return answer


def _leading(found: list[bool]) -> int:
    return next((at for at, there in enumerate(found) if not there), len(found))


def _release(objects: Sequence[Any]) -> None:
    for each in objects:
        each.ref_count_down()
