"""Nodes and pods as a cluster has them, written short."""

from typing import Any

Body = dict[str, Any]
HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"


def node(name: str, zone: str = "a", *, memory: str = "512Gi", cordoned: bool = False) -> Body:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {HOST: name, ZONE: zone}},
        "spec": {"unschedulable": True} if cordoned else {},
        "status": {
            "allocatable": {"memory": memory},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def engine(name: str, on: str, *, namespace: str = "models", ready: bool = True) -> Body:
    return _pod(
        name, on, namespace=namespace, labels={"kvtier.dev/tier": "llama-prefill"}, ready=ready
    )


def rank(number: int, on: str) -> Body:
    labels = {"kvtier.dev/tier-name": "llama-prefill", "kvtier.dev/rank": str(number)}
    return _pod(f"llama-prefill-r{number}-0", on, namespace="models", labels=labels, ready=True)


def _pod(name: str, on: str, *, namespace: str, labels: dict[str, str], ready: bool) -> Body:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {
            "nodeName": on,
            "containers": [{"name": "x", "resources": {"requests": {"memory": "100Gi"}}}],
        },
        "status": {
            "phase": "Running",
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True" if ready else "False",
                    "lastTransitionTime": "2026-11-30T01:00:00Z",
                }
            ],
        },
    }


def listed(*objects: Body) -> Body:
    """As kubectl prints several."""
    return {"apiVersion": "v1", "kind": "List", "items": list(objects), "metadata": {}}
