"""``kvtier loadtest`` in a pod of a tier's namespace, from nothing but the engine Secret."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from livecluster import restricted
from livecluster.api import Object
from livecluster.callers import IMAGE
from livecluster.tier import Tier
from livecluster.waiting import eventually

SECRET_DIR = "/etc/kvtier"
STARTED_SECONDS = 60.0
END_SECONDS = 90.0
"""How much longer than its duration a run may take to be told of, on a busy machine."""
STOP = "import os, signal; os.kill(1, signal.SIGTERM)"


@dataclass(frozen=True, slots=True)
class Loadtest:
    """A run that was started; ``seconds`` is its duration."""

    tier: Tier
    name: str
    seconds: float

    def report(self) -> dict[str, Any]:
        """The JSON report, once the run has ended. See docs/loadtest.md."""
        self._ended(self.seconds + END_SECONDS)
        said = self._log()
        # Lines of progress come first, each a document of one line.
        _, begin, report = said.rpartition("\n{\n") if "\n{\n" in said else ("", "", said)
        assert said.rstrip().endswith("}"), f"{self.name} reported nothing: {said[-2000:]}"
        found: dict[str, Any] = json.loads(f"{{\n{report}" if begin else report)
        return found

    def exit_code(self) -> int:
        """0: all right, 1: a byte was wrong or nothing was reachable. Waits for the end."""
        code: int = self._ended(self.seconds + END_SECONDS)["exitCode"]
        return code

    def progress(self) -> list[dict[str, Any]]:
        """What it has told of each whole second so far."""
        lines = (line for line in self._log().splitlines() if line.startswith('{"at"'))
        return [json.loads(line) for line in lines]

    def wait_hits(self) -> None:
        """Until requests hit."""
        eventually(
            lambda: any(second["hitRate"] for second in self.progress()),
            seconds=self.seconds,
            what=f"{self.name} has hits",
            detail=lambda: self._log()[-2000:],
        )

    def stop(self) -> None:
        """End it early; the report is about the time until now."""
        self.tier.kubectl("exec", self.name, "--", "python3", "-c", STOP)

    def _ended(self, seconds: float) -> Mapping[str, Any]:
        def terminated() -> Mapping[str, Any] | None:
            return (self._container() or {}).get("state", {}).get("terminated")

        return eventually(
            terminated, seconds=seconds, what=f"{self.name} ends", detail=self._container
        )

    def _container(self) -> Object | None:
        pod = self.tier.child("pods", self.name)
        assert pod is not None, f"pod {self.name} is gone"
        statuses: list[Object] = pod.get("status", {}).get("containerStatuses", [])
        return statuses[0] if statuses else None

    def _log(self) -> str:
        return self.tier.cluster.api.log(self.tier.namespace, self.name)


def start(
    tier: Tier,
    *arguments: str,
    seconds: float = 30.0,
    name: str = "loadtest",
    secret: str = "",
    labels: Mapping[str, str] | None = None,
    node: str = "",
    wait: bool = True,
) -> Loadtest:
    """Start a run of so many seconds with more ``arguments`` of the command line.

    ``secret`` is the tier's own engine Secret unless another is named; ``node`` the one to run on.
    Returns once the container runs, or at once without ``wait``. The pod meets the Pod Security
    Standard `restricted`.
    """
    secret = secret or tier.body()["status"]["engineSecret"]
    pod = _pod(arguments, seconds=seconds, secret=secret)
    pod["metadata"] = {"name": name, "namespace": tier.namespace, "labels": dict(labels or {})}
    if node:
        pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    tier.cluster.apply(pod)
    run = Loadtest(tier=tier, name=name, seconds=seconds)
    if wait:
        eventually(
            lambda: {"running", "terminated"} & (run._container() or {}).get("state", {}).keys(),
            seconds=STARTED_SECONDS,
            what=f"{name} runs",
            detail=run._container,
        )
    return run


def _pod(arguments: tuple[str, ...], *, seconds: float, secret: str) -> Object:
    container = {
        "name": "loadtest",
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "args": [
            *("loadtest", "--secret-dir", SECRET_DIR, "--duration", f"{seconds:g}s"),
            *("-o", "json", "--progress", *arguments),
        ],
        "resources": {
            "requests": {"cpu": "50m", "memory": "64Mi"},
            "limits": {"cpu": "1", "memory": "256Mi"},
        },
        "securityContext": restricted.CONTAINER,
        "volumeMounts": [{"name": "kvtier", "mountPath": SECRET_DIR, "readOnly": True}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 5,
            "securityContext": restricted.POD,
            "containers": [container],
            "volumes": [{"name": "kvtier", "secret": {"secretName": secret, "defaultMode": 0o440}}],
        },
    }
