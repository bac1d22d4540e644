"""A program of the engines' environment: the LMCache that an engine's workers have inside them.

All of it is LMCache's own, from the file that LMCACHE_CONFIG_FILE names to the engine's store,
lookup and retrieve: only what copies between device and memory is not, since LMCache has none for a
CPU. It listens on the socket that is its argument. Each connection gets a process of its own, that
is forked once torch and vLLM are imported, which is most of a worker's start: a request a line, an
answer a line, and the end of the connection is its end. A prompt is known by its number; its tokens
and bytes follow from it. ``in_process_tier`` is the other end.
"""

import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from socket import AF_UNIX, socket
from typing import Any

import torch
from lmcache.v1.config import load_engine_config_with_overrides
from lmcache.v1.gpu_connector.mock_gpu_connector import MockGPUConnector
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.standalone.manager import StandaloneLMCacheManager
from vllm.v1.core import kv_cache_utils  # noqa: F401  LMCache imports it for its hashes

L1, TIER = "LocalCPUBackend", "RemoteBackend-kvtier"
"""LMCache's names of the backends that the file asks for."""
LIMIT = 60.0
"""Seconds that what is put may take until it is there."""
AGAIN = 3.0
"""Seconds until it is put again: on a machine that stands still for a second, a request times out,
and what was put is dropped."""


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket(AF_UNIX) as listening:
        listening.bind(sys.argv[1])
        listening.listen()
        while True:
            connection, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                _serve(connection)
            connection.close()


def _serve(connection: socket) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    worker: Worker | None = None
    with connection.makefile("rw") as lines:
        for line in lines:
            request = json.loads(line)
            try:
                do = request.pop("do")
                if do == "open":
                    _become(request.pop("environment"), said=request.pop("said"))
                    worker = Worker(**request)
                answer = getattr(worker, f"do_{do}")(**({} if do == "open" else request))
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            lines.write(json.dumps(answer) + "\n")
            lines.flush()
    # Threads that wait for a rank that is not there would hold the process.
    os._exit(0)


def _become(environment: dict[str, str], *, said: str) -> None:
    """As if it had been started in this environment; what LMCache prints goes to a file."""
    os.environ.update(environment)
    sys.path[1:1] = environment["PYTHONPATH"].split(":")
    log = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)


class Device(MockGPUConnector):  # type: ignore[misc]
    """The KV of each prompt as this device computes it, and how much of what comes back is that."""

    load_stream = None

    def __init__(self, shape: tuple[int, ...], worker: int) -> None:
        super().__init__(shape)
        self._worker = worker
        self.right = 0

    def batched_from_gpu(
        self, memory_objs: Sequence[Any], starts: Sequence[int], ends: Sequence[int], **what: Any
    ) -> None:
        for each, start in zip(memory_objs, starts, strict=True):
            memoryview(each.byte_array).cast("B")[:] = self._kv(each, what["prompt"], start)

    def batched_to_gpu(
        self, memory_objs: Sequence[Any], starts: Sequence[int], ends: Sequence[int], **what: Any
    ) -> None:
        self.right += sum(
            bytes(each.byte_array) == self._kv(each, what["prompt"], start)
            for each, start in zip(memory_objs, starts, strict=True)
        )

    def _kv(self, memory: Any, prompt: int, start: int) -> bytes:
        name = f"{self._worker} {prompt} {start}".encode()
        return hashlib.shake_128(name).digest(len(memory.byte_array))


