"""kopf's part: watch, and enqueue. Everything else happens in the reconciler.

Only ``on.event`` handlers are used: kopf then keeps no state on the objects, adds no finalizer and
writes nothing at all.
"""

import asyncio
import random
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import chain, repeat
from typing import Any

import kopf

from kvtier.api.types import API_VERSION, GROUP, KIND, PLURAL, VERSION
from kvtier.cluster.client import AioCluster
from kvtier.cluster.protocol import POD
from kvtier.plan.lost_nodes import node_facts
from kvtier.plan.placement import engine_of
from kvtier.plan.planned import ROLL_REQUESTED
from kvtier.plan.pool import digest_of, has_ended
from kvtier.plan.probing import REQUESTED as PROBE_REQUESTED
from kvtier.reconcile.memory import Key, Memory
from kvtier.reconcile.placing import ENGINE
from kvtier.reconcile.queue import KeyedQueue
from kvtier.render.names import POOL_LABEL, TIER_LABEL

CHILDREN = (("apps", "v1", "statefulsets"), ("", "v1", "services"), ("", "v1", "configmaps"))
MANAGED_BY = "app.kubernetes.io/managed-by=kvtier"
POOL = ("", "v1", "pods")
NODES = ("", "v1", "nodes")
REQUESTS = (PROBE_REQUESTED, ROLL_REQUESTED)
"""Annotations by which people ask for something."""
DEBOUNCE = 0.1
"""Seconds that events of children are gathered for; deletions and the tier's own are not."""

RELIST_SPREAD = 0.02
RELIST_SPREAD_MOST = 5.0
"""Seconds a tier, and at most, over which reconciles after a new listing are spread."""


