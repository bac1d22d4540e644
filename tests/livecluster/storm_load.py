"""Requests at random moments, as a gateway's clients send them, and what became of each."""

import asyncio
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import aiohttp

BYTES_PER_TOKEN: Final = 4
GIVE_UP_SECONDS: Final = 600.0
"""Of one request: a queue that diverges is to be seen, not cut off."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Poisson arrivals of prompts of ``tokens``, the first ``shared`` of which are one of
    ``prefixes`` beginnings, each as likely."""

    requests_per_second: float
    tokens: int
    shared: int
    prefixes: int


@dataclass(slots=True)
class Sent:
    """One request. ``at`` and ``ttft`` are seconds, ``at`` of ``time.time()``; ``status`` is 0 for
    one that got no answer, ``hit`` are tokens, ``retry_after`` seconds where it was told."""

    at: float
    status: int | None = None
    ttft: float | None = None
    hit: int = 0
    retry_after: int | None = None
    error: str = ""


@dataclass(slots=True)
class Load:
    """What was sent until now. ``late`` is by how much the generator was ever behind [s]."""

    traffic: Traffic
    sent: list[Sent] = field(default_factory=list)
    late: float = 0.0

    def between(self, begin: float, end: float) -> list[Sent]:
        return [each for each in self.sent if begin <= each.at < end]


@contextmanager
def traffic(url: str, of: Traffic, *, seed: int) -> Iterator[Load]:
    """Send to ``url`` until the block ends, then wait until all that was sent is answered."""
    load, stop = Load(of), threading.Event()
    thread = threading.Thread(
        target=lambda: asyncio.run(_send(url, load, stop, random.Random(seed))), daemon=True
    )
    thread.start()
    try:
        yield load
    finally:
        stop.set()
        thread.join(GIVE_UP_SECONDS)
    assert not thread.is_alive(), "requests are still under way"


async def _send(url: str, load: Load, stop: threading.Event, lot: random.Random) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=GIVE_UP_SECONDS)
    body = b"x" * (load.traffic.tokens * BYTES_PER_TOKEN)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        under_way: set[asyncio.Task[None]] = set()
        due = time.monotonic()
        while not stop.is_set():
            due += lot.expovariate(load.traffic.requests_per_second)
            await asyncio.sleep(due - time.monotonic())
            load.late = max(load.late, time.monotonic() - due)
            sent = Sent(at=time.time())
            load.sent.append(sent)
            query = {
                "prefix": str(lot.randrange(load.traffic.prefixes)),
                "tokens": str(load.traffic.shared),
            }
            task = asyncio.ensure_future(_one(session, url, query, body, sent))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
        if under_way:
            await asyncio.wait(under_way)


async def _one(
    session: aiohttp.ClientSession, url: str, query: dict[str, str], body: bytes, sent: Sent
) -> None:
    begun = time.monotonic()
    try:
        async with session.post(url, params=query, data=body) as response:
            answer = await response.read()
            sent.status = response.status
            if response.status == 200:
                sent.ttft = time.monotonic() - begun
                sent.hit = int((await response.json())["hit"]) if answer else 0
            elif "Retry-After" in response.headers:
                sent.retry_after = int(response.headers["Retry-After"])
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        sent.status, sent.error = 0, repr(error)


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest that is not below ``share`` of them."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
