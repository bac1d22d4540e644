"""LMCache's own server with the plugin: it starts with a rank down, and shows its counters."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "store"))
from valkey_servers import free_port, running_server

ROOT = Path(__file__).parents[2]
TOKEN = "server-token"
ACL = f"user default reset\nuser {TOKEN} reset on >{TOKEN} ~r0@* +@all\n"
STARTED_SECONDS = 300.0
"""LMCache imports torch."""


def adapter(home: Path, ports: list[int]) -> dict[str, Any]:
    (home / "token").write_text(TOKEN)
    parameters = {
        "striping": "Hash",
        "ranks": [
            {"host": "127.0.0.1", "port": port, "prefix": f"r{number}"}
            for number, port in enumerate(ports)
        ],
        "credentials": str(home / "token"),
    }
    return {
        "type": "plugin",
        "module_path": "kvtier_lmcache",
        "class_name": "StripedL2Adapter",
        "adapter_params": parameters,
    }


@contextmanager
def server(program: list[str], given: dict[str, Any], log: Path) -> Iterator[int]:
    """LMCache's server; gives its HTTP port, once that answers."""
    http = free_port()
    command = [
        *(*program, "server", "--host", "127.0.0.1", "--port", str(free_port())),
        *("--http-host", "127.0.0.1", "--http-port", str(http), "--l1-size-gb", "0.2"),
        *("--eviction-policy", "LRU", "--supported-transfer-mode", "lmcache_driven"),
        *("--l2-adapter", json.dumps(given)),
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=os.environ | {"PYTHONPATH": str(ROOT / "operator")},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = monotonic() + STARTED_SECONDS
        while True:
            assert process.poll() is None, log.read_text()[-4000:]
            try:
                answer(http, "status")
                break
            except (URLError, ConnectionError):
                assert monotonic() < deadline, log.read_text()[-4000:]
                sleep(0.5)
        yield http
        process.terminate()
        # It closes all, then ends by the signal.
        assert process.wait(60) in (0, -signal.SIGTERM)
        assert "MPCacheServer closed" in log.read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def answer(port: int, path: str) -> str:
    with urlopen(f"http://127.0.0.1:{port}/{path}", timeout=30) as response:
        text: str = response.read().decode()
        return text


def test_it_starts_with_a_rank_down_and_shows_the_counters_and_no_token(
    program: list[str], tmp_path: Path
) -> None:
    log = tmp_path / "lmcache.log"
    with running_server("9.1", directory=tmp_path, acl=ACL) as valkey:
        ports = [valkey.port, free_port()]
        with server(program, adapter(tmp_path, ports), log) as http:
            names = [f"127.0.0.1:{port}/r{number}" for number, port in enumerate(ports)]
            deadline = monotonic() + 30
            while f'kvtier_plugin_rank_answers{{rank="{names[0]}"}} 1.0' not in answer(
                http, "metrics"
            ):
                assert monotonic() < deadline, answer(http, "metrics")
                sleep(0.1)
            metrics = answer(http, "metrics").splitlines()
            assert f'kvtier_plugin_rank_answers{{rank="{names[1]}"}} 0.0' in metrics
            assert f'kvtier_plugin_hits_total{{rank="{names[0]}"}} 0.0' in metrics
            assert "kvtier_plugin_short_hits_suppressed_total 0.0" in metrics
            status = json.loads(answer(http, "status"))
            said = [json.dumps(status), answer(http, "config"), *metrics]
    assert status["is_healthy"]
    assert names[1] in said[0]
    assert TOKEN not in "".join([*said, log.read_text()])
