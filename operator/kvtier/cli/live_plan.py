"""``kvtier plan --live``: nodes, engines, ranks and the measured link of a tier's cluster."""

import argparse
from typing import Any, Final

from kvtier.api.types import KVCacheTier
from kvtier.breakeven.observed import seen_before
from kvtier.cli import live
from kvtier.cli.around import Around
from kvtier.cli.errors import BadInput
from kvtier.cluster.protocol import (
    NODE,
    POD,
    TIER,
    ApiError,
    Cluster,
    NotFound,
    Object,
    Unavailable,
)
from kvtier.plan.lost_nodes import node_facts
from kvtier.plan.placement import domain_named, engine_of
from kvtier.plan.probing import link_of
from kvtier.render.names import POOL_LABEL

_FIX: Final = "reading it takes the right to list nodes and pods; without, name a file by --nodes"


def load(arguments: argparse.Namespace, tier: KVCacheTier) -> Around:
    """What the cluster says of the tier's surroundings, applied or not. Raises BadInput."""

    async def read(cluster: Cluster, namespace: str) -> Around:
        try:
            return await _read(cluster, namespace, tier=tier, source=source)
        except Unavailable:
            raise
        except ApiError as error:
            raise BadInput(f"the cluster: {error}; {_FIX}") from None

    source = f"context {arguments.context}" if arguments.context else "the cluster"
    named = "namespace" in tier.metadata.model_fields_set
    return live.ask(arguments, read, namespace=tier.metadata.namespace if named else None)


async def _read(cluster: Cluster, namespace: str, *, tier: KVCacheTier, source: str) -> Around:
    name = tier.metadata.name
    nodes = await cluster.list(NODE, "")
    pods = await cluster.list(POD, namespace, f"{POOL_LABEL}={name}")
    try:
        body = await cluster.get(TIER, namespace, name)
    except NotFound:
        # A cluster without kvtier: what one would want to know before installing it.
        body = None
    status = _status(body)
    return Around(
        source=source,
        nodes={node["metadata"]["name"]: node_facts(node) for node in nodes},
        engines=[engine for pod in pods if (engine := engine_of(pod))],
        ranks={
            each["rank"]: each["node"]
            for each in status.get("rankStates", ())
            if "node" in each and each["rank"] < tier.spec.pool.ranks
        },
        chosen=domain_named(tier, status.get("domain", "")),
        link=link_of(status, ranks=tier.spec.pool.ranks),
        seen=seen_before(tier.spec, status),
    )


def _status(body: Object | None) -> dict[str, Any]:
    return (body or {}).get("status") or {}
