"""Is the probe's figure the link's, and what does a probe cost those who use the tier meanwhile?"""

import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import valkey
from glide_sync import GlideClient, GlideClientConfiguration, NodeAddress, ServerCredentials
from reading import Opened, Read, plain_reader, timed

from kvtier.generation.acl import key_prefix
from kvtier.loadtest.measures import percentile
from kvtier.probe.result import ProbeResult
from kvtier.probe.worker import run_probe
from livecluster import figures

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "unit" / folder) for folder in ("store", "probe")]

from probed_ranks import Ranks, new_ranks  # noqa: E402
from valkey_servers import with_tls  # noqa: E402

ROUNDS = 7
LEAST_OF_FLOOR = 0.9
MOST_SLOWDOWN = 4.0
"""Of a loaded client's p99 while a probe runs: it then shares rank and CPUs with a reader at full
speed. On a machine with a core for each it is far less."""
TOTAL_BYTES = 512 << 20
SIZES = {"12.4 MB": 12_400_000, "2 MB": 2 << 20}
SECONDS = 2.0
CONNECTIONS = 2


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    with ExitStack() as stack:
        yield new_ranks(stack, tmp_path)(1, maxmemory="2gb")


@pytest.mark.timeout(600)
def test_the_probe_reads_as_fast_as_plain_sockets(ranks: Ranks) -> None:
    others = {
        "valkey-py": by_library,
        "valkey-benchmark": by_benchmark,
        "valkey-glide": by_glide,
    }
    rows: list[Sequence[str]] = [("value", "plain sockets", "kvtier probe", "ratio", *others)]
    ratios = {}
    for name, size in SIZES.items():
        floor, probed = [], []
        for _ in range(1 + ROUNDS):
            floor.append(by_sockets(ranks, size=size))
            probed.append(by_probe(ranks, size=size))
        # The first of each only warms caches.
        floor, probed = floor[1:], probed[1:]
        ratios[name] = median(probed) / median(floor)
        beside = [spread([read(ranks, size=size) for _ in range(3)]) for read in others.values()]
        rows.append((name, spread(floor), spread(probed), f"{ratios[name]:.2f}", *beside))
    title = (
        f"GB/s read from one Valkey over loopback, {CONNECTIONS} connections: median of {ROUNDS} "
        "rounds (least to most), taken in turns; of the others 3."
    )
    text = f"{title}\n\n{figures.table(rows)}\n{figures.machine()}."
    figures.write("benchmarks.md", place="probe", text=text)
    assert not {name: ratio for name, ratio in ratios.items() if ratio < LEAST_OF_FLOOR}


@pytest.mark.timeout(300)
def test_a_loaded_client_s_p99_during_a_probe(ranks: Ranks) -> None:
    """A client that reads chunks all the time, before, during and after a probe."""
    size = SIZES["2 MB"]
    before, during = [], []
    with loading(ranks, size=size) as times:
        for _ in range(ROUNDS):
            time.sleep(1.0)
            before += drained(times)
            result(ranks, size=size)
            during += drained(times)
    p99 = [percentile(each, 0.99) or 0.0 for each in (before, during)]
    ratio = p99[1] / p99[0]
    text = (
        "A client that reads 2 MB chunks one after another from the rank that is probed: p99 "
        f"{1e3 * p99[0]:.1f} ms before, {1e3 * p99[1]:.1f} ms while a probe runs, {ratio:.1f} "
        f"times. {figures.machine()}."
    )
    figures.write("benchmarks.md", place="probe-p99", text=text)
    assert ratio < MOST_SLOWDOWN


def result(ranks: Ranks, *, size: int) -> ProbeResult:
    config = ranks.config(
        value_bytes=size, max_bytes=TOTAL_BYTES, seconds=SECONDS, connections=CONNECTIONS
    )
    found = run_probe(config)
    assert not found.troubles, found.troubles
    return found