class Watcher:
    """Turns kopf's events into keys of the queue."""

    def __init__(
        self,
        *,
        queue: KeyedQueue[Key],
        memory: Memory,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._jitter = jitter
        self._queue = queue
        self._memory = memory
        self._seen: dict[Key, object] = {}

    def on_tier(self, event: Mapping[str, Any]) -> None:
        """Enqueue a tier unless only its status moved: the reconciler wrote that itself."""
        obj = event["object"]
        metadata = obj["metadata"]
        key = (metadata["namespace"], metadata["name"])
        if event["type"] == "DELETED":
            self._seen.pop(key, None)
        else:
            shown = (
                metadata["uid"],
                metadata["generation"],
                metadata.get("deletionTimestamp"),
                *(metadata.get("annotations", {}).get(name) for name in REQUESTS),
            )
            if self._seen.get(key) == shown and event["type"] is not None:
                return
            self._seen[key] = shown
        self._queue.add(key, dirty=frozenset({KIND}))

    def on_child(self, event: Mapping[str, Any]) -> None:
        """Enqueue the owner of a child, unless this process has read or written this version."""
        obj = event["object"]
        key = owner_key(obj)
        if key is None:
            return
        deleted = event["type"] == "DELETED"
        if not deleted and self._memory.is_known_version(key, obj):
            return
        self._queue.add(key, dirty=frozenset({obj["kind"]}), delay=0.0 if deleted else DEBOUNCE)

    def on_engine(self, event: Mapping[str, Any]) -> None:
        """Enqueue the tier whose engine came, went, moved, became ready or may run another model;
        nothing else of a pod matters. One whose label was taken away is known by its name."""
        pod = event["object"]
        metadata = pod["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        labelled = metadata.get("labels", {}).get(POOL_LABEL)
        own = (namespace, labelled) if labelled and event["type"] != "DELETED" else None
        for key in {*self._memory.tiers_with_engine(namespace, name), *([own] if own else [])}:
            engine = engine_of(pod) if key == own else None
            digest = digest_of(pod) if key == own and not has_ended(pod) else None
            if not self._memory.is_known_engine(key, name, engine, digest=digest):
                self._queue.add(key, dirty=frozenset({ENGINE}), delay=DEBOUNCE)

    def on_node(self, event: Mapping[str, Any]) -> None:
        """Enqueue the tiers that have a rank or an engine on a node that is not as they read it.

        What a node reports every few minutes changes nothing of it, and costs nothing.
        """
        node = event["object"]
        facts = node_facts(None if event["type"] == "DELETED" else node)
        for key in self._memory.note_node(node["metadata"]["name"], facts):
            self._queue.add(key, delay=DEBOUNCE)

    def on_relist(self, kind: str) -> None:
        """Look at every tier's objects of a kind: what was deleted in a gap sends no event."""
        if kind == POD.kind:
            # Only engines' pods are watched.
            kind = ENGINE
        keys = self._memory.keys()
        spread = min(RELIST_SPREAD * len(keys), RELIST_SPREAD_MOST)
        for key in keys:
            self._queue.add(key, dirty=frozenset({kind}), delay=spread * self._jitter())


def owner_key(obj: Mapping[str, Any]) -> Key | None:
    """The tier that controls the object; by its label if someone took the reference away."""
    metadata = obj["metadata"]
    for owner in metadata.get("ownerReferences", []):
        if owner.get("controller") and owner["kind"] == KIND and owner["apiVersion"] == API_VERSION:
            return metadata["namespace"], owner["name"]
    name = metadata.get("labels", {}).get(TIER_LABEL)
    return (metadata["namespace"], name) if name else None


def registry(watcher: Watcher, cluster: AioCluster) -> kopf.OperatorRegistry:
    """The handlers: one that logs in, and one for each watched kind."""
    handlers = kopf.OperatorRegistry()

    @kopf.on.login(registry=handlers)
    async def login(**_: Any) -> kopf.AiohttpSession:
        return kopf.AiohttpSession(
            server=cluster.server,
            aiohttp_session=cluster.watch_session(on_relist=watcher.on_relist),
            default_namespace=None,
        )

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=handlers)
    async def tier(event: Mapping[str, Any], **_: Any) -> None:
        watcher.on_tier(event)

    for group, version, plural in CHILDREN:

        @kopf.on.event(group, version, plural, registry=handlers, id=plural)
        async def child(event: Mapping[str, Any], **_: Any) -> None:
            watcher.on_child(event)

    @kopf.on.event(*POOL, registry=handlers)
    async def engine(event: Mapping[str, Any], **_: Any) -> None:
        watcher.on_engine(event)

    @kopf.on.event(*NODES, registry=handlers)
    async def node(event: Mapping[str, Any], **_: Any) -> None:
        watcher.on_node(event)

    return handlers


class _Backoffs:
    """Seconds between tries, without end: kopf gives up, and ends, after the last of a list.

    The cap bounds how long after an outage of the API server the watches come back.
    """

    def __iter__(self) -> Iterator[float]:
        return chain((0.5, 1, 2), repeat(3))


def settings() -> kopf.OperatorSettings:
    """kopf's settings. Those of memory are measured: an object's task and body live for
    ``idle_timeout``, so a first list of thousands of objects is what decides the process's size."""
    configured = kopf.OperatorSettings()
    configured.posting.enabled = False
    # kopf strips this finalizer from every object that it watches: it must be nobody's.
    configured.persistence.finalizer = f"{GROUP}/unused"
    configured.scanning.disabled = True
    configured.queueing.idle_timeout = 0.05
    configured.watching.chunk_size = 100
    for group, version, plural in CHILDREN:
        configured.watching.label_selectors[group, version, plural] = MANAGED_BY
    configured.watching.label_selectors[POOL] = POOL_LABEL
    configured.networking.error_backoffs = _Backoffs()
    # One page of a list is one request; a watch is bounded by kopf's inactivity_timeout of 70 s.
    configured.networking.request_timeout = 30
    configured.networking.connect_timeout = 5
    configured.process.ultimate_exiting_timeout = 20
    return configured


async def watch(
    watcher: Watcher,
    *,
    cluster: AioCluster,
    namespaces: Collection[str],
    ready: asyncio.Event,
    stop: asyncio.Event,
) -> None:
    """Watch until ``stop`` is set or the process is told to end. Empty namespaces mean all."""
    await kopf.operator(
        registry=registry(watcher, cluster),
        settings=settings(),
        # No peering is used. Without a name kopf asks for the user's, which a uid need not have.
        identity="kvtier",  # type: ignore[arg-type]  # its type is private to kopf
        standalone=True,
        clusterwide=not namespaces,
        namespaces=list(namespaces),
        ready_flag=ready,
        stop_flag=stop,
    )
