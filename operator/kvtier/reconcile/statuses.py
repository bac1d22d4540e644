"""Writing a tier's status, when it says something new."""

from collections.abc import Callable

from kvtier.cluster.protocol import TIER, ApiError, Cluster, NotFound, Object
from kvtier.metrics import Metrics
from kvtier.plan.drift import contains
from kvtier.reconcile.execute import NotLeading
from kvtier.reconcile.memory import TierMemory


class StatusWriter:
    """Writes as long as ``leads()`` says so."""

    def __init__(self, *, cluster: Cluster, leads: Callable[[], bool], metrics: Metrics) -> None:
        self._cluster = cluster
        self._leads = leads
        self._metrics = metrics

    async def apply(self, memory: TierMemory, body: Object, status: Object) -> bool:
        """Write the status if it differs from the last one; whether it was written.

        Raises ApiError when it was not, or when that cannot be told.
        """
        metadata = body["metadata"]
        self._metrics.set_conditions(metadata["namespace"], metadata["name"], status["conditions"])
        live = body.get("status") or {}
        # What others add to a status stays, as server-side apply leaves it.
        if status == live or (status == memory.written and contains(live, status)):
            return False
        if not self._leads():
            raise NotLeading
        try:
            written = await self._cluster.apply_status(
                {
                    "apiVersion": TIER.api_version,
                    "kind": TIER.kind,
                    "metadata": {"namespace": metadata["namespace"], "name": metadata["name"]},
                    "status": status,
                },
                uid=metadata["uid"],
            )
        except NotFound:
            # The tier is gone: its own event says so.
            return False
        except ApiError:
            # Nobody knows what it has now: an answer may be lost, another of its name may be there.
            memory.forget_full_read()
            raise
        body["status"] = written.get("status", {})
        memory.written = status
        return True