def by_probe(ranks: Ranks, *, size: int) -> float:
    link = result(ranks, size=size).link
    assert link is not None
    return link


@contextmanager
def stored(ranks: Ranks, *, size: int, count: int = 4) -> Iterator[list[bytes]]:
    """Values under an engine's prefix."""
    keys = [f"{key_prefix(ranks.record.current.id, 0)}@{n}".encode() for n in range(count)]
    with engine(ranks) as client:
        for key in keys:
            client.set(key, bytes(size))
    yield keys


def engine(ranks: Ranks) -> valkey.Valkey:
    token = ranks.record.current.token
    return valkey.Valkey(port=ranks.servers[0].port, username=token, password=token, lib_name=None)


def by_sockets(ranks: Ranks, *, size: int) -> float:
    """GET and ``recv_into``, nothing looked at, as many connections as the probe has."""
    port, token = ranks.servers[0].port, ranks.record.current.token

    def open_() -> Opened:
        return plain_reader(port, size=size, user=token, password=token)

    with stored(ranks, size=size) as keys:
        return by_connections(open_, keys, size=size)


def by_library(ranks: Ranks, *, size: int) -> float:
    @contextmanager
    def open_() -> Iterator[Read]:
        with engine(ranks) as client:
            yield client.get

    with stored(ranks, size=size) as keys:
        return by_connections(open_, keys, size=size)


def by_benchmark(ranks: Ranks, *, size: int) -> float:
    """valkey-benchmark of the local cluster's image, one connection each."""
    with stored(ranks, size=size) as keys:
        count = max(4, TOTAL_BYTES // size)
        token = ranks.record.current.token
        begun = time.perf_counter()
        subprocess.run(
            [
                *with_tls("9.1", "valkey-benchmark"),
                *("-p", str(ranks.servers[0].port), "--user", token, "-a", token),
                *("-c", str(CONNECTIONS), "-n", str(count), "-q", "get", keys[0].decode()),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return count * size / (time.perf_counter() - begun)


def glide_client(ranks: Ranks) -> Any:
    token = ranks.record.current.token
    return GlideClient.create(
        GlideClientConfiguration(
            [NodeAddress("127.0.0.1", ranks.servers[0].port)],
            credentials=ServerCredentials(password=token, username=token),
            request_timeout=20_000,
        )
    )


def by_glide(ranks: Ranks, *, size: int) -> float:
    @contextmanager
    def open_() -> Iterator[Read]:
        client = glide_client(ranks)
        try:
            yield client.get
        finally:
            client.close()

    with stored(ranks, size=size) as keys:
        return by_connections(open_, keys, size=size)


def by_connections(open_: Callable[[], Opened], keys: Sequence[bytes], *, size: int) -> float:
    """Bytes/s over as many connections as the probe has."""
    count = max(4, TOTAL_BYTES // size)
    taken = list(itertools.islice(itertools.cycle(keys), count))
    return timed(open_, taken, size=size, connections=CONNECTIONS)


@contextmanager
def loading(ranks: Ranks, *, size: int) -> Iterator[list[float]]:
    """A process of its own would be better; a thread that waits for the network is near enough."""
    times: list[float] = []
    done = threading.Event()

    def load(keys: list[bytes]) -> None:
        with engine(ranks) as client:
            for key in itertools.cycle(keys):
                if done.is_set():
                    return
                begun = time.perf_counter()
                client.get(key)
                times.append(time.perf_counter() - begun)

    with stored(ranks, size=size) as keys:
        thread = threading.Thread(target=load, args=(keys,))
        thread.start()
        try:
            yield times
        finally:
            done.set()
            thread.join()


def drained(times: list[float]) -> list[float]:
    taken = times[:]
    times.clear()
    return taken


def spread(rates: list[float]) -> str:
    return f"{median(rates) / 1e9:.2f} ({min(rates) / 1e9:.2f}-{max(rates) / 1e9:.2f})"
