"""Nodes in two leaves and engines on them, for the reconciler on fakes."""

import base64
from collections.abc import Mapping
from typing import Any

from tier_harness import KEY, Operator, spec

from kvtier.cluster.protocol import NODE, SECRET
from kvtier.generation.record import from_json
from kvtier.render.names import RECORD_KEY, acl_name

LEAF = "example.com/leaf"
DOMAINS = [{"name": "hostname", "key": "kubernetes.io/hostname"}, {"name": "leaf", "key": LEAF}]
NODES = {"n1": "leaf-a", "n2": "leaf-a", "n3": "leaf-b", "n4": "leaf-b"}
NAMESPACE = KEY[0]


def placed_spec(**placement: Any) -> dict[str, Any]:
    return {**spec(), "placement": {"domains": DOMAINS, "within": "leaf", **placement}}


def add_node(operator: Operator, name: str, leaf: str | None, memory: str = "64Gi") -> None:
    labels = {"kubernetes.io/hostname": name, **({LEAF: leaf} if leaf else {})}
    operator.cluster.seed(
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
    )
    since = operator.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
    conditions = [{"type": "Ready", "status": "True", "lastTransitionTime": since}]
    status = {"conditions": conditions, "allocatable": {"memory": memory}}
    operator.cluster.edit(NODE, "", name, {"status": status})


def add_engine(operator: Operator, name: str, node: str, *, ready: bool = True) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": NAMESPACE, "name": name, "labels": {"kvtier.dev/tier": KEY[1]}},
        "spec": {"nodeName": node, "containers": [{"name": "vllm"}]},
        "status": engine_status(operator, ready=ready),
    }
    operator.cluster.seed(pod)


def engine_status(operator: Operator, *, ready: bool) -> dict[str, Any]:
    since = operator.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
    condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": since}
    return {"phase": "Running", "podIP": "", "conditions": [condition]}


def nodes_of(operator: Operator) -> dict[str, str]:
    return {
        name: pod["spec"]["nodeName"]
        for name, pod in operator.pods().items()
        if name.startswith("demo-r")
    }


def leaves(operator: Operator) -> set[str]:
    return {
        operator.cluster.peek(NODE, "", node)["metadata"]["labels"][LEAF]  # type: ignore[index]
        for node in nodes_of(operator).values()
    }


def affinities(operator: Operator) -> list[Mapping[str, Any]]:
    templates = [each["spec"]["template"]["spec"] for each in operator.statefulsets().values()]
    return [template.get("affinity", {}).get("nodeAffinity", {}) for template in templates]


def recorded(operator: Operator) -> str | None:
    secret = operator.cluster.peek(SECRET, NAMESPACE, acl_name(KEY[1]))
    assert secret is not None
    domain = from_json(base64.b64decode(secret["data"][RECORD_KEY])).domain
    return str(domain) if domain else None


def fill(operator: Operator) -> None:
    """Engines store something on every rank."""
    for name in nodes_of(operator):
        operator.server(name).keys.add("kvt-x@chunk")


def placement_message(operator: Operator) -> str:
    """What the condition says, and every finding."""
    found = operator.status().get("findings", ())
    said = [f"{each['severity']} {each['reason']}: {each['message']}" for each in found]
    return " ".join([operator.condition("PlacementAccepted")["message"], *said])
