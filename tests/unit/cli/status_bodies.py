"""A tier with a status, its engines, and the Lease of a controller, as a server has them."""

from datetime import UTC, datetime, timedelta
from typing import Any

Body = dict[str, Any]
SEEN = (datetime.now(UTC) - timedelta(hours=4, minutes=30)).strftime("%Y-%m-%dT%H:%M:%SZ")


def condition(name: str, status: str, reason: str, message: str = "") -> Body:
    return {"type": name, "status": status, "reason": reason, "message": message}


def tier(*, generation: int = 1, **status: Any) -> Body:
    known: Body = {
        "observedGeneration": 1,
        "ranks": "2/2",
        "verdict": "Pays",
        "conditions": [
            condition("SpecValid", "True", "Valid"),
            condition("Ready", "True", "TierReady"),
            condition("PlacementAccepted", "True", "Accepted", "No check found an error."),
            condition("EarningItsKeep", "True", "Pays", "A hit is faster. It needs 1.64 GB/s."),
        ],
        "rankStates": [
            {"rank": 0, "ready": True, "node": "node-1", "domain": "zone-a"},
            {"rank": 1, "ready": True, "node": "node-2"},
        ],
        "breakEven": {
            "chunkBytes": 83886080,
            "bytesPerSecond": 1638400000,
            "minimumHitTokens": 2400,
        },
        "measured": {
            "bytesPerSecond": 3200000000,
            "roundTripSeconds": 0.0002,
            "evidence": "Probed",
            "at": SEEN,
            "ratio": 1.95,
            "node": "node-3",
        },
        "domain": "zone=zone-a",
        "generations": [{"id": "0123456789ab", "state": "Live"}],
        "engineSecret": "chat-engine-0123456789ab",
    }
    return {
        "apiVersion": "kvtier.dev/v1alpha1",
        "kind": "KVCacheTier",
        "metadata": {"name": "chat", "namespace": "serving", "generation": generation},
        "spec": {
            "model": {"name": "org/model", "kvCacheDtype": "bfloat16"},
            "pool": {"ranks": 2, "striping": "Hash"},
        },
        "status": known | status,
    }


def lease(*, renewed: float = 2, holder: str | None = "kvtier-0_x") -> Body:
    """A controller's Lease, renewed so many seconds ago."""
    at = (datetime.now(UTC) - timedelta(seconds=renewed)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = {"renewTime": at, "leaseDurationSeconds": 15}
    return {
        "metadata": {"namespace": "kvtier-system", "name": "kvtier"},
        "spec": spec | ({"holderIdentity": holder} if holder else {}),
    }


def engine(name: str, *arguments: str, generation: str = "0123456789ab") -> Body:
    return {
        "metadata": {"name": name, "labels": {"kvtier.dev/tier": "chat"}},
        "spec": {
            "containers": [
                {
                    "name": "vllm",
                    "command": ["vllm", "serve", "org/model", *arguments],
                    "envFrom": [{"configMapRef": {"name": "settings"}}],
                    "volumeMounts": [{"name": "kvtier", "mountPath": "/kvtier"}],
                }
            ],
            "volumes": [{"name": "kvtier", "secret": {"secretName": f"chat-engine-{generation}"}}],
        },
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }
