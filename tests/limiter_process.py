"""The limiter as a process of its own, over tiers that a file tells; and what tests ask of it.

The file has {"NAMESPACE/NAME": {"mode", "limit", "max_queued", "mean_prompt", "state", "age"}}. It
is read again ten times a second, so that a test can tighten a limit while requests come.
"""

import argparse
import asyncio
import http.client
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvtier.admission.storm import Limit, State, Storm
from kvtier.limiter.app import serving
from kvtier.limiter.peers import Address
from kvtier.limiter.run import without_garbage
from kvtier.limiter.tier import TierView
from kvtier.reconcile.clock import SystemClock

TIER = "prod/llama"


def view_of(key: str, told: Mapping[str, Any], *, now: float) -> TierView:
    """``age``: for how many seconds the state has been."""
    namespace, _, name = key.partition("/")
    limit = told.get("limit")
    state = State(told.get("state", "Open" if limit is None else "Storm"))
    return TierView(
        namespace=namespace,
        name=name,
        mode=told.get("mode", "Enforce"),
        storm=Storm(state=state, since=now - told.get("age", 0.0)),
        limit=Limit(limit, told.get("max_queued"), "the test says so", None, limit or 0.0),
        engines=4,
        computed_rate=None,
        known_at=now,
        mean_prompt=told.get("mean_prompt", 1000.0),
        queued_seen=told.get("queued_seen"),
    )


class FixedTiers:
    """Tiers as they were last told."""

    def __init__(self) -> None:
        self.views: dict[tuple[str, str], TierView] = {}
        self.offered: dict[tuple[str, str], float] = {}

    def tell(self, told: Mapping[str, Mapping[str, Any]], *, now: float) -> None:
        views = [view_of(key, each, now=now) for key, each in told.items()]
        self.views = {(view.namespace, view.name): view for view in views}

    def get(self, namespace: str, name: str) -> TierView | None:
        return self.views.get((namespace, name))

    def all(self) -> Iterable[TierView]:
        return self.views.values()

    def set_offered(self, namespace: str, name: str, tokens_per_second: float) -> None:
        self.offered[namespace, name] = tokens_per_second


@dataclass(slots=True)
class Limiter:
    """A process that listens on ``port`` of 127.0.0.1, once it ``is_ready``."""

    process: subprocess.Popen[bytes]
    port: int

    def get(self, path: str, **headers: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(self.get("/state")[1])
        return state

    def is_ready(self) -> bool:
        try:
            return self.get("/readyz")[0] == 200
        except OSError:
            return False

    def cpu_seconds(self) -> float:
        """User and system time since its start."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


def start(port: int, *, tiers: Path, peers: Path | None = None, drain: float = 0.0) -> Limiter:
    """``peers`` is a file with the ports of all replicas, a line each, read as DNS is."""
    command = [sys.executable, __file__, f"--port={port}", f"--tiers={tiers}", f"--drain={drain}"]
    if peers is not None:
        command.append(f"--peers={peers}")
    return Limiter(subprocess.Popen(command), port)


@contextmanager
def limiter(
    port: int, *, tiers: Path, peers: Path | None = None, drain: float = 0.0
) -> Iterator[Limiter]:
    running = start(port, tiers=tiers, peers=peers, drain=drain)
    try:
        until(running.is_ready)
        yield running
    finally:
        running.process.kill()
        running.process.wait()


def until(holds: Any, *, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.02)


async def _run(arguments: argparse.Namespace) -> None:
    tiers, clock = FixedTiers(), SystemClock()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)

    async def resolve() -> frozenset[Address]:
        if arguments.peers is None:
            return frozenset()
        lines = arguments.peers.read_text().split()
        return frozenset(("127.0.0.1", int(line)) for line in lines)

    async def follow() -> None:
        seen: tuple[int, float] = (0, 0.0)
        while True:
            now = clock.monotonic()
            changed = arguments.tiers.stat().st_mtime_ns
            if changed != seen[0] or now - seen[1] >= 1.0:
                tiers.tell(json.loads(arguments.tiers.read_text()), now=now)
                seen = (changed, now)
            await asyncio.sleep(0.1)

    following = asyncio.create_task(follow())
    async with serving(
        listen=f"127.0.0.1:{arguments.port}",
        replica=f"limiter-{arguments.port}",
        tiers=tiers,
        clock=clock,
        resolve=resolve,
        drain=arguments.drain,
    ):
        without_garbage()
        await stop.wait()
    following.cancel()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--tiers", type=Path)
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--drain", type=float)
    asyncio.run(_run(parser.parse_args()))
