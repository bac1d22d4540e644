"""Objects of one kind by list and watch, without kopf: what a limiter needs, and no more.

A list gives all of them and a version to watch from; bookmarks keep that version young. 410, a
stream that breaks and an answer that is no JSON lead to a new list, after a pause that doubles.
While the API server is away what was known stays.
"""

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from kvtier.cluster.protocol import Kind, Object
from kvtier.reconcile.clock import Clock

log = logging.getLogger(__name__)

PAGE: Final = 500
WATCH_SECONDS: Final = 240
"""After so long the API server ends a watch, and it is opened anew from the last version."""
SHORTEST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
LIST_SECONDS: Final = 30.0
MOST_LINE: Final = 2**23
"""Bytes of one event; no object is larger than 3 MiB, and of deletions there are two."""


class Gone(Exception):
    """The version that was asked for is too old."""


class Refused(Exception):
    """The API server says no; the text is its own."""


@dataclass(slots=True)
class Freshness:
    """When the API server was last heard. ``live``: a watch is open."""

    live: bool = False
    at: float | None = None

    def known_at(self, now: float) -> float | None:
        """Until when what is known was true, None before the first list."""
        return now if self.live else self.at


class ObjectWatch:
    """One kind in one namespace ("" for all).

    ``listed`` is given all objects after each list, ``seen`` one that was added or changed,
    ``gone`` one that was deleted. All three are called in the event loop and must not fail.
    """

    def __init__(
        self,
        kind: Kind,
        *,
        namespace: str,
        session: aiohttp.ClientSession,
        server: str,
        clock: Clock,
        jitter: Callable[[], float],
        listed: Callable[[list[Object]], None],
        seen: Callable[[Object], None],
        gone: Callable[[Object], None],
        selector: str = "",
    ) -> None:
        self._url = server + kind.path(namespace)
        self._what = f"{kind.plural} in {namespace or 'all namespaces'}"
        self._selector = {"labelSelector": selector} if selector else {}
        self._session = session
        self._clock = clock
        self._jitter = jitter
        self._listed = listed
        self._seen = seen
        self._gone = gone
        self.freshness = Freshness()

    async def run(self, stop: asyncio.Event) -> None:
        """List and watch until ``stop`` is set, whatever the API server does."""
        version: str | None = None
        pause = 0.0
        while not await self._clock.wait(stop, pause * (0.75 + 0.5 * self._jitter())):
            try:
                if version is None:
                    version = await self._list()
                self._heard(live=True)
                version = await self._follow(version)
                pause = 0.0
            except Gone:
                version, pause = None, SHORTEST_PAUSE
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError, Refused) as error:
                if self.freshness.live or pause == 0:
                    log.warning("%s: not watched: %s", self._what, _words(error))
                version, pause = None, self._longer(pause)
            except Exception:
                # An object that nobody thought of: the rest still counts.
                log.exception("%s: not watched", self._what)
                version, pause = None, self._longer(pause)
        self.freshness.live = False

    def _longer(self, pause: float) -> float:
        self.freshness.live = False
        return min(max(2 * pause, SHORTEST_PAUSE), LONGEST_PAUSE)

    async def _list(self) -> str:
        found: list[Object] = []
        query = {"limit": str(PAGE), **self._selector}
        timeout = aiohttp.ClientTimeout(total=LIST_SECONDS)
        while True:
            async with self._session.get(self._url, params=query, timeout=timeout) as response:
                page = await self._json(response)
            found += page.get("items") or []
            token = page["metadata"].get("continue")
            if not token:
                break
            query["continue"] = token
        self._listed(found)
        return str(page["metadata"].get("resourceVersion", ""))

    async def _follow(self, version: str) -> str:
        """Take events until the server ends the stream; the version of the last one."""
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(WATCH_SECONDS),
            **self._selector,
        }
        timeout = aiohttp.ClientTimeout(total=WATCH_SECONDS + LIST_SECONDS)
        async with self._session.get(
            self._url, params=query, timeout=timeout, read_bufsize=MOST_LINE
        ) as response:
            if response.status != 200:
                await self._json(response)
            async for line in response.content:
                version = self._take(json.loads(line), version)
        return version

    def _take(self, event: Object, version: str) -> str:
        kind, found = event.get("type"), event.get("object")
        if not isinstance(found, dict):
            raise ValueError("an event without an object")
        if kind == "ERROR":
            if found.get("code") == 410:
                raise Gone
            raise Refused(str(found.get("message", ""))[:256])
        self._heard(live=True)
        if kind in ("ADDED", "MODIFIED"):
            self._seen(found)
        elif kind == "DELETED":
            self._gone(found)
        return str(found["metadata"].get("resourceVersion") or version)

    async def _json(self, response: aiohttp.ClientResponse) -> dict[str, Any]:
        body = await response.json(content_type=None)
        if not isinstance(body, dict) or (response.status == 200 and "metadata" not in body):
            raise ValueError(f"{response.status}: no JSON object")
        if response.status == 410:
            raise Gone
        if response.status != 200:
            raise Refused(f"{response.status}: {str(body.get('message', ''))[:256]}")
        return body

    def _heard(self, *, live: bool) -> None:
        self.freshness.live = live
        self.freshness.at = self._clock.monotonic()


def _words(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
