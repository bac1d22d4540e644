"""A program of the engines' environment: LMCache's own L2 adapter, driven by lines of JSON.

It reads a request a line and writes an answer a line. The adapter comes from LMCache's factory, as
in its server, so that whatever ``--l2-adapter`` takes can be driven: stock ones and plugins. A
chunk is known by its number; its bytes follow from the number. Times are seconds from submit until
LMCache would have read the result. ``adapter_driver`` is the other end.
"""

import argparse
import ctypes
import hashlib
import json
import os
import select
import sys
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

MODEL = "fault"
LIMIT = 600.0
"""Seconds that any one request may take."""
CHUNK_BYTES = 4096
"""Of a chunk that goes through LMCache's storage manager."""


def main() -> None:
    # Whatever LMCache prints goes to stderr; the answers have stdout for themselves.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    driven = Driven()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(driven, f"do_{request.pop('do')}")(**request)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
    # Threads that wait for a rank that is not there would hold the process.
    os._exit(0)


class Driven:
    def __init__(self) -> None:
        self._adapter: Any = None

    def do_open(self, *, adapter: dict[str, Any]) -> dict[str, Any]:
        begun = time.monotonic()
        self._adapter = _create(adapter)
        return {"seconds": time.monotonic() - begun}

    def do_store(self, **what: Any) -> dict[str, Any]:
        keys, objects = _keys(**what), _Objects(**what)
        for number, buffer in zip(objects.numbers, objects.buffers, strict=True):
            buffer[:] = _content(number, len(buffer))
        begun = time.monotonic()
        task = self._adapter.submit_store_task(keys, objects.lmcache)
        found: dict[int, Any] = {}
        _wait(
            self._adapter.get_store_event_fd(),
            lambda: found.update(self._adapter.pop_completed_store_tasks()) or task in found,
        )
        return {"seconds": time.monotonic() - begun, "stored": found[task].is_successful()}

    def do_lookup(self, *, requests: list[dict[str, Any]]) -> dict[str, Any]:
        """Several at once, as LMCache's server has them of several prompts."""
        begun = time.monotonic()
        keys = [_keys(**each) for each in requests]
        tasks = [self._adapter.submit_lookup_and_lock_task(each, {}) for each in keys]
        seconds, hits = [0.0] * len(tasks), [0] * len(tasks)
        left = dict(enumerate(tasks))

        def done() -> bool:
            for number, task in list(left.items()):
                bitmap = self._adapter.query_lookup_and_lock_result(task)
                if bitmap is not None:
                    seconds[number] = time.monotonic() - begun
                    found = [key for at, key in enumerate(keys[number]) if bitmap.test(at)]
                    hits[number] = len(found)
                    self._adapter.submit_unlock(found)
                    del left[number]
            return not left

        _wait(self._adapter.get_lookup_and_lock_event_fd(), done)
        return {"seconds": seconds, "hits": hits}

    def do_load(self, **what: Any) -> dict[str, Any]:
        keys, objects = _keys(**what), _Objects(**what)
        begun = time.monotonic()
        task = self._adapter.submit_load_task(keys, objects.lmcache)
        found: list[Any] = []

        def done() -> bool:
            bitmap = self._adapter.query_load_result(task)
            if bitmap is not None:
                found.append(bitmap)
            return bool(found)

        _wait(self._adapter.get_load_event_fd(), done)
        hits = [at for at in range(len(keys)) if found[0].test(at)]
        right = sum(
            bytes(objects.buffers[at]) == _content(objects.numbers[at], len(objects.buffers[at]))
            for at in hits
        )
        return {"seconds": time.monotonic() - begun, "hits": len(hits), "right": right}

    def do_status(self) -> dict[str, Any]:
        status: dict[str, Any] = self._adapter.report_status()
        return {"status": json.loads(json.dumps(status, default=str))}

    def do_remembered(self) -> dict[str, Any]:
        """What the adapter counts as stored: bytes, and keys of which it keeps the size."""
        sizes = getattr(self._adapter, "_key_sizes", None)
        return {
            "bytes": self._adapter.get_usage().total_bytes_used,
            "keys": None if sizes is None else len(sizes),
        }

    def do_key_bytes(self, *, keys: int) -> dict[str, Any]:
        """Memory that a map from keys to sizes takes for each."""
        _keys(chunks=1, kv_ranks=[0])
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        sizes = dict.fromkeys(_keys(chunks=keys, kv_ranks=[0]), CHUNK_BYTES)
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return {"bytes": (after - before) / len(sizes)}

    def do_close(self) -> dict[str, Any]:
        self._adapter.close()
        return {}

    def do_kv_rank(self, *, tensor: int, servers: int) -> dict[str, Any]:
        """The rank part of each worker's keys, by LMCache's own code of vLLM's side."""
        from lmcache.integration.vllm.vllm_multi_process_adapter import ParallelStrategy
        from lmcache.v1.distributed.api import ObjectKey

        found = []
        for worker in range(tensor):
            of = ParallelStrategy(
                mla_only=False,
                vllm_world_size=tensor,
                vllm_worker_id=worker,
                tp_size=tensor,
                pp_size=1,
                n_servers=servers,
            )
            world, rank = of.kv_world_size, of.kv_worker_id
            found.append(ObjectKey.ComputeKVRank(world, rank, world, rank))
        return {"kv_ranks": found}

    def do_flags(self) -> dict[str, Any]:
        """What ``lmcache server`` takes, and the fields of the connectors' configuration."""
        from lmcache.cli.commands.server import ServerCommand
        from lmcache.v1.config import LMCacheEngineConfig

        parser = argparse.ArgumentParser()
        ServerCommand().add_arguments(parser)
        flags = [flag for action in parser._actions for flag in action.option_strings]
        fields = sorted(vars(LMCacheEngineConfig.from_defaults()))
        return {"server": flags, "in_process": fields}

    def do_fields(self, *, kind: str) -> dict[str, Any]:
        """What an adapter's configuration can say, by its own help."""
        from lmcache.v1.distributed.l2_adapters.config import get_l2_adapter_config_class

        return {"help": get_l2_adapter_config_class(kind).help()}

    def do_hits(
        self, *, adapters: list[dict[str, Any]], policy: str, chunks: int, times: int
    ) -> dict[str, Any]:
        """One prefix looked up and read ``times`` times through LMCache's storage manager, which is
        what its server has: how many chunks of each time came from L1, and how many from L2."""
        return {"served": list(_served(adapters, policy=policy, chunks=chunks, times=times))}

    def do_put(self, *, adapters: list[dict[str, Any]], chunks: int) -> dict[str, Any]:
        """Written through LMCache's storage manager, as an engine's chunks are."""
        keys = _keys(chunks=chunks, kv_ranks=[0x01000100])
        manager, layout = _manager(adapters, policy="default")
        manager.reserve_write(keys, layout)
        manager.finish_write(keys)
        deadline = time.monotonic() + LIMIT / 10
        done = False
        while not done and time.monotonic() < deadline:
            time.sleep(0.05)
            stored = [each.get_usage().total_bytes_used for _, each in manager.l2_adapters()]
            done = min(stored) >= chunks * CHUNK_BYTES
        manager.close()
        return {"done": done}


