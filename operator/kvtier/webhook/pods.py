"""Pods that ask to be injected: their tier is read, and whoever owns it is told what was not."""

import asyncio
import logging
import re
from collections.abc import Mapping
from typing import Any, Final

from kvtier.api import reasons
from kvtier.api.load import InvalidTier, parse_tier
from kvtier.cluster.protocol import TIER, ApiError, Cluster, Object
from kvtier.generation.pods.safe import mapping, mappings, text
from kvtier.plan.observed import EventSpec, EventType
from kvtier.reconcile.clock import Clock, SystemClock
from kvtier.reconcile.events import Recorder
from kvtier.webhook.injection import inject, wanted_tier
from kvtier.webhook.matching import Cause, LeftAlone
from kvtier.webhook.metrics import WebhookMetrics
from kvtier.webhook.review import BadReview, Decision, Request

log = logging.getLogger(__name__)

READ_SECONDS: Final = 2.0
"""For the tier; the API server waits for three by default."""
TOLD_WITHIN: Final = 3600.0
"""Seconds within which one workload is told of once for one cause."""
MAX_REMEMBERED: Final = 4096
MAX_TELLING: Final = 16
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")

_Told = tuple[str, str, str]


class Injector:
    """Decides about the creation of pods. Its right: get of tiers, create of events."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        metrics: WebhookMetrics,
        instance: str,
        clock: Clock | None = None,
    ) -> None:
        self._cluster = cluster
        self._metrics = metrics
        self._clock = clock or SystemClock()
        self._recorder = Recorder(cluster, instance=instance, clock=self._clock)
        self._told: dict[_Told, float] = {}
        self._telling: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Wait for events that are on their way."""
        await asyncio.gather(*self._telling)

    async def decide(self, request: Request) -> Decision:
        """What is added to a pod; never a refusal. Raises BadReview where it lacks its object."""
        if request.operation != "CREATE" or request.subresource:
            return Decision()
        pod = request.object
        if pod is None:
            raise BadReview("request.object: missing; a review of CREATE has one")
        document: Object | None = None
        try:
            name = wanted_tier(pod)
            if name is None:
                return Decision()
            document = await self._read(request.namespace, name)
            found = inject(pod, tier=parse_tier(document), document=document)
        except InvalidTier as error:
            left = LeftAlone(Cause.TIER, f"the tier's spec is refused: {error.errors[0]}")
        except LeftAlone as error:
            left = error
        else:
            if found is None:
                return Decision()
            self._metrics.count_pod(result="injected")
            return Decision(patch=found.operations)
        self._metrics.count_pod(result="leftAlone")
        if document is not None and not request.dry_run:
            self._tell(document, pod, left)
        return Decision(warnings=(f"kvtier left this pod alone, it uses no tier: {left}",))

    async def _read(self, namespace: str, name: str) -> Object:
        if not (_NAME.fullmatch(namespace) and _NAME.fullmatch(name)):
            raise LeftAlone(Cause.TIER, "its label or its namespace is no name of a tier")
        try:
            found = await self._cluster.get(TIER, namespace, name)
        except ApiError as error:
            log.warning("tier %s/%s was not read: %s", namespace, name, error)
            raise LeftAlone(Cause.TIER, f"tier {name} could not be read; try again") from None
        if found is None or found["metadata"].get("deletionTimestamp"):
            raise LeftAlone(Cause.TIER, f"there is no tier {name} in its namespace")
        return found

    def _tell(self, tier: Object, pod: Mapping[str, Any], left: LeftAlone) -> None:
        """An event on the tier, without the pod waiting for it."""
        workload = workload_of(pod)
        told = (str(tier["metadata"]["uid"]), left.cause.value, workload)
        now = self._clock.monotonic()
        for each in [each for each, at in self._told.items() if now - at > TOLD_WITHIN]:
            del self._told[each]
        full = len(self._told) >= MAX_REMEMBERED or len(self._telling) >= MAX_TELLING
        if told in self._told or full:
            return
        self._told[told] = now
        event = EventSpec(
            type=EventType.WARNING,
            reason=reasons.POD_NOT_INJECTED,
            message=f"{workload} uses no tier: {left}",
        )
        task = asyncio.create_task(self._recorder.record(tier, event))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)


def workload_of(pod: Mapping[str, Any]) -> str:
    """What makes the pod, such as ``Deployment llama``, for people."""
    metadata = mapping(pod.get("metadata"))
    owners = [each for each in mappings(metadata.get("ownerReferences")) if each.get("controller")]
    if not owners:
        name = text(metadata.get("name")) or text(metadata.get("generateName")).rstrip("-")
        return f"Pod {name}"
    kind, name = text(owners[0].get("kind")), text(owners[0].get("name"))
    template = text(mapping(metadata.get("labels")).get("pod-template-hash"))
    if kind == "ReplicaSet" and template and name.endswith(f"-{template}"):
        return f"Deployment {name.removesuffix(f'-{template}')}"
    return f"{kind} {name}"
