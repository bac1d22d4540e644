"""Where the scheduler may put a rank: the tier's domain, spread over nodes, GPU nodes included."""

from typing import Any, Final

from kvtier.api.types import Enforcement, KVCacheTier, Spread
from kvtier.placement.domain import Domain
from kvtier.placement.topology import HOSTNAME_KEY
from kvtier.render.names import TIER_LABEL

GPU_TAINTS: Final = (
    "nvidia.com/gpu",
    "amd.com/gpu",
    "gpu.intel.com/i915",
    "gpu.intel.com/xe",
    "habana.ai/gaudi",
    "google.com/tpu",
    "aws.amazon.com/neuron",
)
"""Taints of nodes with accelerators: each is named after the resource that the node offers."""


def affinity(tier: KVCacheTier, domain: Domain | None) -> dict[str, Any] | None:
    """The node affinity that brings ranks into the domain; None without one, and where
    ``store.nodeSelector`` says itself which one it is."""
    if domain is None or domain.key in tier.spec.store.node_selector:
        return None
    term = {
        "matchExpressions": [{"key": domain.key, "operator": "In", "values": [domain.value]}],
    }
    if tier.spec.placement.enforcement is Enforcement.REQUIRED:
        terms = {"nodeSelectorTerms": [term]}
        return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    preference = [{"weight": 100, "preference": term}]
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preference}}


def spread(tier: KVCacheTier) -> list[dict[str, Any]] | None:
    """Ranks on as many nodes as there is room on, so that they share no NIC.

    Never a condition, whatever is enforced: a rank that waits for an even spread costs the whole
    tier, and one more on a node costs a share of its link.
    """
    if tier.spec.placement.spread is Spread.NONE:
        return None
    return [
        {
            "maxSkew": 1,
            "topologyKey": HOSTNAME_KEY,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {TIER_LABEL: tier.metadata.name}},
        }
    ]
