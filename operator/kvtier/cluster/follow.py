"""Objects of a kind as they change, through whatever happens to the API server and to the network.

For people who look on: the operator's own watches are kopf's.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final
from urllib.parse import urlencode

import aiohttp

from kvtier.cluster.client import AioCluster
from kvtier.cluster.protocol import (
    ApiError,
    Forbidden,
    Kind,
    Object,
    TooManyRequests,
    Unavailable,
    error_for,
)

LEAST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 5.0
QUIET: Final = 100.0
"""Seconds without a byte after which a watch counts as lost; bookmarks come about once a minute."""
WATCH_SECONDS: Final = 300
"""How long the server is asked to keep one watch."""


class What(StrEnum):
    """``LISTED``: these are all objects there are. ``AWAY`` and ``BACK``: the API server."""

    LISTED = "LISTED"
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    AWAY = "AWAY"
    BACK = "BACK"


@dataclass(frozen=True, slots=True)
class Seen:
    """``objects`` of what was seen; ``message`` says why the server is away."""

    what: What
    objects: tuple[Object, ...] = ()
    message: str = ""


class _Gone(Exception):
    """410: the server does not know that version any more."""


@dataclass(slots=True)
class _Follower:
    cluster: AioCluster
    session: aiohttp.ClientSession
    path: str
    selectors: dict[str, str]
    quiet: float
    version: str = ""
    kind: dict[str, str] = field(default_factory=dict)

    async def list(self) -> Seen:
        """Every object, as of one moment; the watch goes on from there."""
        found: list[Object] = []
        query = {"limit": "500", **self.selectors}
        while True:
            timeout = aiohttp.ClientTimeout(total=30)
            async with self.session.get(self._url(query), timeout=timeout) as response:
                await _check(response)
                page = await response.json()
            found += [self.kind | item for item in page.get("items") or ()]
            if not (token := page["metadata"].get("continue")):
                self.version = page["metadata"]["resourceVersion"]
                return Seen(What.LISTED, tuple(found))
            query["continue"] = token

    async def watch(self) -> AsyncIterator[Seen]:
        """What happens from the version on, until the server ends it. Raises _Gone."""
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self.version,
            "timeoutSeconds": str(WATCH_SECONDS),
            **self.selectors,
        }
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=self.quiet)
        async with self.session.get(self._url(query), timeout=timeout) as response:
            await _check(response)
            yield Seen(What.BACK)
            rest = b""
            # Not line by line: a line may be longer than the reader would take.
            async for piece in response.content.iter_any():
                *lines, rest = (rest + piece).split(b"\n")
                for line in filter(None, lines):
                    if (seen := self._event(json.loads(line))) is not None:
                        yield seen

    def _event(self, event: dict[str, Any]) -> Seen | None:
        obj = event["object"]
        if event["type"] == "ERROR":
            if obj.get("code") == 410:
                raise _Gone
            raise Unavailable(
                status=obj.get("code", 0), reason="Watch", message=obj.get("message", "")
            )
        self.version = obj["metadata"].get("resourceVersion", self.version)
        if event["type"] == "BOOKMARK":
            return None
        return Seen(What(event["type"]), (self.kind | obj,))

    def _url(self, query: dict[str, str]) -> str:
        return f"{self.cluster.server}{self.path}?{urlencode(query)}"


async def follow(
    cluster: AioCluster,
    kind: Kind,
    namespace: str,
    *,
    field_selector: str = "",
    quiet: float = QUIET,
) -> AsyncIterator[Seen]:
    """Lists, and then yields what changes, for ever; lists again where a gap may have been.

    An API server that is away or refuses for a moment is waited for: one ``AWAY`` tells of it, one
    ``BACK`` of its return. Raises NotFound, and Forbidden where nothing was ever allowed: there is
    nothing to wait for.
    """
    async with cluster.watch_session(on_relist=lambda _: None) as session:
        follower = _Follower(
            cluster=cluster,
            session=session,
            path=kind.path(namespace),
            selectors={"fieldSelector": field_selector} if field_selector else {},
            quiet=quiet,
            kind={"apiVersion": kind.api_version, "kind": kind.kind},
        )
        pause, away, known = LEAST_PAUSE, False, False
        while True:
            try:
                if not follower.version:
                    listed = await follower.list()
                    known = True
                    if away:
                        yield Seen(What.BACK)
                    pause, away = LEAST_PAUSE, False
                    yield listed
                async for seen in follower.watch():
                    if seen.what is not What.BACK or away:
                        yield seen
                    pause, away = LEAST_PAUSE, False
                continue
            except _Gone:
                follower.version = ""
                continue
            except (aiohttp.ClientError, OSError, ValueError, Unavailable) as error:
                said = _told(cluster, error)
                if said.startswith("410 Gone"):
                    follower.version = ""
                    continue
            except Forbidden as error:
                if not known:
                    raise
                # An API server that is starting does not know its roles yet.
                said = str(error)
            except TooManyRequests as error:
                said, pause = str(error), max(pause, error.retry_after or 0.0)
            if not away:
                yield Seen(What.AWAY, message=said)
            away = True
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


def _told(cluster: AioCluster, error: Exception) -> str:
    if isinstance(error, ApiError):
        return str(error)
    said = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, aiohttp.ClientPayloadError) and not said.startswith("410 Gone"):
        said = "the connection broke"
    return said if said.startswith("410 Gone") else f"{cluster.server}: {said}"


async def _check(response: aiohttp.ClientResponse) -> None:
    """Raises what the status means; _Gone for 410."""
    if response.status < 400:
        return
    if response.status == 410:
        raise _Gone
    try:
        said = json.loads(await response.text())
    except ValueError:
        said = {}
    raise error_for(
        status=response.status,
        reason=said.get("reason", "Unknown"),
        message=said.get("message", ""),
    )
