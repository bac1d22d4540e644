"""The Service of one rank: the address that engines have, whatever pod is behind it."""

from typing import Any

from kvtier.api.types import KVCacheTier
from kvtier.render.meta import metadata
from kvtier.render.names import POD_NAME_LABEL, PORT, rank_name, selector


def service(tier: KVCacheTier, rank: int) -> dict[str, Any]:
    """Only Ready pods are behind it (the default, which the live object does not show): a rank that
    is gone refuses connections at once."""
    name = rank_name(tier.metadata.name, rank)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(tier, name, rank=rank),
        "spec": {
            "type": "ClusterIP",
            # The StatefulSet's one pod has this name; a pod that only carries the tier's labels
            # does not get engines' connections, and their token with them.
            "selector": selector(tier.metadata.name, rank) | {POD_NAME_LABEL: f"{name}-0"},
            "ports": [{"name": "valkey", "port": PORT, "protocol": "TCP", "targetPort": "valkey"}],
        },
    }
