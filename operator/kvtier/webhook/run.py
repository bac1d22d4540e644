"""The webhook's process."""

import asyncio
import logging
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from kvtier import __version__
from kvtier.reconcile.http import serve
from kvtier.webhook.certificate import ServingCertificate
from kvtier.webhook.listener import listening
from kvtier.webhook.metrics import WebhookMetrics
from kvtier.webhook.server import Decide, application

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
"""How often the certificate's files are read. A kubelet takes up to a minute to renew them."""
SHUTDOWN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Options:
    """``listen`` and ``metrics_listen`` are HOST:PORT; ``certificate`` and ``key`` PEM files.

    ``inject``: pods are given what they need of their tier, which is read from the API server.
    ``instance`` names the process in events.
    """

    listen: str
    metrics_listen: str
    certificate: Path
    key: Path
    inject: bool = False
    instance: str = ""


class NoApiServer(ValueError):
    """No API server is configured; the message says what to do."""


async def run_webhook(options: Options) -> int:
    """Serve until SIGTERM or SIGINT, and return 0. Waits for a certificate that can be served.

    Raises OSError if an address cannot be had, and NoApiServer if there is none to inject by.
    """
    stop, ready = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    metrics = WebhookMetrics()
    serving = ServingCertificate(certificate=options.certificate, key=options.key, metrics=metrics)
    async with AsyncExitStack() as stack:
        inject: Decide | None = None
        if options.inject:
            inject = await stack.enter_async_context(_injecting(metrics, options.instance))
        await stack.enter_async_context(
            serve(
                listen=options.metrics_listen,
                registry=metrics.registry,
                is_ready=ready.is_set,
                not_ready="no certificate yet",
            )
        )
        log.info("kvtier %s webhook", __version__)
        while not serving.look() and not stop.is_set():
            await _pause(stop)
        if stop.is_set():
            return 0
        app = application(metrics, inject=inject)
        async with _listening(app, options.listen, serving):
            ready.set()
            while not stop.is_set():
                await _pause(stop)
                serving.look()
            ready.clear()
    return 0


@asynccontextmanager
async def _injecting(metrics: WebhookMetrics, instance: str) -> AsyncIterator[Decide]:
    # Here, since the clusters' libraries are most of a webhook's memory that does not inject.
    from kvtier.cluster.connect import NoCluster, connect
    from kvtier.webhook.pods import READ_SECONDS, Injector

    try:
        async with connect(timeout=READ_SECONDS) as cluster:
            injector = Injector(cluster, metrics=metrics, instance=instance)
            yield injector.decide
            await injector.close()
    except NoCluster as error:
        raise NoApiServer(str(error)) from None


async def _pause(stop: asyncio.Event) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), LOOK_SECONDS)


@asynccontextmanager
async def _listening(
    app: web.Application, listen: str, serving: ServingCertificate
) -> AsyncIterator[None]:
    runner = web.AppRunner(
        app,
        access_log=None,
        shutdown_timeout=SHUTDOWN_SECONDS,
        # No API server compresses, and some hundred bytes would be taken for megabytes.
        auto_decompress=False,
    )
    await runner.setup()
    host, _, port = listen.rpartition(":")
    try:
        async with listening(
            runner, host=host.strip("[]"), port=int(port), context=serving.context
        ):
            yield
    finally:
        await runner.cleanup()
