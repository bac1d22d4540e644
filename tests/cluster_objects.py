"""Plain objects that the cluster contract is tried with."""

from collections.abc import Mapping
from typing import Any

from kvtier.cluster.protocol import Object


def configmap(namespace: str, name: str = "a", **data: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace, "labels": {"tier": name}},
        "data": data,
    }


def statefulset(namespace: str, *, env: Mapping[str, str], **spec: Any) -> Object:
    labels = {"app": "valkey"}
    container = {
        "name": "valkey",
        "image": "valkey:9.1",
        "env": [{"name": name, "value": value} for name, value in env.items()],
        "ports": [{"name": "valkey", "containerPort": 6379}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "r0", "namespace": namespace, "labels": labels},
        "spec": {
            "serviceName": "r0",
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "updateStrategy": {"type": "OnDelete"},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
            **spec,
        },
    }


def pod_on_a_node(namespace: str) -> Object:
    """A pod whose kubelet is not there to end it."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "r0-0", "namespace": namespace},
        "spec": {"nodeName": "gone", "containers": [{"name": "valkey", "image": "valkey"}]},
    }


def lease(namespace: str) -> Object:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "kvtier", "namespace": namespace},
        "spec": {"holderIdentity": "one", "leaseDurationSeconds": 15},
    }


def event(namespace: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "a.1", "namespace": namespace},
        "involvedObject": {"kind": "ConfigMap", "namespace": namespace, "name": "a"},
        "type": "Warning",
        "reason": "Tried",
        "message": "once",
        "count": 1,
    }


def env_of(obj: Object) -> dict[str, str]:
    [container] = obj["spec"]["template"]["spec"]["containers"]
    return {each["name"]: each["value"] for each in container.get("env", [])}


def uid(obj: Object) -> str:
    return str(obj["metadata"]["uid"])


def version(obj: Object) -> str:
    return str(obj["metadata"]["resourceVersion"])
