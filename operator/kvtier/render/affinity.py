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

PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
SKEW_OF_A_PREFERENCE: Final = 4
"""``maxSkew`` per rank beside a preferred domain. The scheduler weighs both preferences alike: with
a skew of 1 the first empty node outside is worth as much as the domain. It scores a node with
``ranks there x ln(nodes + 2) + maxSkew - 1`` in proportion to the greatest, so this much leaves an
empty node two thirds of the domain's worth at most, with all ranks on one node of a thousand.
"""


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
    return {"nodeAffinity": {PREFERRED: [{"weight": 100, "preference": term}]}}


def spread(tier: KVCacheTier, domain: Domain | None) -> list[dict[str, Any]] | None:
    """Ranks on as many nodes as there is room on, so that they share no NIC.

    Never a condition, whatever is enforced: a rank that waits for an even spread costs the whole
    tier, and one more on a node costs a share of its link.
    """
    if tier.spec.placement.spread is Spread.NONE:
        return None
    wanted = affinity(tier, domain)
    is_preferred = wanted is not None and PREFERRED in wanted["nodeAffinity"]
    return [
        {
            "maxSkew": SKEW_OF_A_PREFERENCE * tier.spec.pool.ranks if is_preferred else 1,
            "topologyKey": HOSTNAME_KEY,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {TIER_LABEL: tier.metadata.name}},
        }
    ]
