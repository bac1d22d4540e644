#!/usr/bin/python3
"""What stands in for vLLM in a storm: it runs in kvtier's image under vLLM's name and arguments.

It has one GPU that prefills one prompt after another at ``STORM_RATE`` tokens/s: a prompt of which
n tokens miss holds it for n / R seconds. What hits is asked of the real ranks when a prompt's turn
has come, by the mounted engine Secret, and what missed is stored when its prefill is over. So the
store, its loss and its refill are real; the arithmetic between them is not.

A prompt is a POST whose body has four bytes a token. ``?prefix=ID&tokens=N`` tells which beginning
it shares with others, and how long that is. The answer comes with the first token.
"""

import asyncio
import hashlib
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import valkey.asyncio as valkey
from aiohttp import web
from valkey.exceptions import ValkeyError

from kvtier.loadtest.connection import Connection, load

SECRET_DIR = Path("/kvtier")
PORT = 8000
BYTES_PER_TOKEN = 4
STORE_SECONDS = 0.25
"""A rank that says nothing for so long is a miss."""
VALUE_BYTES = 256


@dataclass(slots=True)
class Counted:
    """Since the start: tokens and requests, and seconds in prefill."""

    requests: int = 0
    prompt: int = 0
    hit: int = 0
    computed: int = 0
    busy: float = 0.0
    wrong: int = 0
    stalled: float = 0.0


@dataclass(slots=True)
class Prompt:
    prefix: str
    shared: int
    tokens: int
    done: "asyncio.Future[dict[str, float]]"
    arrived: float = field(default_factory=time.monotonic)


