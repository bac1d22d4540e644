"""The half of a limiter that looks: the API server, ranks and engines, and each tier's machine."""

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

import aiohttp

from kvtier.cluster.client import AioCluster
from kvtier.cluster.protocol import POD, SECRET, TIER, Object
from kvtier.engines.scrape import Scraper
from kvtier.limiter import engines
from kvtier.limiter.known import Known
from kvtier.limiter.objects import ObjectWatch
from kvtier.limiter.prometheus import PrometheusReader
from kvtier.limiter.ranks import TIMEOUT
from kvtier.limiter.sources import DirectSource, PrometheusSource
from kvtier.limiter.watch import Watch
from kvtier.reconcile.clock import Clock
from kvtier.render.names import POOL_LABEL
from kvtier.store.client import connector
from kvtier.store.protocol import Connect

ALL: Final = ("",)


class Observer:
    """Everything that brings ``tiers`` up to date.

    ``namespaces``: those whose tiers count, none for all. ``prometheus``: the URL of one that is
    asked for engines' figures, None to ask the engines themselves.
    """

    def __init__(
        self,
        cluster: AioCluster,
        *,
        namespaces: Sequence[str] = (),
        prometheus: str | None = None,
        clock: Clock,
        connect: Connect | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._cluster = cluster
        self._namespaces = tuple(namespaces)
        self._prometheus = prometheus
        self._clock = clock
        self._jitter = jitter
        self._known = Known()
        self._watches: dict[tuple[str, str], ObjectWatch] = {}
        self.tiers = Watch(
            self._known,
            pods_known_at=self._pods_known_at,
            get_secret=partial(cluster.get, SECRET),
            connect=connect or connector(connect_seconds=TIMEOUT, reply_seconds=TIMEOUT),
            clock=clock,
            jitter=jitter,
        )

    def listed(self) -> bool:
        """Whether tiers and pods have all been listed once."""
        found = self._watches.values()
        return bool(found) and all(each.freshness.at is not None for each in found)

    async def run(self, stop: asyncio.Event) -> None:
        """Look until ``stop`` is set."""
        async with AsyncExitStack() as stack:
            # Whoever was deleted while nobody watched is missing in the next list.
            session = self._cluster.watch_session(on_relist=lambda kind: None)
            await stack.enter_async_context(session)
            for namespace in self._namespaces or ALL:
                self._watches["tiers", namespace] = self._tier_watch(namespace, session)
                self._watches["pods", namespace] = self._pod_watch(namespace, session)
            source = await self._source(stack)
            async with asyncio.TaskGroup() as group:
                watches = self._watches.values()
                waiting = [group.create_task(each.run(stop)) for each in watches]
                waiting.append(group.create_task(source.run(stop)))
                group.create_task(self.tiers.run(stop))
                await stop.wait()
                # A watch that nothing happens in would last for minutes.
                for task in waiting:
                    task.cancel()

    async def _source(self, stack: AsyncExitStack) -> DirectSource | PrometheusSource:
        if self._prometheus is not None:
            session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
            await stack.enter_async_context(session)
            reader = PrometheusReader(
                self._prometheus, session=session, namespaces=self._namespaces
            )
            return PrometheusSource(
                known=self._known,
                pools=self.tiers,
                read=reader.read,
                clock=self._clock,
                jitter=self._jitter,
            )
        scraper = Scraper(timeout=engines.TIMEOUT, at_once=engines.AT_ONCE)
        await stack.enter_async_context(scraper)
        return DirectSource(
            known=self._known,
            pools=self.tiers,
            read=scraper.read,
            clock=self._clock,
            jitter=self._jitter,
        )

    def _tier_watch(self, namespace: str, session: aiohttp.ClientSession) -> ObjectWatch:
        def listed(found: list[Object]) -> None:
            self._known.list_tiers(found, namespace=namespace, now=self._clock.monotonic())

        return ObjectWatch(
            TIER,
            namespace=namespace,
            session=session,
            server=self._cluster.server,
            clock=self._clock,
            jitter=self._jitter,
            listed=listed,
            seen=lambda tier: self._known.see_tier(tier, now=self._clock.monotonic()),
            gone=lambda tier: self._known.lose_tier(tier, now=self._clock.monotonic()),
        )

    def _pod_watch(self, namespace: str, session: aiohttp.ClientSession) -> ObjectWatch:
        return ObjectWatch(
            POD,
            namespace=namespace,
            session=session,
            server=self._cluster.server,
            clock=self._clock,
            jitter=self._jitter,
            listed=lambda pods: self._known.list_pods(pods, namespace=namespace),
            seen=self._known.see_pod,
            gone=self._known.lose_pod,
            selector=POOL_LABEL,
        )

    def _pods_known_at(self, namespace: str) -> float | None:
        watch = self._watches.get(("pods", namespace)) or self._watches.get(("pods", ""))
        return watch.freshness.known_at(self._clock.monotonic()) if watch else None
