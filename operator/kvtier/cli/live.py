"""What commands that ask a cluster share: finding it, reading the tier, errors in one line."""

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from kvtier.cli.errors import BadInput
from kvtier.cluster.client import AioCluster
from kvtier.cluster.connect import NoCluster, connect, default_namespace
from kvtier.cluster.protocol import TIER, ApiError, Cluster, NotFound, Object, Unavailable

Answer = TypeVar("Answer")
SECONDS: Final = 10.0
"""What one request may take."""
NO_KIND: Final = (
    "this cluster does not know KVCacheTiers; see whether it is the one that you mean, and whether "
    "kvtier is installed there"
)
MANAGER: Final = "kubectl-kvtier"
"""Whose writes these are: a person's, not the operator's."""


def ask(
    arguments: argparse.Namespace,
    work: Callable[[AioCluster, str], Awaitable[Answer]],
    *,
    namespace: str | None = None,
) -> Answer:
    """What ``work(cluster, namespace)`` returns, by the flags of ``flags.add_cluster``.

    The namespace is the one that was named, else ``namespace``, else the context's. Raises
    BadInput when the cluster cannot be found or does not answer.
    """
    where = {"context": arguments.context, "kubeconfig": arguments.kubeconfig}

    async def run() -> Answer:
        found = arguments.namespace or namespace or default_namespace(**where)
        async with connect(**where, timeout=SECONDS, field_manager=MANAGER) as cluster:
            return await work(cluster, found)

    try:
        return asyncio.run(run())
    except NoCluster as error:
        raise BadInput(str(error)) from None
    except Unavailable as error:
        raise BadInput(f"{error.message}; check the kubeconfig and its context") from None


async def read_tier(cluster: Cluster, namespace: str, name: str) -> Object:
    """The tier. Raises BadInput without one, Unavailable without an answer."""
    try:
        body = await cluster.get(TIER, namespace, name)
    except NotFound:
        # It would be None where only the tier is missing.
        raise BadInput(NO_KIND) from None
    except Unavailable:
        raise
    except ApiError as error:
        raise BadInput(f"KVCacheTier {namespace}/{name}: {error}") from None
    if body is None:
        raise BadInput(f"KVCacheTier {namespace}/{name}: not found; see kubectl get kvt -A")
    return body


async def read_tiers(cluster: Cluster, namespace: str) -> list[Object]:
    """All tiers of a namespace, of the cluster for "". Raises BadInput without the right to them,
    Unavailable without an answer."""
    try:
        return await cluster.list(TIER, namespace)
    except NotFound:
        raise BadInput(NO_KIND) from None
    except Unavailable:
        raise
    except ApiError as error:
        what = f"of namespace {namespace}" if namespace else "of all namespaces"
        raise BadInput(f"KVCacheTiers {what}: {error}") from None
