"""The StatefulSet controller, the scheduler and the kubelets of the in-memory cluster."""

import copy
import hashlib
import json
from collections.abc import Callable, Set
from itertools import count
from typing import Any

from kvtier.cluster.fake_storage import Storage
from kvtier.cluster.protocol import NODE, POD, STATEFULSET, Object

REVISION_LABEL = "controller-revision-hash"


def run_statefulsets(
    storage: Storage, *, lost_nodes: Set[str], ready: Callable[[Object], bool]
) -> None:
    """Bring pods and statuses one step on: what real controllers do between two events."""
    _finish_deletions(storage, lost_nodes)
    for statefulset in storage.list(STATEFULSET, "", ""):
        _sync_pods(storage, statefulset, lost_nodes)
    _run_kubelets(storage, lost_nodes, ready)
    for statefulset in storage.list(STATEFULSET, "", ""):
        _sync_status(storage, statefulset)


def revision_of(statefulset: Object) -> str:
    """The revision of the template as it is now."""
    template = json.dumps(statefulset["spec"]["template"], sort_keys=True)
    digest = hashlib.sha256(template.encode()).hexdigest()[:10]
    return f"{statefulset['metadata']['name']}-{digest}"


def _finish_deletions(storage: Storage, lost_nodes: Set[str]) -> None:
    for pod in storage.list(POD, "", ""):
        if "deletionTimestamp" in pod["metadata"] and _node(pod) not in lost_nodes:
            storage.drop(_where(pod))


def _sync_pods(storage: Storage, statefulset: Object, lost_nodes: Set[str]) -> None:
    owned = {pod["metadata"]["name"]: pod for pod in _pods_of(storage, statefulset)}
    rolling = statefulset["spec"].get("updateStrategy", {}).get("type") != "OnDelete"
    revision = revision_of(statefulset)
    name = statefulset["metadata"]["name"]
    wanted = [f"{name}-{ordinal}" for ordinal in range(statefulset["spec"].get("replicas", 1))]
    for pod_name, pod in owned.items():
        outdated = pod["metadata"]["labels"].get(REVISION_LABEL) != revision
        if pod_name not in wanted or (rolling and outdated):
            storage.delete(_where(pod), uid=pod["metadata"]["uid"])
    for pod_name in wanted:
        where = (POD, statefulset["metadata"]["namespace"], pod_name)
        if storage.get(where) is None:
            node = _schedule(storage, statefulset, lost_nodes)
            pod = _new_pod(statefulset, name=pod_name, revision=revision, node=node)
            storage.add(pod, ("kube-controller-manager", "Update", ""))


def _new_pod(statefulset: Object, *, name: str, revision: str, node: str | None) -> Object:
    template = copy.deepcopy(statefulset["spec"]["template"])
    metadata = template.get("metadata", {})
    meta = statefulset["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": meta["namespace"],
            "labels": {
                **metadata.get("labels", {}),
                REVISION_LABEL: revision,
                "statefulset.kubernetes.io/pod-name": name,
            },
            "annotations": metadata.get("annotations", {}),
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "StatefulSet",
                    "name": meta["name"],
                    "uid": meta["uid"],
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": {**template.get("spec", {}), **({"nodeName": node} if node else {})},
    }


def _schedule(storage: Storage, statefulset: Object, lost_nodes: Set[str]) -> str | None:
    """Of the nodes that selector and affinity allow the one that they prefer most, then that with
    the fewest pods; "node-0" if none is known."""
    nodes = storage.list(NODE, "", "")
    if not nodes:
        return "node-0"
    spec = statefulset["spec"]["template"].get("spec", {})
    selector = spec.get("nodeSelector", {})
    affinity = spec.get("affinity", {}).get("nodeAffinity", {})
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {})
    preferred = affinity.get("preferredDuringSchedulingIgnoredDuringExecution", [])
    pods = [_node(pod) for pod in storage.list(POD, "", "")]
    labels = {each["metadata"]["name"]: each["metadata"].get("labels", {}) for each in nodes}
    fitting = [
        node["metadata"]["name"]
        for node in nodes
        if selector.items() <= node["metadata"].get("labels", {}).items()
        and _matches_one(required.get("nodeSelectorTerms"), labels[node["metadata"]["name"]])
        and not node.get("spec", {}).get("unschedulable")
        and node["metadata"]["name"] not in lost_nodes
    ]

    def rank(name: str) -> tuple[int, int]:
        liked = (
            each["weight"] for each in preferred if _matches_one([each["preference"]], labels[name])
        )
        return -sum(liked), pods.count(name)

    return min(fitting, key=rank, default=None)


