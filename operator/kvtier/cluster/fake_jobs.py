"""The Job controller of the in-memory cluster, and the kubelets that run its pods."""

import copy
from collections.abc import Callable
from typing import Any

from kvtier.cluster.fake_storage import Storage
from kvtier.cluster.protocol import JOB, POD, Object

Answer = Callable[[Object], str | None]
"""(a Job) -> the termination message of its pod, with which it succeeds; None: it still runs."""


def run_jobs(storage: Storage, *, answer: Answer) -> None:
    """Make a pod for each Job that has none, and end those whose container has ended."""
    for job in storage.list(JOB, "", ""):
        if _finished(job):
            continue
        pod = _pod_of(storage, job) or _make_pod(storage, job)
        message = answer(job)
        if message is None:
            continue
        container = pod["spec"]["containers"][0]["name"]
        ended = {"exitCode": 0, "reason": "Completed", "message": message}
        status = {"name": container, "state": {"terminated": ended}}
        where = (POD, pod["metadata"]["namespace"], pod["metadata"]["name"])
        storage.patch(
            where,
            {"status": {"phase": "Succeeded", "containerStatuses": [status]}},
            editor="kubelet",
        )
        condition = {"type": "Complete", "status": "True"}
        storage.patch(
            (JOB, job["metadata"]["namespace"], job["metadata"]["name"]),
            {"status": {"conditions": [condition], "succeeded": 1}},
            editor="kube-controller-manager",
        )


def _finished(job: Object) -> bool:
    return bool((job.get("status") or {}).get("conditions"))


def _pod_of(storage: Storage, job: Object) -> Object | None:
    uid = job["metadata"]["uid"]
    for pod in storage.list(POD, job["metadata"]["namespace"], ""):
        if any(owner["uid"] == uid for owner in pod["metadata"].get("ownerReferences", ())):
            return pod
    return None


def _make_pod(storage: Storage, job: Object) -> Object:
    template: dict[str, Any] = copy.deepcopy(job["spec"]["template"])
    metadata = job["metadata"]
    terms = template["spec"]["affinity"]["nodeAffinity"]
    (term,) = terms["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    (node,) = term["matchFields"][0]["values"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{metadata['name']}-{metadata['uid'][:5]}",
            "namespace": metadata["namespace"],
            "labels": template["metadata"]["labels"],
            "ownerReferences": [
                {
                    "apiVersion": "batch/v1",
                    "kind": "Job",
                    "name": metadata["name"],
                    "uid": metadata["uid"],
                    "controller": True,
                }
            ],
        },
        "spec": {**template["spec"], "nodeName": node},
    }
    return storage.add(pod, ("kube-controller-manager", "Update", ""))
