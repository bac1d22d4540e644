"""What does a scrape of a thousand tiers of eight ranks take, in time and memory?"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from livecluster import figures
from webhook_process import free_port

TIERS, RANKS, SCRAPES = 1000, 8, 9
MOST_SECONDS = 1.0
MOST_BYTES = 30 * 2**20
LONGEST_WAIT = 0.25
"""Seconds for which somebody else may have to wait for an answer while a scrape goes on."""
SERVER = Path(__file__).with_name("scrape_server.py")


@dataclass(frozen=True, slots=True)
class Process:
    """A server of metrics: ``told`` is what it said of itself."""

    port: int
    pid: int
    told: dict[str, int]

    def memory(self, field: str) -> int:
        """``VmRSS`` or ``VmHWM``, the most that it ever had, in bytes."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))

    def forget_peak(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def get(self, path: str) -> bytes:
        with urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
            body: bytes = answer.read()
        return body


@contextmanager
def served(tiers: int) -> Iterator[Process]:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, str(SERVER), str(port), str(tiers)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        with process.stdout as said:
            yield Process(port, process.pid, json.loads(said.readline()))
    finally:
        process.terminate()
        process.wait(timeout=10)


@pytest.mark.timeout(300)
def test_a_scrape_of_a_thousand_tiers_takes_below_a_second_and_30_mib() -> None:
    with served(TIERS) as server:
        body = server.get("/metrics")
        server.forget_peak()
        before, taken, waits = server.memory("VmRSS"), [], []
        for _ in range(SCRAPES):
            done = threading.Event()
            asking = threading.Thread(target=ask, args=(server, done, waits))
            asking.start()
            began = time.monotonic()
            server.get("/metrics")
            taken.append(time.monotonic() - began)
            done.set()
            asking.join()
        grown = server.memory("VmHWM") - before
        told = server.told
    samples = [
        sample
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
        if "tier" in sample.labels
    ]
    assert len(samples) == told["series"]
    assert sum(sample.name == "kvtier_rank_up" for sample in samples) == TIERS * RANKS
    write(told, body=len(body), taken=taken, grown=grown, waits=waits)
    assert median(taken) < MOST_SECONDS
    assert len(body) < MOST_BYTES
    assert told["table_bytes"] < MOST_BYTES
    assert grown < MOST_BYTES / 10
    assert median(waits) < LONGEST_WAIT


def ask(server: Process, done: threading.Event, waits: list[float]) -> None:
    """Somebody else's question, again and again while a scrape goes on; the longest wait."""
    longest = 0.0
    while not done.is_set():
        began = time.monotonic()
        server.get("/healthz")
        longest = max(longest, time.monotonic() - began)
    waits.append(longest)


def write(
    told: dict[str, int], *, body: int, taken: list[float], grown: int, waits: list[float]
) -> None:
    wait = spread(waits)
    rows = [
        ["", "measured", "bound"],
        ["series of tiers", f"{told['series']:,}", ""],
        ["answer", mebibytes(body), "30 MiB"],
        ["a scrape, over HTTP", f"{spread(taken)} s", "1 s"],
        ["the controller grows by all these series", mebibytes(told["table_bytes"]), "30 MiB"],
        ["and while it is scraped, at most", mebibytes(grown), "3 MiB"],
        ["longest wait of another request meanwhile", f"{wait} s", "0.25 s"],
    ]
    text = (
        f"1,000 tiers of eight ranks, every series that there is: median of {SCRAPES} scrapes "
        f"(least to most).\n\n{figures.table(rows)}\n{figures.machine()}."
    )
    figures.write("benchmarks.md", place="scrape", text=text)


def spread(values: list[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def mebibytes(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