class Worker:
    """One of ``world``. ``shape``: layers, K and V, chunk tokens, heads, head size."""

    def __init__(
        self, *, worker: int, world: int, model: str, shape: Sequence[int], mla: bool
    ) -> None:
        self._config = load_engine_config_with_overrides()
        dimensions = tuple(shape)
        self._device = Device(dimensions, worker)
        metadata = LMCacheMetadata(
            model_name=model,
            world_size=world,
            local_world_size=world,
            worker_id=worker,
            local_worker_id=worker,
            kv_dtype=torch.bfloat16,
            kv_shape=dimensions,
            use_mla=mla,
            role="worker",
            chunk_size=self._config.chunk_size,
        )
        begun = time.monotonic()
        # With its health monitor, which can turn all of it off.
        manager = StandaloneLMCacheManager(
            self._config,
            metadata,
            gpu_connector=self._device,
            broadcast_fn=_to_nobody,
            broadcast_object_fn=_to_nobody,
        )
        manager.post_init()
        self._seconds = time.monotonic() - begun
        self._engine = manager.lmcache_engine

    def do_open(self) -> dict[str, Any]:
        stores = self._engine.storage_manager
        return {
            "seconds": self._seconds,
            "backends": [] if stores is None else list(stores.storage_backends),
            "min_retrieve_tokens": self._config.min_retrieve_tokens,
        }

    def do_store(self, *, prompt: int, chunks: int, there: bool = True) -> dict[str, Any]:
        """Seconds until LMCache goes on and, with ``there``, until it is in the tier."""
        tokens = self._tokens(prompt, chunks)
        begun = time.monotonic()
        self._engine.store(tokens=tokens, prompt=prompt)
        returned = time.monotonic() - begun
        if there:
            keys, again = self._keys(tokens), begun + AGAIN
            while self._tier.batched_contains(keys) < chunks:
                now = time.monotonic()
                if now > begun + LIMIT:
                    raise TimeoutError(f"not in the tier after {LIMIT:g} s")
                if now > again:
                    again = now + AGAIN
                    self._engine.store(tokens=tokens, prompt=prompt)
                time.sleep(0.002)
        return {"returned": returned, "seconds": time.monotonic() - begun}

    def do_lookup(self, *, prompt: int, chunks: int) -> dict[str, Any]:
        tokens = self._tokens(prompt, chunks)
        return self._timed(lambda: self._engine.lookup(tokens) // self._config.chunk_size)

    def do_retrieve(self, *, prompt: int, chunks: int, pinned: str | None = None) -> dict[str, Any]:
        """``pinned``: by the lookup of that name, as an engine does; else without one."""
        tokens, right = self._tokens(prompt, chunks), self._device.right

        def load() -> int:
            what = {} if pinned is None else {"req_id": pinned}
            loaded = self._engine.retrieve(tokens, prompt=prompt, **what)
            return int(loaded.sum()) // self._config.chunk_size

        found = self._timed(load)
        if pinned is not None:
            self._engine.lookup_unpin(pinned)
        return found | {"right": self._device.right - right}

    def do_pin(self, *, prompt: int, chunks: int, name: str) -> dict[str, Any]:
        """A lookup as the scheduler has it, some time before the load."""
        tokens = self._tokens(prompt, chunks)
        found = self._engine.lookup(tokens, lookup_id=name, pin=True)
        return {"chunks": found // self._config.chunk_size}

    def do_get(self, *, prompt: int, chunks: int) -> dict[str, Any]:
        """From the tier alone, and of keys that nobody looked up just before."""
        keys = self._keys(self._tokens(prompt, chunks))

        def get() -> int:
            got = self._engine.storage_manager.batched_get(keys, location=TIER)
            kept = [each for each in got if each is not None]
            for each in kept:
                each.ref_count_down()
            return len(kept)

        return self._timed(get)

    def do_found(self, *, prompt: int, chunks: int) -> dict[str, Any]:
        """The leading chunks that are in the tier, whatever this worker keeps itself."""
        keys = self._keys(self._tokens(prompt, chunks))
        return self._timed(lambda: self._tier.batched_contains(keys))

    def do_forget(self) -> dict[str, Any]:
        """All that this worker keeps itself, once nobody uses it any more."""
        begun = time.monotonic()
        stores = self._engine.storage_manager
        while stores.storage_backends[L1].get_keys():
            if time.monotonic() > begun + LIMIT:
                raise TimeoutError(f"still in use after {LIMIT:g} s")
            stores.clear([L1])
            time.sleep(0.002)
        return {}

    def do_keys(self, *, prompt: int, chunks: int) -> dict[str, Any]:
        keys = self._keys(self._tokens(prompt, chunks))
        return {"keys": [key.to_string() for key in keys], "hashes": [k.chunk_hash for k in keys]}

    def do_health(self) -> dict[str, Any]:
        return {"healthy": self._engine.is_healthy()}

    @property
    def _tier(self) -> Any:
        return self._engine.storage_manager.storage_backends[TIER]

    def _tokens(self, prompt: int, chunks: int) -> list[int]:
        return [prompt * 1000 + at % 1000 for at in range(chunks * self._config.chunk_size)]

    def _keys(self, tokens: list[int]) -> list[Any]:
        return [key for _, _, key in self._engine.token_database.process_tokens(tokens)]

    def _timed(self, do: Callable[[], int]) -> dict[str, Any]:
        begun = time.monotonic()
        chunks = do()
        return {"seconds": time.monotonic() - begun, "chunks": chunks}


def _to_nobody(what: Any, source: int) -> None:
    """A worker's broadcast: what it has is for itself here."""


if __name__ == "__main__":
    main()
