"""One engine in this process, against servers of this machine."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvtier.loadtest.connection import load
from kvtier.loadtest.engine import Engine, EngineSettings
from kvtier.loadtest.report import Results
from kvtier.loadtest.run import Gathered, Plan
from kvtier.loadtest.striping import Striping
from kvtier.loadtest.workload import Workload

LOAD = Workload(rate=20, prompt_tokens=2048, prefixes=4, prefix_tokens=1024, seed=1)
"""Eight chunks a prompt, four of them shared. At 20,000 tokens/s a miss takes 0.1 s."""

BUSY = replace(LOAD, rate=50, prefix_tokens=2048)
"""Once the beginnings are stored, every request is a hit of all its chunks."""
SIZE = 65536
"""What the small tier stores of a chunk on a rank."""


def drive(
    secret: Path,
    *,
    seconds: float = 1.0,
    workload: Workload = LOAD,
    striping: Striping | None = None,
    max_bytes: int = 1 << 30,
    during: "During | None" = None,
) -> Results:
    """Run to the end; ``during`` runs meanwhile, and the engine ends with it."""
    plan = Plan(
        connection=load(secret).striped(striping),
        workload=workload,
        engines=1,
        seconds=seconds if during is None else 60.0,
        max_bytes=max_bytes,
    )
    engine = Engine(
        EngineSettings(
            number=0,
            run=str(time.monotonic_ns()),
            connection=plan.connection,
            workload=plan.workload,
            seconds=plan.seconds,
            max_bytes=plan.max_bytes,
        )
    )
    engine.connect()
    begin = time.monotonic()
    gathered = Gathered(plan, begin=time.time())
    running = threading.Thread(target=engine.run, args=(gathered.add,), kwargs={"begin": begin})
    running.start()
    try:
        if during:
            during(engine, Watch(engine))
    finally:
        if during:
            engine.stop()
        running.join()
    return gathered.results(seconds=time.monotonic() - begin, ended_by="Duration")


During = Callable[[Engine, "Watch"], None]


class Watch:
    """Waits for what an engine has come to."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def outages(self) -> list[Any]:
        return [outage for rank in self._engine.ranks for outage in rank.outages()]

    def read(self, rank: int) -> int:
        return self._engine.ranks[rank].measures().bytes_read

    def until(self, reached: Callable[[], object], *, what: str, seconds: float = 20.0) -> None:
        deadline = time.monotonic() + seconds
        while not reached():
            assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
            time.sleep(0.02)


def until_read(chunks: int) -> During:
    """Until rank 1 has read so many more chunks; both ranks read a request's at once."""

    def wait(_: Engine, watch: Watch) -> None:
        watch.until(lambda: watch.read(1) >= chunks * SIZE, what=f"{chunks} chunks read")

    return wait
