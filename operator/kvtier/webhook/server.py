"""The webhook's HTTP application: /validate, and /inject where that is asked for."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from functools import partial

from aiohttp import web

from kvtier.api.load import MAX_FILE_BYTES
from kvtier.webhook.decision import decide
from kvtier.webhook.metrics import WebhookMetrics
from kvtier.webhook.review import (
    PODS,
    RESOURCE,
    BadReview,
    Decision,
    Request,
    Resource,
    answer,
    parse,
)

log = logging.getLogger(__name__)

PATH = "/validate"
INJECT_PATH = "/inject"
MAX_BODY_BYTES = 2 * MAX_FILE_BYTES + 2**20
"""The new object, the old one, and what is around them."""
READ_SECONDS = 10.0
LARGE_BODY = 128 * 1024
"""Bytes. A review of a tier has some 10 KiB."""
LARGE_BODIES = 2
"""So many are in memory at once; others wait for them."""


Decide = Callable[[Request], Awaitable[Decision]]


def application(metrics: WebhookMetrics, *, inject: Decide | None = None) -> web.Application:
    """``inject`` decides about pods; without it there is no path for them.

    Any other path is 404 and any other method 405, so that a wrong path in a configuration is an
    error that the API server tells, never a yes. 400, in one line, for what is no review of a tier
    (of a pod). A failure of ours is 500, with a traceback in the log.
    """

    large = asyncio.Semaphore(LARGE_BODIES)

    async def reviewed(request: web.Request, *, of: Resource, decided: Decide) -> web.Response:
        started = time.monotonic()
        result = "failed"
        try:
            review = parse(await _body(request, large), of=of)
            decision = await _decide(decided, review)
            result = _result(decision)
            return web.json_response(answer(review, decision))
        except BadReview as error:
            result = "bad"
            log.warning("not a review, from %s: %s", request.remote, error)
            return web.Response(status=400, text=f"{error}\n")
        finally:
            metrics.observe_review(result=result, seconds=time.monotonic() - started)

    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.router.add_post(PATH, partial(reviewed, of=RESOURCE, decided=_judged))
    if inject is not None:
        app.router.add_post(INJECT_PATH, partial(reviewed, of=PODS, decided=inject))
    return app


async def _judged(review: Request) -> Decision:
    return decide(review)


async def _body(request: web.Request, large: asyncio.Semaphore) -> bytes:
    length = request.content_length
    if length is None:
        raise BadReview("Content-Length: missing; send it")
    try:
        async with asyncio.timeout(READ_SECONDS):
            async with large if length > LARGE_BODY else nullcontext():
                return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise BadReview(f"the body is larger than {MAX_BODY_BYTES} bytes") from None
    except TimeoutError:
        raise BadReview(f"the body did not arrive within {READ_SECONDS:.0f} s") from None


async def _decide(decided: Decide, review: Request) -> Decision:
    try:
        return await decided(review)
    except RecursionError:
        raise BadReview("the object is nested too deeply") from None


def _result(decision: Decision) -> str:
    if decision.refusals:
        return "refused"
    return "warned" if decision.warnings else "allowed"