def _create(adapter: dict[str, Any]) -> Any:
    from lmcache.v1.distributed.l2_adapters import create_l2_adapter
    from lmcache.v1.distributed.l2_adapters.config import parse_args_to_l2_adapters_config

    options = argparse.Namespace(l2_adapter=[json.dumps(adapter)])
    (config,) = parse_args_to_l2_adapters_config(options).adapters
    return create_l2_adapter(config)


def _keys(
    *, chunks: int, kv_ranks: list[int], first: int = 0, chunk_bytes: int = 0, dtype: str = ""
) -> list[Any]:
    """As LMCache orders them: all chunks of a rank, then those of the next."""
    from lmcache.v1.distributed.api import ObjectKey

    return [
        ObjectKey(chunk_hash=chunk_hash(first + at), model_name=MODEL, kv_rank=rank)
        for rank in kv_ranks
        for at in range(chunks)
    ]


def chunk_hash(number: int) -> bytes:
    return hashlib.sha256(number.to_bytes(8, "big")).digest()


def _content(number: int, size: int) -> bytes:
    return hashlib.shake_128(number.to_bytes(8, "big")).digest(size)


class _Objects:
    """LMCache's objects for these chunks and ranks, and their bytes.

    ``numbers`` tell the content of each, which differs by rank too.
    """

    def __init__(
        self,
        *,
        chunks: int,
        kv_ranks: list[int],
        chunk_bytes: int,
        first: int = 0,
        dtype: str = "uint8",
    ) -> None:
        import torch
        from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj

        count = chunks * len(kv_ranks)
        self.numbers = [(rank << 32) + first + at for rank in kv_ranks for at in range(chunks)]
        self._raw = torch.zeros(count * chunk_bytes, dtype=torch.uint8)
        self.lmcache = []
        self.buffers = []
        kind = getattr(torch, dtype)
        for at in range(count):
            raw = self._raw[at * chunk_bytes : (at + 1) * chunk_bytes]
            place = (ctypes.c_ubyte * chunk_bytes).from_address(raw.data_ptr())
            self.buffers.append(memoryview(place).cast("B"))
            metadata = MemoryObjMetadata(
                shape=torch.Size([chunk_bytes // kind.itemsize]),
                dtype=kind,
                address=at * chunk_bytes,
                phy_size=chunk_bytes,
                fmt=MemoryFormat.KV_2LTD,
                ref_count=1,
            )
            self.lmcache.append(
                TensorMemoryObj(raw_data=raw, metadata=metadata, parent_allocator=None)
            )


def _manager(adapters: list[dict[str, Any]], *, policy: str) -> tuple[Any, Any]:
    """LMCache's storage manager, and the layout of chunks of CHUNK_BYTES."""
    import torch
    from lmcache.v1.distributed.api import MemoryLayoutDesc
    from lmcache.v1.distributed.config import parse_args
    from lmcache.v1.distributed.storage_manager import StorageManager

    arguments = ["--l1-size-gb", "1", "--no-l1-use-lazy", "--eviction-policy", "LRU"]
    arguments += ["--l2-prefetch-policy", policy]
    for adapter in adapters:
        arguments += ["--l2-adapter", json.dumps(adapter)]
    layout = MemoryLayoutDesc(shapes=[torch.Size([CHUNK_BYTES])], dtypes=[torch.uint8])
    return StorageManager(parse_args(arguments)), layout


def _served(
    adapters: list[dict[str, Any]], *, policy: str, chunks: int, times: int
) -> Iterator[dict[str, Any]]:
    from lmcache.v1.distributed.api import GroupedObjectKeys, PrefetchTaskSpec

    keys = _keys(chunks=chunks, kv_ranks=[0x01000100])
    manager, layout = _manager(adapters, policy=policy)
    row = GroupedObjectKeys(keys=keys, object_group_id=0, layout_desc=layout)
    try:
        for _ in range(times):
            handle = manager.submit_prefetch_task(PrefetchTaskSpec(key_groups=[row]))
            manager.wait_prefetch_status(handle, LIMIT)
            result = manager.query_prefetch_status(handle)
            with manager.read_prefetched_results(keys) as objects:
                complete = objects is not None
            if complete:
                manager.finish_read_prefetched(keys)
            yield {"l1": result.l1_hit_count, "l2": result.l2_hit_count, "read": complete}
    finally:
        manager.close()


def _wait(descriptor: int, done: Any) -> None:
    from lmcache.v1.platform import consume_fd

    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    deadline = time.monotonic() + LIMIT
    while not done():
        left = deadline - time.monotonic()
        if left < 0:
            raise TimeoutError(f"no result after {LIMIT:g} s")
        # An adapter may tell of a result just before it can be read: ask again soon.
        if poller.poll(min(left, 0.05) * 1e3):
            consume_fd(descriptor)


if __name__ == "__main__":
    main()
