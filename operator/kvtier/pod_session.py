"""How pods are asked by HTTP: whatever listens there may be anybody's program."""

from typing import Final

import aiohttp

_PLAIN: Final = {"Accept-Encoding": "identity"}


def pod_session(
    *, accept: str, at_once: int, timeout: aiohttp.ClientTimeout
) -> aiohttp.ClientSession:
    """A session with ``at_once`` connections at most.

    Nothing of one answer goes into the next question: no cookie, no connection. A body comes as it
    is, so that a small one cannot unpack into a large one. It needs a running event loop.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=at_once, force_close=True),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=timeout,
        auto_decompress=False,
        headers={"Accept": accept, **_PLAIN},
    )