class Ranks:
    """Every rank keeps its own part of each chunk: one that lacks it makes the chunk a miss."""

    def __init__(self, connection: Connection) -> None:
        self._chunk = connection.chunk_tokens
        self._ranks = [
            (
                each.prefix,
                valkey.Valkey(
                    host=each.host,
                    port=each.port,
                    username=connection.username,
                    password=connection.password,
                    socket_timeout=STORE_SECONDS,
                    socket_connect_timeout=STORE_SECONDS,
                    lib_name=None,
                    retry=None,
                ),
            )
            for each in connection.ranks
        ]

    async def hit(self, prompt: Prompt) -> tuple[int, int]:
        """Tokens up to the first chunk that some rank lacks, and how many values were wrong."""
        found = await asyncio.gather(
            *(self._get(prefix, client, prompt) for prefix, client in self._ranks)
        )
        wrong = sum(each.count(False) for each in found)
        hit = 0
        for chunk in range(prompt.shared // self._chunk):
            if not all(len(each) > chunk and each[chunk] for each in found):
                break
            hit += self._chunk
        return hit, wrong

    async def store(self, prompt: Prompt) -> None:
        await asyncio.gather(*(self._set(prefix, client, prompt) for prefix, client in self._ranks))

    async def _get(self, prefix: str, client: "valkey.Valkey", prompt: Prompt) -> list[bool | None]:
        keys = self._keys(prefix, prompt)
        try:
            async with client.pipeline(transaction=False) as pipeline:
                for key in keys:
                    pipeline.get(key)
                values = await pipeline.execute(raise_on_error=False)
        except (ValkeyError, OSError, TimeoutError):
            return []
        return [
            value == _value(key) if isinstance(value, bytes) else None
            for key, value in zip(keys, values, strict=True)
        ]

    async def _set(self, prefix: str, client: "valkey.Valkey", prompt: Prompt) -> None:
        try:
            async with client.pipeline(transaction=False) as pipeline:
                for key in self._keys(prefix, prompt):
                    pipeline.set(key, _value(key))
                await pipeline.execute(raise_on_error=False)
        except (ValkeyError, OSError, TimeoutError):
            return

    def _keys(self, prefix: str, prompt: Prompt) -> list[str]:
        return [
            f"{prefix}@storm@{prompt.prefix}@{chunk}"
            for chunk in range(prompt.shared // self._chunk)
        ]


class Engine:
    def __init__(self, ranks: Ranks, *, rate: float) -> None:
        self.counted = Counted()
        self.waiting: asyncio.Queue[Prompt] = asyncio.Queue()
        self._ranks, self._rate = ranks, rate
        self._free_at = time.monotonic()

    async def work(self) -> None:
        """The GPU: one prompt after another, on a timetable, so that a late wake-up of a busy
        machine makes it no slower."""
        while True:
            prompt = await self.waiting.get()
            asked = time.monotonic()
            hit, wrong = await self._ranks.hit(prompt)
            begun = max(self._free_at, prompt.arrived)
            # A store that stalls holds the GPU up; one that answers at once does not count.
            stall = max(0.0, time.monotonic() - asked - 0.05)
            service = (prompt.tokens - hit) / self._rate
            self._free_at = begun + stall + service
            await asyncio.sleep(self._free_at - time.monotonic())
            counted = self.counted
            counted.requests += 1
            counted.prompt += prompt.tokens
            counted.hit += hit
            counted.computed += prompt.tokens - hit
            counted.busy += service
            counted.wrong += wrong
            counted.stalled += stall
            if hit < prompt.shared:
                await self._ranks.store(prompt)
            if not prompt.done.done():
                prompt.done.set_result({"hit": hit, "tokens": prompt.tokens, "service": service})

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.read()
        prompt = Prompt(
            prefix=request.query["prefix"],
            shared=int(request.query["tokens"]),
            tokens=len(body) // BYTES_PER_TOKEN,
            done=asyncio.get_running_loop().create_future(),
        )
        self.waiting.put_nowait(prompt)
        return web.json_response(await prompt.done)

    async def warm(self, request: web.Request) -> web.Response:
        """Store beginnings as if somebody had prefilled them: ``?first=0&last=99&tokens=N``."""
        query = request.query
        for number in range(int(query["first"]), int(query["last"]) + 1):
            done: asyncio.Future[dict[str, float]] = asyncio.get_running_loop().create_future()
            shared = int(query["tokens"])
            await self._ranks.store(
                Prompt(prefix=str(number), shared=shared, tokens=shared, done=done)
            )
        return web.Response(text="ok\n")

    async def metrics(self, _: web.Request) -> web.Response:
        """By vLLM's names, as far as anybody reads them."""
        counted, labels = self.counted, 'engine="0",model_name="storm"'
        waiting = self.waiting.qsize()
        lines = [
            f"vllm:prompt_tokens_total{{{labels}}} {counted.prompt}",
            *(
                f'vllm:prompt_tokens_by_source_total{{{labels},source="{source}"}} {tokens}'
                for source, tokens in (
                    ("local_compute", counted.computed),
                    ("local_cache_hit", 0),
                    ("external_kv_transfer", counted.hit),
                )
            ),
            f"vllm:num_requests_waiting{{{labels}}} {waiting}",
            *(
                f'vllm:num_requests_waiting_by_reason{{{labels},reason="{reason}"}} {count}'
                for reason, count in (("capacity", waiting), ("deferred", 0))
            ),
            f"vllm:request_prefill_time_seconds_sum{{{labels}}} {counted.busy}",
            f"vllm:request_prefill_time_seconds_count{{{labels}}} {counted.requests}",
            f"vllm:request_prompt_tokens_sum{{{labels}}} {counted.prompt}",
            f"vllm:request_prompt_tokens_count{{{labels}}} {counted.requests}",
            f"vllm:request_prefill_kv_computed_tokens_sum{{{labels}}} {counted.computed}",
            f"vllm:iteration_tokens_total_sum{{{labels}}} {counted.computed + counted.requests}",
            f"vllm:iteration_tokens_total_count{{{labels}}} {counted.requests}",
            f"storm_wrong_values_total {counted.wrong}",
            f"storm_stalled_seconds_total {counted.stalled}",
            f"process_start_time_seconds {STARTED}",
        ]
        return web.Response(text="\n".join(lines) + "\n", content_type="text/plain")


def _value(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest() * (VALUE_BYTES // 32)


async def _health(_: web.Request) -> web.Response:
    return web.Response(text="ok\n")


async def main() -> None:
    engine = Engine(Ranks(load(SECRET_DIR)), rate=float(os.environ["STORM_RATE"]))
    app = web.Application()
    app.router.add_post("/v1/completions", engine.answer)
    app.router.add_post("/warm", engine.warm)
    app.router.add_get("/metrics", engine.metrics)
    app.router.add_get("/health", _health)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, None, PORT).start()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    working = asyncio.create_task(engine.work())
    ended = asyncio.create_task(stop.wait())
    # A worker that failed ends the pod: an engine that serves nothing is no engine.
    await asyncio.wait({working, ended}, return_when=asyncio.FIRST_COMPLETED)
    if working.done():
        working.result()
    await runner.cleanup()


STARTED = time.time()
if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
