"""The plugin and LMCache's stock Valkey adapter, in one process, in turns, on the same Valkey."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from livecluster import figures

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "store"))
from valkey_servers import running_server

ROOT = Path(__file__).parents[2]

WORKER = Path(__file__).with_name("plugin_bench_worker.py")
LEAST = 0.95
"""Of the stock adapter's throughput the plugin must have at one rank."""
RANKS = 4
WORKERS = 8
PATIENCE = 60.0
TURNS = 48
"""Shares of two medians of so many turns change by a few percent from run to run."""
SIZES = ((64, 1 << 20), (16, 10 << 20))
"""Chunks of a turn, and their bytes: the second is Llama-3.1-70B's on one of eight ranks."""
STOCK, PLUGIN, STRIPED = "stock", "plugin", f"plugin, W = {RANKS}"
TOKEN = "bench-token"
ACL = f"user default reset\nuser {TOKEN} reset on >{TOKEN} ~bench@* +@all\n"
HEAD = ("chunks of a request", "adapter", "store, GB/s", "load, GB/s", "look-up, chunks/s")
HEAD += ("store, load, look-up against stock",)


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[int]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                running_server("9.1", directory=tmp_path_factory.mktemp("rank"), acl=ACL)
            ).port
            for _ in range(RANKS)
        ]


def plugin(ports: list[int], token: Path) -> dict[str, Any]:
    parameters = {
        "striping": "Hash",
        "ranks": [{"host": "127.0.0.1", "port": port, "prefix": "bench"} for port in ports],
        "credentials": str(token),
        "workers": WORKERS,
        "request_timeout": PATIENCE,
        "connection_timeout": PATIENCE,
    }
    return {
        "type": "plugin",
        "module_path": "kvtier_lmcache",
        "class_name": "StripedL2Adapter",
        "adapter_params": parameters,
    }


def stock(port: int) -> dict[str, Any]:
    return {
        "type": "valkey",
        "startup_nodes": f"127.0.0.1:{port}",
        "username": TOKEN,
        "password": TOKEN,
        "key_prefix": "bench",
        "num_workers": WORKERS,
        "request_timeout": PATIENCE,
        "connection_timeout": PATIENCE,
    }


def test_the_plugin_is_as_fast_as_the_stock_adapter(
    program: list[str], ports: list[int], tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    adapters = {STOCK: stock(ports[0]), PLUGIN: plugin(ports[:1], token)}
    adapters[STRIPED] = plugin(ports, token)
    load, rows, shares = os.getloadavg()[0], [HEAD], []
    for chunks, size in SIZES:
        took = timed(program, adapters, chunks=chunks, size=size)
        for name in adapters:
            per_second = {what: 1 / median(seconds) for what, seconds in took[name].items()}
            against = [
                median(took[STOCK][what]) / median(took[name][what])
                for what in ("store", "load", "lookup")
            ]
            if name == PLUGIN:
                shares += against
            rows.append(
                (
                    f"{chunks} of {size >> 20} MiB",
                    name,
                    f"{per_second['store'] * chunks * size / 1e9:.2f}",
                    f"{per_second['load'] * chunks * size / 1e9:.2f}",
                    f"{per_second['lookup'] * chunks:.0f}",
                    ", ".join(f"{share:.2f}" for share in against),
                )
            )
    figures.write(
        "engines.md",
        place="plugin-bench",
        text=f"{figures.table(rows)}\n{figures.machine()}; load average {load:.1f} before. Medians "
        f"of {TURNS} turns, {WORKERS} workers a rank, all on loopback: servers and client share "
        "the cores.",
    )
    assert min(shares) >= LEAST, rows


def timed(
    program: list[str], adapters: dict[str, Any], *, chunks: int, size: int
) -> dict[str, dict[str, list[float]]]:
    asked = {"adapters": adapters, "chunks": chunks, "chunk_bytes": size, "turns": TURNS}
    done = subprocess.run(
        [program[0], str(WORKER)],
        input=json.dumps(asked),
        env=os.environ | {"PYTHONPATH": str(ROOT / "operator"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:].replace(TOKEN, "...")
    took: dict[str, dict[str, list[float]]] = json.loads(done.stdout.splitlines()[-1])
    return took
