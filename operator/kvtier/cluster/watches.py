"""The HTTP session under kopf's watches, so that no answer of an API server ends or blinds them.

kopf ends the whole operator at the first 410 in a paged list and when a token is refused; it stops
to watch a kind whose right or definition is taken away for a moment, and says nothing more; it
never notices a connection that a network swallowed; and it opens a watch that is closed at once
again without a pause. Here each of them becomes what kopf waits for and tries again.
"""

import asyncio
import socket
import time
from collections.abc import Callable

import aiohttp
from kubernetes.aio.client import ApiClient
from yarl import URL

from kvtier.cluster.protocol import KINDS

OnRequest = Callable[[str, str, int, float], None]
"""Called after each request with verb, kind, HTTP status (0 without an answer) and seconds."""

OnRelist = Callable[[str], None]
"""Called with the kind whenever it is listed anew after a gap: who went in it sends no event."""

BURST = 5
INTERVAL = 1.0
"""Of one kind so many lists and watches begin at once, then one in so many seconds."""

# A peer that answers none of these is gone: 10 + 3 x 5 s after the last that was heard of it.
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
_KIND_BY_PLURAL = {kind.plural: kind.kind for kind in KINDS}


def watch_session(
    api: ApiClient, *, on_relist: OnRelist, on_request: OnRequest | None = None
) -> aiohttp.ClientSession:
    """A session that reaches the API server as ``api`` does. Whoever asked for it closes it."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=0, ssl=api.rest_client.ssl_context, socket_factory=_kept_alive
        ),
        middlewares=[_Patience(api, on_relist, on_request)],
        proxy=api.configuration.proxy,
        trust_env=True,
    )


class _Patience:
    """Middleware: shows the current token, paces, and tells kopf only of errors that pass."""

    def __init__(self, api: ApiClient, on_relist: OnRelist, on_request: OnRequest | None) -> None:
        self._api = api
        self._on_relist = on_relist
        self._on_request = on_request
        self._full_at: dict[str, float] = {}
        self._listed: set[str] = set()

    async def __call__(
        self, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        if "continue" not in request.url.query:
            await self._pace(f"{request.url.path} {request.url.query.get('watch', '')}")
        # Each time, since the token of a pod is replaced while it runs.
        await self._api.update_params_for_auth(
            request.headers, [], ["BearerToken"], request.url.path, request.method, None
        )
        started, status = time.monotonic(), 0
        try:
            response = await send(request)
            status = response.status
        finally:
            self._count(request, status=status, seconds=time.monotonic() - started)
        if status == 410:
            response.release()
            # kopf lists from the beginning.
            raise aiohttp.ClientPayloadError(f"410 Gone: {request.url.path}")
        if status == 401:
            response.release()
            # An API server that is starting refuses tokens that it accepts a second later.
            raise aiohttp.ClientConnectionError(f"401 Unauthorized: {request.url.path}")
        if status in (403, 404) and request.url.path in self._listed:
            response.release()
            # It could be listed: a role or a CRD is being replaced. At the start it would be told.
            raise aiohttp.ClientConnectionError(f"{status}: {request.url.path}")
        if status == 200 and not request.url.query.keys() & {"watch", "continue"}:
            self._note_list(request.url)
        return response

    def _note_list(self, url: URL) -> None:
        kind = _KIND_BY_PLURAL.get(url.name)
        if kind is not None and url.path in self._listed:
            self._on_relist(kind)
        self._listed.add(url.path)

    async def _pace(self, what: str) -> None:
        now = time.monotonic()
        full_at = max(self._full_at.get(what, 0.0), now) + INTERVAL
        self._full_at[what] = full_at
        await asyncio.sleep(max(full_at - BURST * INTERVAL - now, 0.0))

    def _count(self, request: aiohttp.ClientRequest, *, status: int, seconds: float) -> None:
        if self._on_request is None:
            return
        kind = _KIND_BY_PLURAL.get(request.url.name, "APIResourceList")
        verb = "watch" if "watch" in request.url.query else "list"
        self._on_request(verb, kind, status, seconds)


def _kept_alive(address: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, _, _ = address
    link = socket.socket(family, kind, protocol)
    for level, option, value in _KEEPALIVE:
        link.setsockopt(level, option, value)
    return link
