"""Engines' figures through a real Prometheus, against what the engines' own text says."""

import asyncio
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import aiohttp
import yaml

from kvtier.engines.hits import read_tokens
from kvtier.limiter.prometheus import PrometheusReader
from kvtier.limiter.tokens import Reading
from webhook_process import free_port

METRICS = Path(__file__).parents[1] / "engines" / "metrics"
ENGINES = {"engine-0": "vllm-0.32.0-hits", "engine-1": "sglang-0.5.20-after"}
LOOKS = 60


@contextmanager
def engine(folder: Path, name: str) -> Iterator[int]:
    """An engine's text as it was taken down, behind HTTP; its port."""
    folder.mkdir()
    shutil.copy(METRICS / f"{name}.prom", folder / "metrics")
    port = free_port()
    command = [sys.executable, "-m", "http.server", "-b", "127.0.0.1", str(port)]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL)
    try:
        yield port
    finally:
        process.terminate()
        process.wait(timeout=10)


@contextmanager
def prometheus(folder: Path, *, engines: dict[str, int]) -> Iterator[str]:
    """A Prometheus that scrapes them as pods each second; its address."""
    binary = shutil.which("prometheus")
    assert binary, "prometheus is missing: `deploy/local/cluster build` installs it"
    config = folder / "prometheus.yml"
    targets = [
        {"targets": [f"127.0.0.1:{port}"], "labels": {"namespace": "prefill", "pod": pod}}
        for pod, port in engines.items()
    ]
    config.write_text(
        yaml.safe_dump(
            {
                "global": {"scrape_interval": "1s"},
                "scrape_configs": [
                    {
                        "job_name": "engines",
                        "static_configs": targets,
                    }
                ],
            }
        )
    )
    address = f"127.0.0.1:{free_port()}"
    command = [
        binary,
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--log.level=error",
    ]
    process = subprocess.Popen(command)
    try:
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(timeout=20)


async def seen(url: str) -> dict[tuple[str, str], Reading]:
    """What the limiter reads, once there is something of each engine."""
    async with aiohttp.ClientSession() as session:
        reader = PrometheusReader(url, session=session, namespaces=("prefill",))
        for _ in range(LOOKS):
            found = dict(await reader.read())
            if len(found) == len(ENGINES):
                return found
            await asyncio.sleep(0.5)
    raise AssertionError(f"it tells of {sorted(found)} only")


def test_a_real_prometheus_tells_what_the_engines_themselves_tell(tmp_path: Path) -> None:
    with ExitStack() as stack:
        ports = {
            pod: stack.enter_context(engine(tmp_path / pod, name)) for pod, name in ENGINES.items()
        }
        url = stack.enter_context(prometheus(tmp_path, engines=ports))
        found = asyncio.run(seen(url))
    assert all(abs(time.time() - reading.at) < 30 for reading in found.values())
    assert {pod: reading.counters for (_, pod), reading in found.items()} == {
        pod: read_tokens((METRICS / f"{name}.prom").read_text()) for pod, name in ENGINES.items()
    }
