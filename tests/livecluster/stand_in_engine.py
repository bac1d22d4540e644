"""An engine that only listens, of which kvtier reads what it runs."""

from collections.abc import Sequence

from livecluster import restricted
from livecluster.api import Object, is_ready
from livecluster.callers import IMAGE, LISTEN
from livecluster.tier import Tier
from livecluster.waiting import eventually


def engine_pod(tier: Tier, *, arguments: Sequence[str] | None, secret: str = "") -> None:
    """``<tier>-engine``, a Ready pod of the pool, of which kvtier reads ``arguments`` of ``vllm
    serve``, or without them nothing. It only listens."""
    name = f"{tier.name}-engine"
    program = {"name": "stand-in", "namespace": tier.namespace}
    tier.cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": program,
            "data": {"vllm": f"#!/usr/bin/python3\n{LISTEN}"},
        }
    )
    command = (
        ["/opt/vllm/bin/vllm", "serve", *arguments] if arguments else ["python3", "-c", LISTEN]
    )
    volumes: list[Object] = [
        {"name": "vllm", "configMap": {"name": "stand-in", "defaultMode": 0o755}}
    ]
    mounts = [{"name": "vllm", "mountPath": "/opt/vllm/bin", "readOnly": True}]
    if secret:
        volumes.append({"name": "kvtier", "secret": {"secretName": secret, "defaultMode": 0o440}})
        mounts.append({"name": "kvtier", "mountPath": "/kvtier", "readOnly": True})
    container = {
        "name": "vllm",
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": command,
        "resources": {
            "requests": {"cpu": "10m", "memory": "32Mi"},
            "limits": {"cpu": "500m", "memory": "64Mi"},
        },
        "securityContext": restricted.CONTAINER,
        "volumeMounts": mounts,
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": tier.namespace,
            "labels": {"kvtier.dev/tier": tier.name},
        },
        "spec": {
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "securityContext": restricted.POD,
            "volumes": volumes,
            "containers": [container],
        },
    }
    tier.cluster.apply(pod)

    def up() -> bool:
        found = tier.child("pods", name)
        return found is not None and is_ready(found)

    eventually(up, seconds=90, what=f"engine {name} is Ready")


def engine_deleted(tier: Tier) -> None:
    tier.kubectl("delete", "pod", f"{tier.name}-engine", "--wait=false")


def runs(tier: Tier, *, revision: str = "") -> list[str]:
    """What ``vllm serve`` is told, as the tier declares it, or of another revision."""
    model = tier.body()["spec"]["model"]
    return [
        *(model["name"], "--revision", revision or model["revision"]),
        *("--kv-cache-dtype", model["kvCacheDtype"], "--tensor-parallel-size", "2"),
    ]
