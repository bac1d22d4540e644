"""Reviews as the API server sends them."""

import copy
import json
from typing import Any

from small_tier import spec

TIER: dict[str, Any] = {
    "apiVersion": "kvtier.dev/v1alpha1",
    "kind": "KVCacheTier",
    "metadata": {"name": "demo", "namespace": "serving"},
    "spec": spec() | {"pool": spec()["pool"] | {"striping": "Shard"}},
}
# Too little for 16 chunks, which no rule of the schema can say.
BAD = {"store": {"memoryPerRank": "64Mi"}, "pool": {"chunkTokens": 16384}}


def tier(
    changes: dict[str, dict[str, Any]] | None = None,
    *,
    metadata: dict[str, Any] | None = None,
    status: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The small tier with ``changes`` of its spec, by part."""
    document = copy.deepcopy(TIER)
    for part, fields in (changes or {}).items():
        document["spec"].setdefault(part, {}).update(fields)
    document["metadata"] |= metadata or {}
    return document | ({"status": status} if status else {})


def review(
    new: dict[str, Any] | None = None,
    *,
    old: dict[str, Any] | None = None,
    operation: str = "CREATE",
    **request: Any,
) -> dict[str, Any]:
    """An AdmissionReview with what kvtier reads, and some of what it does not."""
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": {"group": "kvtier.dev", "version": "v1alpha1", "kind": "KVCacheTier"},
            "resource": {"group": "kvtier.dev", "version": "v1alpha1", "resource": "kvcachetiers"},
            "operation": operation,
            "userInfo": {"username": "admin", "groups": ["system:masters"]},
            "object": new,
            "oldObject": old,
            "dryRun": False,
            **request,
        },
    }


def body(*arguments: Any, **options: Any) -> bytes:
    return json.dumps(review(*arguments, **options)).encode()
