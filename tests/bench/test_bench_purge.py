"""What purging a generation costs those who read another one meanwhile, and what the runbook that
people use today, FLUSHALL and a restart, costs."""

import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pytest
import valkey
from latencies import Window, reading_all_the_time

from kvtier.generation.acl import ENGINE_COMMANDS, OPERATOR_COMMANDS, key_prefix
from kvtier.loadtest.measures import percentile
from kvtier.store.client import connector
from kvtier.store.protocol import Address, Credentials
from kvtier.store.purge import DEFAULT_PACE, Pace, Purged, Sleep, purge
from livecluster import figures

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "store"))

from valkey_servers import Server, free_port, running_server, with_tls

MOST_SLOWDOWN = 1.5
"""Of the p99 of somebody else's reads while a purge runs."""
SLICE_SECONDS = 0.5
OLD, NEW = (key_prefix(generation * 12, 0) for generation in "01")
TOKEN = "engine-of-the-new-generation"
OPERATOR = "operator-password"
ACL = "".join(
    f"user {line}\n"
    for line in (
        "default off",
        f"operator on >{OPERATOR} ~* {' '.join(f'+{name}' for name in OPERATOR_COMMANDS)}",
        f"{TOKEN} on >{TOKEN} ~{NEW}@* {' '.join(f'+{name}' for name in ENGINE_COMMANDS)}",
        "writer on nopass ~* +set +flushall +dbsize +ping",
    )
)
ALL_AT_ONCE = Pace(share=1.0, small_share=1.0, scan=1000, unlink=1000, turn=float("inf"))
READ = 64


@dataclass(frozen=True, slots=True)
class Case:
    """``count`` values of ``size`` bytes are purged; others' keys: READ values of that size, and
    ``around`` small ones."""

    version: str
    count: int
    size: int
    around: int
    rounds: int

    @property
    def name(self) -> str:
        size = f"{self.size >> 20} MiB" if self.size >= 1 << 20 else f"{self.size >> 10} KiB"
        return f"{self.count:,} x {size}, {self.around:,} other keys, Valkey {self.version}"


CASES = (
    Case("9.1", count=2_000, size=1 << 20, around=20_000, rounds=3),
    # Its allocator gives large values back to the system at once: that takes much longer.
    Case("8.1", count=2_000, size=1 << 20, around=20_000, rounds=3),
    Case("8.1", count=250, size=8 << 20, around=20_000, rounds=4),
    Case("9.1", count=100_000, size=4 << 10, around=1_000_000, rounds=1),
)


class Turns:
    """Lets a purge run for a slice and then rest for one, so that both meet the same machine."""

    def __init__(self) -> None:
        self.running: list[Window] = []
        self.resting: list[Window] = []
        self._begun = time.perf_counter()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        now = time.perf_counter()
        if now - self._begun >= SLICE_SECONDS:
            self.running.append((self._begun, now))
            await asyncio.sleep(SLICE_SECONDS)
            self._begun = time.perf_counter()
            self.resting.append((now, self._begun))

    def end(self) -> None:
        self.running.append((self._begun, time.perf_counter()))


@contextmanager
def serving(case: Case, home: Path, *, port: int = 0) -> Iterator[Server]:
    with running_server(
        case.version,
        directory=home,
        acl=ACL,
        settings={"maxmemory": "4gb"},
        port=port,
        # With jemalloc, as in the images that ranks run.
        program=with_tls(case.version, "valkey-server"),
    ) as server:
        yield server


@pytest.mark.timeout(1800)
def test_a_purge_leaves_others_their_p99(tmp_path: Path) -> None:
    rows: list[Sequence[str]] = [
        (
            *("purged", "seconds", "p99 without, ms", "p99 during, ms", "ratio", "longest, ms"),
            *("without pauses: seconds", "p99 without", "during", "ratio", "longest"),
        )
    ]
    ratios = {}
    for number, case in enumerate(CASES):
        home = tmp_path / str(number)
        home.mkdir()
        ratios[case.name], row = measure(case, home)
        print(*row, sep=" | ", flush=True)
        rows.append(row)
    title = (
        "A client reads values of the other generation, one after another, all the time. A purge "
        f"runs for {SLICE_SECONDS} s and rests for {SLICE_SECONDS} s, in turns; seconds are those "
        "in which it ran (median), a p99 is of all reads of all rounds."
    )
    text = f"{title}\n\n{figures.table(rows)}\n{figures.machine()}."
    figures.write("benchmarks.md", place="purge", text=text)
    assert not {name: ratio for name, ratio in ratios.items() if ratio > MOST_SLOWDOWN}


