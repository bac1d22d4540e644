"""Reads what a report has, with the rights of who asks. No Secret is ever asked for."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from kvtier.cli import status
from kvtier.cli.active import USUAL_NAMESPACE
from kvtier.cli.report_bundle import Bundle
from kvtier.cli.report_objects import event_lines, metrics_of
from kvtier.cluster.client import AioCluster
from kvtier.cluster.protocol import (
    CONFIGMAP,
    EVENT,
    JOB,
    LEASE,
    NODE,
    POD,
    SERVICE,
    STATEFULSET,
    ApiError,
    Forbidden,
    Kind,
    Object,
)
from kvtier.reconcile.lease import LABEL
from kvtier.render.names import POOL_LABEL, TIER_LABEL, probe_name

DEPLOYMENT: Final = Kind("apps/v1", "deployments", "Deployment")
QUOTA: Final = Kind("v1", "resourcequotas", "ResourceQuota")
LIMITS: Final = Kind("v1", "limitranges", "LimitRange")
POLICY: Final = Kind("networking.k8s.io/v1", "networkpolicies", "NetworkPolicy")
OF_THE_TIER: Final = (STATEFULSET, SERVICE, CONFIGMAP, POD)
OF_THE_NAMESPACE: Final = (QUOTA, LIMITS, POLICY)
MOST_LOG_BYTES: Final = 4 << 20
"""Of one container."""
METRICS_PORT: Final = 8080

Step = tuple[str, Callable[[], Awaitable[None]]]


@dataclass(slots=True)
class Collector:
    """Fills ``bundle``; what cannot be read is named in it. ``view`` is the tier's screen."""

    cluster: AioCluster
    bundle: Bundle
    view: status.View
    namespace: str
    tier: str
    lines: int
    ranks: list[Object] = field(default_factory=list)
    engines: list[Object] = field(default_factory=list)
    kvtier: list[Object] = field(default_factory=list)
    nodes_known: bool = False

    def steps(self) -> list[Step]:
        """In this order: later ones use what earlier ones found."""
        return [
            ("the tier", self._tier),
            ("its objects", self._children),
            ("engines' pods", self._engines),
            ("quotas and policies", self._around),
            ("nodes", self._nodes),
            ("events", self._events),
            ("kvtier's own pods", self._own),
            ("leases", self._leases),
            ("metrics", self._metrics),
            ("logs of ranks", self._rank_logs),
            ("logs of kvtier", self._own_logs),
            ("versions", self._versions),
        ]

    async def _tier(self) -> None:
        self.bundle.add_objects("tier.yaml", [self.view.body])
        self.bundle.add("status.txt", status.render(self.view, form="table"))
        self.bundle.add("status.json", status.render(self.view, form="json"))

    async def _children(self) -> None:
        for kind in OF_THE_TIER:
            found = await self._list(kind, self.namespace, f"{TIER_LABEL}={self.tier}")
            self.bundle.add_objects(f"objects/{kind.plural}.yaml", list(found))
            if kind is POD:
                self.ranks = found
        try:
            job = await self.cluster.get(JOB, self.namespace, probe_name(self.tier))
        except ApiError as error:
            self._lacks(f"Job {probe_name(self.tier)}", error, "get jobs", self.namespace)
        else:
            self.bundle.add_objects("objects/probe.yaml", [job] if job else [])

    async def _engines(self) -> None:
        self.engines = await self._list(POD, self.namespace, f"{POOL_LABEL}={self.tier}")
        self.bundle.add_objects("objects/engines.yaml", list(self.engines))

    async def _around(self) -> None:
        for kind in OF_THE_NAMESPACE:
            found = await self._list(kind, self.namespace)
            self.bundle.add_objects(f"objects/{kind.plural}.yaml", list(found))

    async def _nodes(self) -> None:
        pods = (*self.ranks, *self.engines)
        names = sorted({node for pod in pods if (node := pod["spec"].get("nodeName"))})
        found: list[Object] = []
        for name in names:
            try:
                node = await self.cluster.get(NODE, "", name)
            except ApiError as error:
                self._lacks("nodes", error, "get nodes", "")
                return
            if node is not None:
                found.append(node)
        self.nodes_known = bool(found)
        self.bundle.add_objects("objects/nodes.yaml", list(found))

    async def _events(self) -> None:
        events = await self._list(EVENT, self.namespace)
        names = [self.tier, *(pod["metadata"]["name"] for pod in self.engines)]
        if text := event_lines(events, about=names):
            self.bundle.add("events.txt", text)

    async def _own(self) -> None:
        for kind, name in ((POD, "kvtier-pods"), (DEPLOYMENT, "kvtier-deployments")):
            found = await self._own_objects(kind)
            self.bundle.add_objects(f"objects/{name}.yaml", list(found))
            if kind is POD:
                self.kvtier = found

    async def _leases(self) -> None:
        self.bundle.add_objects("objects/leases.yaml", list(await self._own_objects(LEASE)))

    async def _own_objects(self, kind: Kind) -> list[Object]:
        """Wherever they are, or in the usual namespace where one may not look everywhere."""
        try:
            return await self.cluster.list(kind, "", LABEL)
        except Forbidden:
            what = f"kvtier's own {kind.plural}"
            return await self._list(kind, USUAL_NAMESPACE, LABEL, what=what)
        except ApiError as error:
            self.bundle.lacks(f"kvtier's own {kind.plural}", str(error))
            return []

    async def _metrics(self) -> None:
        for pod in self.kvtier:
            namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
            path = f"{POD.path(namespace, name)}:{METRICS_PORT}/proxy/metrics"
            try:
                raw = await self.cluster.read(path)
            except ApiError as error:
                self._lacks(f"metrics of pod {name}", error, "get pods/proxy", namespace)
                continue
            text = metrics_of(
                raw.decode(errors="replace"), namespace=self.namespace, tier=self.tier
            )
            self.bundle.add(f"metrics/{name}.txt", text)

    async def _rank_logs(self) -> None:
        await self._logs(self.ranks)

    async def _own_logs(self) -> None:
        await self._logs(self.kvtier)

    async def _logs(self, pods: list[Object]) -> None:
        for pod in pods:
            states = (pod.get("status") or {}).get("containerStatuses") or ()
            restarted = {each["name"] for each in states if each.get("restartCount")}
            for container in pod["spec"]["containers"]:
                name = container["name"]
                await self._log(pod, name, previous=False)
                if name in restarted:
                    await self._log(pod, name, previous=True)

    async def _log(self, pod: Object, container: str, *, previous: bool) -> None:
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        query = {
            "container": container,
            "tailLines": str(self.lines),
            "limitBytes": str(MOST_LOG_BYTES),
        }
        which = f"{name}-{container}{'-previous' if previous else ''}"
        try:
            raw = await self.cluster.read(
                f"{POD.path(namespace, name)}/log",
                query | ({"previous": "true"} if previous else {}),
            )
        except ApiError as error:
            self._lacks(f"log of {which}", error, "get pods/log", namespace)
            return
        self.bundle.add(f"logs/{which}.log", raw.decode(errors="replace"))

    async def _versions(self) -> None:
        try:
            server: Any = json.loads(await self.cluster.read("/version"))
        except (ApiError, ValueError) as error:
            self.bundle.lacks("version of the API server", str(error))
            server = {}
        pods = (*self.kvtier, *self.ranks)
        images = {
            each["image"]: each.get("imageID", "")
            for pod in pods
            for each in (pod.get("status") or {}).get("containerStatuses") or ()
        }
        self.bundle.add_document(
            "versions.yaml", {"kubernetes": server.get("gitVersion"), "images": images}
        )

    async def _list(
        self, kind: Kind, namespace: str, labels: str = "", *, what: str = ""
    ) -> list[Object]:
        try:
            return await self.cluster.list(kind, namespace, labels)
        except ApiError as error:
            self._lacks(what or kind.plural, error, f"list {kind.plural}", namespace)
            return []

    def _lacks(self, what: str, error: ApiError, right: str, namespace: str) -> None:
        if isinstance(error, Forbidden):
            where = f" in namespace {namespace}" if namespace else ""
            self.bundle.lacks(what, f"that takes the right to {right}{where}")
        else:
            self.bundle.lacks(what, str(error))
