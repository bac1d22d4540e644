"""The events of a tier, read with the rights of who asks."""

from kvtier.cli.changes import History
from kvtier.cluster.protocol import EVENT, TIER, ApiError, Cluster, Forbidden, Unavailable


def selector(tier: str) -> str:
    """The field selector of a tier's events; empty for those of all tiers."""
    which = f"involvedObject.kind={TIER.kind}"
    return f"{which},involvedObject.name={tier}" if tier else which


def missing(namespace: str, verb: str = "list") -> str:
    """That they cannot be seen, in a sentence."""
    where = f"in namespace {namespace}" if namespace else "in all namespaces"
    return f"Events are not known: that takes the right to {verb} events {where}."


async def read_events(cluster: Cluster, namespace: str, tier: str) -> History:
    """Those that the API server still has (an hour, if nobody changed that). Raises Unavailable."""
    try:
        return History(await cluster.list(EVENT, namespace, field_selector=selector(tier)))
    except Forbidden:
        return History(None, missing(namespace))
    except Unavailable:
        raise
    except ApiError as error:
        return History(None, f"Events are not known: {error}")
