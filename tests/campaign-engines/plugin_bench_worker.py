"""Runs in LMCache's environment: times adapters of one process, in turns, and prints what it took.

Reads ``{"adapters": {name: configuration}, "chunks": n, "chunk_bytes": n, "turns": n}`` from stdin,
prints ``{name: {"store"|"lookup"|"load": [seconds, ...]}}`` as its last line. A turn is the same
chunks stored, looked up and loaded by each adapter; LMCache's own objects and descriptors.
"""

import json
import sys
from itertools import permutations
from time import perf_counter, sleep
from typing import Any

from lmcache.cli.commands.bench.l2_adapter_bench import data
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.l2_adapters import create_l2_adapter
from lmcache.v1.distributed.l2_adapters.config import get_l2_adapter_config_class

WARM = 6
"""Turns that do not count: connections, and the servers' first memory."""


def main() -> None:
    asked = json.load(sys.stdin)
    adapters = {name: _adapter(config) for name, config in asked["adapters"].items()}
    size, count = asked["chunk_bytes"], asked["chunks"]
    buffer = data.make_aligned_tensor(2 * size * count)
    stored = data.make_memory_objects(buffer, count, size, 0, fill_offset=1)
    loaded = data.make_memory_objects(buffer, count, size, size * count)
    keys = [
        ObjectKey(chunk_hash=bytes([number * 7 % 256]) * 32, model_name="bench", kv_rank=0)
        for number in range(count)
    ]
    took: dict[str, dict[str, list[float]]] = {
        name: {"store": [], "lookup": [], "load": []} for name in adapters
    }
    orders = list(permutations(adapters))
    for turn in range(WARM + asked["turns"]):
        # What an adapter left in caches and buffers is the next one's: each follows each as often.
        for name in orders[turn % len(orders)]:
            seconds = _turn(adapters[name], keys, stored, loaded)
            if turn >= WARM:
                for what, each in seconds.items():
                    took[name][what].append(each)
    for adapter in adapters.values():
        adapter.close()
    print(json.dumps(took))


def _adapter(config: dict[str, Any]) -> Any:
    made = create_l2_adapter(get_l2_adapter_config_class(config["type"]).from_dict(config))
    # The plugin connects behind the scenes.
    sleep(2)
    return made


def _turn(adapter: Any, keys: list[Any], stored: list[Any], loaded: list[Any]) -> dict[str, float]:
    for each in loaded:
        each.raw_data.zero_()
    layouts: dict[int, MemoryLayoutDesc] = {}
    begun = perf_counter()
    task = adapter.submit_store_task(keys, stored)
    results: dict[int, Any] = {}
    while task not in results:
        data.wait_eventfd(adapter.get_store_event_fd())
        results |= adapter.pop_completed_store_tasks()
    assert results[task].is_successful()
    store = perf_counter()
    task = adapter.submit_lookup_and_lock_task(keys, layouts)
    found = None
    while found is None:
        data.wait_eventfd(adapter.get_lookup_and_lock_event_fd())
        found = adapter.query_lookup_and_lock_result(task)
    lookup = perf_counter()
    load = adapter.submit_load_task(keys, loaded)
    got = None
    while got is None:
        data.wait_eventfd(adapter.get_load_event_fd())
        got = adapter.query_load_result(load)
    end = perf_counter()
    adapter.submit_unlock(keys)
    assert found.popcount() == got.popcount() == len(keys)
    for before, after in zip(stored, loaded, strict=True):
        assert bytes(before.byte_array[:64]) == bytes(after.byte_array[:64])
        assert bytes(before.byte_array[-64:]) == bytes(after.byte_array[-64:])
    return {"store": store - begun, "lookup": lookup - store, "load": end - lookup}


main()
