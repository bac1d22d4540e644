"""`kvtier limiter`: its flags, and a process whose API server is away."""

import http.client
import signal
import subprocess
from pathlib import Path

import pytest
import yaml

from limiter_process import until
from webhook_process import PROGRAM, free_port


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--listen=8080", "--listen: '8080' is not HOST:PORT"),
        ("--peers-service=limiters", "--peers-service: 'limiters' is not HOST:PORT"),
        ("--peers-service=:8080", "--peers-service: ':8080' has no name"),
        ("--prometheus=prometheus:9090", "--prometheus: 'prometheus:9090' is no URL"),
    ],
)
def test_a_bad_flag_is_one_line(flag: str, said: str) -> None:
    done = subprocess.run(
        [str(PROGRAM), "limiter", flag], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"kvtier: {said}")


def test_without_an_api_server_it_admits_is_not_ready_and_stops_when_told(tmp_path: Path) -> None:
    nobody = {"server": f"http://127.0.0.1:{free_port()}"}
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": nobody}],
        "users": [{"name": "u", "user": {}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(kubeconfig))
    port = free_port()
    process = subprocess.Popen(
        [str(PROGRAM), "limiter", f"--listen=127.0.0.1:{port}"], env={"KUBECONFIG": str(path)}
    )

    def asked(path: str, method: str = "GET") -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request(method, path)
            return connection.getresponse().status
        except OSError:
            return 0
        finally:
            connection.close()

    try:
        until(lambda: asked("/healthz") == 200)
        assert asked("/readyz") == 503
        assert asked("/v1/admit/prod/llama/v1/completions", "POST") == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
    finally:
        process.kill()
        process.wait()