def _matches_one(terms: list[Object] | None, labels: dict[str, str]) -> bool:
    """Whether labels meet one of the terms, or there are none; of operators only In is known."""
    return terms is None or any(
        all(
            labels.get(each["key"]) in each["values"] and each["operator"] == "In"
            for each in term["matchExpressions"]
        )
        for term in terms
    )


def _run_kubelets(storage: Storage, lost_nodes: Set[str], ready: Callable[[Object], bool]) -> None:
    for pod in storage.list(POD, "", ""):
        node = _node(pod)
        if not _owner_uid(pod) or node in lost_nodes:
            continue
        if node is None:
            condition = _condition("PodScheduled", False, storage.timestamp())
            status: dict[str, Any] = {"phase": "Pending", "conditions": [condition]}
        else:
            status = _running(storage, pod, is_ready=ready(pod))
        storage.patch(_where(pod), {"status": status}, editor="kubelet")


def _running(storage: Storage, pod: Object, *, is_ready: bool) -> dict[str, Any]:
    previous = pod.get("status", {})
    conditions = {each["type"]: each for each in previous.get("conditions", [])}
    for name, value in (("PodScheduled", True), ("ContainersReady", is_ready), ("Ready", is_ready)):
        if conditions.get(name, {}).get("status") != str(value):
            conditions[name] = _condition(name, value, storage.timestamp())
    started = previous.get("startTime", storage.timestamp())
    return {
        "phase": "Running",
        "conditions": list(conditions.values()),
        "startTime": started,
        "podIP": previous.get("podIP") or _free_address(storage),
        "containerStatuses": [
            {
                "name": container["name"],
                "image": container.get("image", ""),
                "imageID": container.get("image", ""),
                "ready": is_ready,
                "restartCount": 0,
                "state": {"running": {"startedAt": started}},
            }
            for container in pod["spec"].get("containers", [])
        ],
    }


def _free_address(storage: Storage) -> str:
    """The lowest that no pod has: one that was let go of is soon another pod's."""
    taken = {pod.get("status", {}).get("podIP") for pod in storage.list(POD, "", "")}
    addresses = (f"10.0.{number // 250}.{number % 250 + 1}" for number in count())
    return next(address for address in addresses if address not in taken)


def _condition(name: str, value: bool, now: str) -> dict[str, Any]:
    return {"type": name, "status": str(value), "lastTransitionTime": now}


def _sync_status(storage: Storage, statefulset: Object) -> None:
    """Replica counts and revisions; with OnDelete currentRevision stays the first, as in 1.37."""
    pods = _pods_of(storage, statefulset)
    ready = sum(_is_ready(pod) for pod in pods)
    update = revision_of(statefulset)
    rolling = statefulset["spec"].get("updateStrategy", {}).get("type") != "OnDelete"
    current = update if rolling else statefulset.get("status", {}).get("currentRevision", update)
    revisions = [pod["metadata"]["labels"].get(REVISION_LABEL) for pod in pods]
    status = {
        "observedGeneration": statefulset["metadata"]["generation"],
        "replicas": len(pods),
        "readyReplicas": ready,
        "availableReplicas": ready,
        "currentReplicas": revisions.count(current),
        "updatedReplicas": revisions.count(update),
        "currentRevision": current,
        "updateRevision": update,
    }
    storage.patch(_where(statefulset), {"status": status}, editor="kube-controller-manager")


def _pods_of(storage: Storage, statefulset: Object) -> list[Object]:
    uid = statefulset["metadata"]["uid"]
    pods = storage.list(POD, statefulset["metadata"]["namespace"], "")
    return [pod for pod in pods if _owner_uid(pod) == uid]


def _owner_uid(pod: Object) -> str | None:
    owners = pod["metadata"].get("ownerReferences", [])
    return next((o["uid"] for o in owners if o["kind"] == "StatefulSet"), None)


def _is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _node(pod: Object) -> str | None:
    name: str | None = pod.get("spec", {}).get("nodeName")
    return name


def _where(obj: Object) -> Any:
    kind = POD if obj["kind"] == "Pod" else STATEFULSET
    return kind, obj["metadata"]["namespace"], obj["metadata"]["name"]