def measure(case: Case, home: Path) -> tuple[float, Sequence[str]]:
    """The ratio of p99 with and without a purge, and the row of the table."""
    with serving(case, home) as server:
        read = fill_others(server, case)
        with reading_all_the_time(server.port, token=TOKEN, keys=read, size=case.size) as times:
            paced, fast = (
                [purged_in_turns(server, case, pace) for _ in range(case.rounds)]
                for pace in (DEFAULT_PACE, ALL_AT_ONCE)
            )
        assert keys_of(server) == READ + case.around
    ratios, cells = [], []
    for rounds in (paced, fast):
        running = times.during([window for turns in rounds for window in turns.running])
        resting = times.during([window for turns in rounds for window in turns.resting])
        ratios.append(p99(running) / p99(resting))
        cells += [
            f"{median(sum(last - first for first, last in turns.running) for turns in rounds):.2f}",
            f"{1e3 * p99(resting):.2f}",
            f"{1e3 * p99(running):.2f}",
            f"{ratios[-1]:.2f}",
            f"{1e3 * max(running):.0f}",
        ]
    return ratios[0], (case.name, *cells)


def purged_in_turns(server: Server, case: Case, pace: Pace) -> Turns:
    fill(server, OLD, count=case.count, size=case.size)
    turns = Turns()
    purged = run_purge(server, pace, sleep=turns.sleep)
    turns.end()
    assert (purged.keys, purged.whole) == (case.count, True)
    # A purge that is done within a slice has none to compare with.
    begun = time.perf_counter()
    time.sleep(SLICE_SECONDS)
    turns.resting.append((begun, time.perf_counter()))
    return turns


@pytest.mark.timeout(600)
def test_what_flushall_and_a_restart_cost(tmp_path: Path) -> None:
    """No bound: what the runbook costs on the same server, to stand beside a purge."""
    case = CASES[-1]
    port = free_port()
    with serving(case, tmp_path, port=port) as server:
        fill_others(server, case)
        fill(server, OLD, count=case.count, size=case.size)
        before = keys_of(server)
        begun = time.perf_counter()
        with writer(server) as client:
            client.execute_command("FLUSHALL")
        flushed = time.perf_counter() - begun
        begun = time.perf_counter()
    with serving(case, tmp_path, port=port) as server:
        restarted = time.perf_counter() - begun
        lost = before - keys_of(server) - case.count
    text = (
        f"FLUSHALL and a restart of such a server ({case.name}): {1e3 * flushed:.0f} ms, and "
        f"{restarted:.2f} s until a new process listens (its pod would take seconds more), and "
        f"the other generation loses {lost:,} keys of {lost:,}. {figures.machine()}."
    )
    figures.write("benchmarks.md", place="flushall", text=text)
    assert lost == READ + case.around


def run_purge(server: Server, pace: Pace, *, sleep: Sleep) -> Purged:
    async def run() -> Purged:
        address, operator = Address("127.0.0.1", server.port), Credentials("operator", OPERATOR)
        async with connector(reply_seconds=30)(address, operator) as store:
            return await purge(store, prefix=OLD, leads=lambda: True, pace=pace, sleep=sleep)

    return asyncio.run(run())


def p99(seconds: Sequence[float]) -> float:
    found = percentile(seconds, 0.99)
    assert found is not None
    return found


def writer(server: Server) -> valkey.Valkey:
    return valkey.Valkey(port=server.port, username="writer", password="x", lib_name=None)


def keys_of(server: Server) -> int:
    with writer(server) as client:
        return int(client.execute_command("DBSIZE"))


def fill_others(server: Server, case: Case) -> list[bytes]:
    """The keys that the reader reads; beside them are small ones."""
    fill(server, f"{NEW}@small", count=case.around, size=64)
    return fill(server, NEW, count=READ, size=case.size)


def fill(server: Server, prefix: str, *, count: int, size: int) -> list[bytes]:
    keys = [f"{prefix}@bench@01000100@0@{number:08x}".encode() for number in range(count)]
    value = bytes(size)
    at_once = max(1, min(2000, (8 << 20) // size))
    with writer(server) as client, client.pipeline(transaction=False) as pipeline:
        for first in range(0, count, at_once):
            for key in keys[first : first + at_once]:
                pipeline.set(key, value)
            pipeline.execute()
    return keys
