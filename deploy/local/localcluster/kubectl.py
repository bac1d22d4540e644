"""kubectl as the cluster's administrator."""

import json
import subprocess
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from . import build
from .errors import ClusterError
from .settings import Instance


def run(instance: Instance, *arguments: str, stdin: str | None = None) -> str:
    """kubectl's output; ClusterError with its last line of complaint if it fails."""
    program = build.binaries()["kubectl"]
    if not program.exists():
        raise ClusterError("kubectl is not built: run `cluster build`")
    done = subprocess.run(
        [
            str(program),
            f"--kubeconfig={instance.kubeconfig}",
            "--request-timeout=10s",
            *arguments,
        ],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise ClusterError(f"kubectl {arguments[0]}: {lines[-1]}")
    return done.stdout


def get(instance: Instance, *arguments: str) -> Any:
    return json.loads(run(instance, "get", *arguments, "-o", "json"))


def answers(instance: Instance) -> bool:
    """Does the API server say that it is ready?"""
    try:
        return run(instance, "get", "--raw", "/readyz") == "ok"
    except ClusterError:
        return False


def ready_nodes(instance: Instance, *, since: Mapping[str, float] | None = None) -> set[str]:
    """Names of the nodes that report Ready, and did so after `since` (Unix seconds, by name)."""
    try:
        nodes = get(instance, "nodes")["items"]
    except ClusterError:
        return set()
    return {
        node["metadata"]["name"]
        for node in nodes
        for condition in node["status"].get("conditions", [])
        if condition["type"] == "Ready"
        and condition["status"] == "True"
        # Reports carry whole seconds.
        and datetime.fromisoformat(condition["lastHeartbeatTime"]).timestamp()
        > (since or {}).get(node["metadata"]["name"], 0.0) - 1.0
    }


def wait(*, until: Callable[[], bool], what: str, seconds: float) -> None:
    """Poll; ClusterError naming `what` if it does not come true in time."""
    deadline = time.monotonic() + seconds
    while not until():
        if time.monotonic() > deadline:
            raise ClusterError(f"{what}: not after {seconds:.0f} s")
        time.sleep(0.1)
