"""LMCache's multiprocess mode: an L2 adapter that stripes chunk objects over the tier's ranks.

It stands on the public ``L2AdapterInterface``, not on stock Valkey adapters: those connect when
they are made and raise if they cannot, keep no error that a breaker could see, take no CA, and
remember the size of every key for ever.
"""

import itertools
from collections.abc import Sequence
from typing import Any

from lmcache.lmcache_native import Bitmap
from lmcache.logging import init_logger
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface
from lmcache.v1.mp_observability.event import Event, EventType
from lmcache.v1.platform import create_event_notifier

from kvtier_lmcache.config import SEPARATOR, SHARD, parse
from kvtier_lmcache.counters import HAS_METERS, publish
from kvtier_lmcache.hits import hit_is_short
from kvtier_lmcache.jobs import Kind
from kvtier_lmcache.striped import Finish, Ranks, holder
from kvtier_lmcache.tasks import Results

logger = init_logger(__name__)


def wire_key(key: Any) -> str:
    """An ``ObjectKey`` as stock LMCache writes it, so that both find each other's chunks."""
    words = [
        key.model_name,
        f"{key.kv_rank:08x}",
        f"{key.object_group_id:x}",
        key.chunk_hash.hex(),
    ]
    return SEPARATOR.join([*words, key.cache_salt] if key.cache_salt else words)


class StripedL2Adapter(L2AdapterInterface):
    """``given`` is checked by ``config.parse``; what cannot be reached is a miss, not an error.

    A lock holds nothing: Valkey evicts by itself, and a chunk that is evicted between look-up and
    load is a miss of the load. So there is nothing to unlock, and no memory of what is locked.
    """

    def __init__(self, given: dict[str, Any], l1_memory_desc: Any = None) -> None:
        config = parse(given)
        if config.striping == SHARD and len(config.ranks) != 1:
            raise ValueError("ranks: must be one with Shard; each LMCache server has its own rank")
        super().__init__()
        self._config = config
        self._stores: Results[L2StoreResult] = Results(create_event_notifier())
        self._lookups: Results[Bitmap] = Results(create_event_notifier())
        self._loads: Results[Bitmap] = Results(create_event_notifier())
        self._numbers = itertools.count()
        self._suppressed = 0
        self._closed = False
        lines = None if HAS_METERS else logger.info
        self._ranks = Ranks(
            config,
            rank_of=lambda key: holder(key.chunk_hash, len(config.ranks)),
            name=wire_key,
            told=logger.warning,
            lines=lines,
        )
        if HAS_METERS:
            publish(
                self._ranks.counts, states=self._ranks.states, suppressed=lambda: self._suppressed
            )

    def get_store_event_fd(self) -> int:
        return self._stores.fileno()

    def get_lookup_and_lock_event_fd(self) -> int:
        return self._lookups.fileno()

    def get_load_event_fd(self) -> int:
        return self._loads.fileno()

    def submit_store_task(self, keys: Sequence[Any], objects: Sequence[Any]) -> int:
        """A task fails as a whole, as the interface has it, if a chunk was not stored."""
        task, kept, sizes = self._begin(keys, objects), list(keys), [o.get_size() for o in objects]

        def finish(stored: list[bool]) -> None:
            size = sum(size for size, good in zip(sizes, stored, strict=True) if good)
            # Whatever listeners do: without a result LMCache would wait for ever.
            try:
                if any(stored):
                    self._tell_stored(
                        [key for key, good in zip(kept, stored, strict=True) if good],
                        [size for size, good in zip(sizes, stored, strict=True) if good],
                    )
            finally:
                self._stores.put(task, L2StoreResult(all(stored), size))

        self._move(Kind.STORE, keys, objects, finish)
        return task

    def pop_completed_store_tasks(self) -> dict[int, L2StoreResult]:
        return self._stores.take_all()

    def submit_lookup_and_lock_task(self, keys: Sequence[Any], group_layout_descs: Any) -> int:
        task, kept = self._begin(keys), list(keys)

        def finish(found: list[bool]) -> None:
            least = self._config.minimum_hit_chunks
            if least and any(found):
                rows = [(key.object_group_id, key.kv_rank) for key in kept]
                groups = [key.object_group_id for key in kept]
                if hit_is_short(rows, groups, found, least=least):
                    self._suppressed += 1
                    found = [False] * len(found)
            try:
                self._tell_accessed(kept, found)
            finally:
                self._lookups.put(task, _bitmap(found))

        if self._closed:
            finish([False] * len(keys))
        else:
            self._ranks.look_up(keys, finish)
        return task

    def query_lookup_and_lock_result(self, task_id: int) -> Bitmap | None:
        return self._lookups.take(task_id)

    def submit_unlock(self, keys: Sequence[Any]) -> None:
        """Nothing was held."""

    def submit_load_task(self, keys: Sequence[Any], objects: Sequence[Any]) -> int:
        """The objects' buffers are written until the task has its result, and never after."""
        task, kept = self._begin(keys, objects), list(keys)

        def finish(loaded: list[bool]) -> None:
            try:
                self._tell_accessed(kept, loaded)
            finally:
                self._loads.put(task, _bitmap(loaded))

        self._move(Kind.LOAD, keys, objects, finish)
        return task

    def query_load_result(self, task_id: int) -> Bitmap | None:
        return self._loads.take(task_id)

    def report_status(self) -> dict[str, Any]:
        """Healthy while a rank is down too: what it has is a miss, and the rest works."""
        return {
            "is_healthy": not self._closed,
            "type": "kvtier",
            "striping": self._config.striping,
            "workers": self._config.workers,
            "minimum_hit_chunks": self._config.minimum_hit_chunks,
            "short_hits_suppressed": self._suppressed,
            "ranks": self._ranks.report(),
        }

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._ranks.close()
        for each in (self._stores, self._lookups, self._loads):
            each.close()

    def _begin(self, keys: Sequence[Any], objects: Sequence[Any] | None = None) -> int:
        if objects is not None and len(keys) != len(objects):
            raise ValueError(f"{len(keys)} keys and {len(objects)} objects: must be as many")
        return next(self._numbers)

    def _move(
        self,
        kind: Kind,
        keys: Sequence[Any],
        objects: Sequence[Any],
        finish: Finish,
    ) -> None:
        if self._closed:
            finish([False] * len(keys))
        else:
            self._ranks.move(kind, keys, objects, finish)

    def _tell_accessed(self, keys: Sequence[Any], found: Sequence[bool]) -> None:
        accessed = [key for key, there in zip(keys, found, strict=True) if there]
        if accessed:
            self._notify_keys_accessed(accessed)

    def _tell_stored(self, keys: list[Any], sizes: list[int]) -> None:
        """To listeners and LMCache's event bus, past the base class's count of bytes: it is for
        evictions that LMCache decides, and here Valkey does, without a word. It would only grow,
        and so would its table by cache salt."""
        for listener in self._listeners:
            listener.on_l2_keys_stored(keys, sizes)
        what = {"backend": self._backend_name, "shared": self._shared}
        self._event_bus.publish(
            Event(
                event_type=EventType.L2_KEYS_STORED,
                metadata={"keys": keys, "sizes": sizes, **what},
            )
        )


def _bitmap(answers: Sequence[bool]) -> Bitmap:
    bitmap = Bitmap(len(answers))
    for at, each in enumerate(answers):
        if each:
            bitmap.set(at)
    return bitmap
