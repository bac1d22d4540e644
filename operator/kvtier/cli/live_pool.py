"""The pods of a tier's pool, read with the rights of who asks."""

from kvtier.cli.status_generations import Pool
from kvtier.cluster.protocol import (
    CONFIGMAP,
    POD,
    ApiError,
    Cluster,
    Forbidden,
    Object,
    Unavailable,
)
from kvtier.plan.pool import config_maps_wanted, pool_pods
from kvtier.render.names import POOL_LABEL


async def read_pool(cluster: Cluster, namespace: str, tier: str) -> Pool:
    """What the pods labelled with the tier mount and run; says so where they may not be listed.

    A ConfigMap that may not be read makes what it holds unreadable. Raises Unavailable.
    """
    try:
        found = await cluster.list(POD, namespace, f"{POOL_LABEL}={tier}")
    except Forbidden:
        hint = f"that takes the right to list pods in namespace {namespace}"
        return Pool(None, f"Who uses them is not known: {hint}.")
    except Unavailable:
        raise
    except ApiError as error:
        return Pool(None, f"Who uses them is not known: {error}")
    config_maps: dict[str, Object] = {}
    for name in config_maps_wanted(found):
        try:
            body = await cluster.get(CONFIGMAP, namespace, name)
        except Unavailable:
            raise
        except ApiError:
            continue
        if body is not None:
            config_maps[name] = body
    pods = pool_pods(found, tier=tier, config_maps=config_maps)
    return Pool(tuple(sorted(pods, key=lambda pod: pod.name)))
