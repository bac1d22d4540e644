"""HTTP as gateways hand it on: long tokens and paths are read, and what cannot be is let in."""

import logging
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

log = logging.getLogger(__name__)

LONGEST: Final = 2**17
"""Bytes of a path, and of a header. Envoy takes 60 KiB of headers unless it is told to take more,
and aiohttp 8 KiB of each unless it is."""
MOST_HEADERS: Final = 1000
_OPTIONS: Final[dict[str, Any]] = {
    "access_log": None,
    "max_line_size": LONGEST,
    "max_field_size": LONGEST,
    "max_headers": MOST_HEADERS,
}


class _Connection(web.RequestHandler):
    """aiohttp answers 400 to what it cannot read, which a gateway takes for a refusal, and writes
    what it has read of it, tokens too, to the log and into the answer."""

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if not isinstance(exc, HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        log.warning("a request is let in that could not be read: %s", type(exc).__name__)
        answer = web.Response()
        answer.force_close()
        return answer


class Server(web.Server):
    """``aiohttp.web.Server`` with such connections."""

    def __call__(self) -> web.RequestHandler:
        return _Connection(self, loop=self._loop, **_OPTIONS)
