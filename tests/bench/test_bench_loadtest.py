"""Is the load test's client quick enough to measure the store and not itself?"""

import sys
from pathlib import Path
from statistics import median

import pytest
from reading import ACL, Store

from livecluster import figures

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "store"))

from valkey_servers import running_server

ROUNDS = 9
LEAST_OF_FLOOR = 0.9
TOTAL_BYTES = 256 << 20
SIZES = {"12.4 MB": 12_400_000, "2 MB": 2 << 20}
CONNECTIONS = (1, 4)


@pytest.mark.timeout(300)
def test_the_client_reads_as_fast_as_plain_sockets(tmp_path: Path) -> None:
    rows = [("value", "connections", "plain sockets", "kvtier loadtest", "ratio", "valkey-py")]
    ratios = {}
    with running_server(
        "9.1", directory=tmp_path, acl=ACL, settings={"maxmemory": "2gb"}
    ) as server:
        for name, size in SIZES.items():
            for connections in CONNECTIONS:
                store = Store(
                    server.port, size=size, count=TOTAL_BYTES // size, connections=connections
                )
                floor, client, library = [], [], []
                for _ in range(1 + ROUNDS):
                    floor.append(store.by_sockets())
                    client.append(store.by_client())
                    library.append(store.by_library())
                store.close()
                # The first of each only warms caches.
                floor, client, library = floor[1:], client[1:], library[1:]
                ratio = median(client) / median(floor)
                ratios[name, connections] = ratio
                rows.append(
                    (
                        name,
                        str(connections),
                        spread(floor),
                        spread(client),
                        f"{ratio:.2f}",
                        spread(library),
                    )
                )
    title = (
        f"GB/s read from one Valkey over loopback: median of {ROUNDS} rounds of "
        f"{TOTAL_BYTES >> 20} MiB (least to most), taken in turns."
    )
    text = f"{title}\n\n{figures.table(rows)}\n{figures.machine()}."
    figures.write("benchmarks.md", place="loadtest", text=text)
    slow = {case: ratio for case, ratio in ratios.items() if ratio < LEAST_OF_FLOOR}
    assert not slow


def spread(rates: list[float]) -> str:
    return f"{median(rates) / 1e9:.2f} ({min(rates) / 1e9:.2f}-{max(rates) / 1e9:.2f})"
