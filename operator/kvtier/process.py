"""The controller's process: everything that runs for as long as it does, put together."""

import asyncio
import logging
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

from kvtier import __version__
from kvtier.cluster.client import AioCluster
from kvtier.cluster.connect import connect
from kvtier.cluster.protocol import TIER, ApiError, NotFound
from kvtier.controller import Watcher, watch
from kvtier.engines.scrape import Scraper
from kvtier.engines.watch import EngineWatcher
from kvtier.metrics import Metrics
from kvtier.reconcile.admission import AdmissionWatcher
from kvtier.reconcile.clock import SystemClock
from kvtier.reconcile.events import Recorder
from kvtier.reconcile.execute import NotLeading
from kvtier.reconcile.http import serve
from kvtier.reconcile.lease import Lease
from kvtier.reconcile.limiters import LimiterReader
from kvtier.reconcile.memory import Key, Memory
from kvtier.reconcile.planned import ReadLimiters
from kvtier.reconcile.queue import KeyedQueue, Pace
from kvtier.reconcile.ranks import RankWatcher
from kvtier.reconcile.reconciler import Reconciler, ReconcilerSettings
from kvtier.redact import redact
from kvtier.render.render import RenderSettings
from kvtier.store.client import connector

log = logging.getLogger(__name__)

WORKERS = 8
# A bring-up of many ranks is one burst of events; a storm is thinned out to one run a second.
PACE = Pace(interval=1.0, burst=20)
CRD_RETRY = 2.0
# A rank that hangs holds a worker up for so long; one that is busy with chunks answers far sooner.
STORE_TIMEOUT = 2.0


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line and the pod decide.

    ``pod_uid`` is empty outside of a pod, ``resync`` is in seconds; no namespaces mean all.
    ``limiters`` are host and port of the limiters' headless Service, None without any.
    ``envoy_gateway``: policies of Envoy Gateway may be written.
    """

    lease_namespace: str
    lease_name: str
    identity: str
    pod_uid: str
    listen: str
    resync: float = 300.0
    namespaces: tuple[str, ...] = ()
    valkey_images: Mapping[str, str] = field(default_factory=dict)
    probe_image: str | None = None
    observe_engines: bool = True
    limiters: tuple[str, int] | None = None
    envoy_gateway: bool = False


async def run_controller(options: Options) -> int:
    """Reconcile until the process is told to stop (0), or the Lease is lost or a part dies (1).

    Raises NoCluster without a configured API server, OSError if ``listen`` cannot be had.
    """
    # kopf tells of every event that a handler took; here that is every event there is.
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)
    metrics = Metrics()
    metrics.asyncio_tasks.set_function(lambda: len(asyncio.all_tasks()))
    ready = asyncio.Event()
    queue: KeyedQueue[Key] = KeyedQueue(
        pace=PACE,
        on_error=_log_failure,
        on_done=lambda _, seconds, result: metrics.observe_reconcile(
            seconds=seconds, result=result.value
        ),
        on_throttled=lambda _: metrics.throttled.inc(),
    )
    metrics.queue_depth.set_function(lambda: queue.depth)
    metrics.queue_oldest.set_function(lambda: queue.oldest)

    def on_request(verb: str, kind: str, code: int, seconds: float) -> None:
        del seconds
        metrics.count_request(verb=verb, kind=kind, code=code)

    async with (
        connect(on_request=on_request) as cluster,
        serve(
            listen=options.listen,
            registry=metrics.process,
            tiers=metrics.tiers,
            is_ready=ready.is_set,
        ),
    ):
        stop = asyncio.Event()
        _stop_on_signals(stop)
        log.info("kvtier %s, waiting for its CRD and its Lease", __version__)
        if not await _until_served(cluster, options, stop):
            return 0
        lease = Lease(
            cluster,
            namespace=options.lease_namespace,
            name=options.lease_name,
            identity=options.identity,
            pod_uid=options.pod_uid,
            on_regained=queue.retry_now,
        )
        cluster.bound_writes(lease.remaining)
        leading = asyncio.create_task(lease.run())
        try:
            await _first(lease.held.wait(), lease.lost.wait(), stop.wait())
            if not lease.held.is_set():
                return 0 if stop.is_set() else 1
            async with _limiters(options) as read:
                code = await _lead(
                    cluster,
                    lease,
                    queue,
                    options=options,
                    metrics=metrics,
                    read_limiters=read,
                    ready=ready,
                    stop=stop,
                )
        finally:
            # Released last: whoever takes over finds nobody who still writes.
            lease.stop()
            await leading
        return code


async def _lead(
    cluster: AioCluster,
    lease: Lease,
    queue: KeyedQueue[Key],
    *,
    options: Options,
    metrics: Metrics,
    read_limiters: ReadLimiters | None,
    ready: asyncio.Event,
    stop: asyncio.Event,
) -> int:
    metrics.leader.set_function(lambda: float(lease.holds()))
    render = RenderSettings()
    reconciler = Reconciler(
        cluster=cluster,
        connect=connector(connect_seconds=STORE_TIMEOUT, reply_seconds=STORE_TIMEOUT),
        recorder=Recorder(cluster, instance=options.identity),
        settings=ReconcilerSettings(
            render=replace(
                render,
                valkey_images={**render.valkey_images, **options.valkey_images},
                probe_image=options.probe_image,
            ),
            resync=options.resync,
            envoy_gateway=options.envoy_gateway,
        ),
        clock=SystemClock(),
        metrics=metrics,
        leads=lease.holds,
        jitter=random.random,
        read_limiters=read_limiters,
    )
    watcher = Watcher(queue=queue, memory=reconciler.memory)
    observing = asyncio.create_task(
        _observe(reconciler.memory, queue, metrics=metrics, stop=stop)
        if options.observe_engines
        else stop.wait()
    )
    admitting = asyncio.create_task(
        AdmissionWatcher(
            memory=reconciler.memory,
            read=read_limiters,
            changed=queue.add,
            clock=SystemClock(),
            metrics=metrics,
        ).run(stop)
    )
    asking = asyncio.create_task(
        RankWatcher(
            memory=reconciler.memory,
            connect=connector(connect_seconds=STORE_TIMEOUT, reply_seconds=STORE_TIMEOUT),
            clock=SystemClock(),
            metrics=metrics,
        ).run(stop)
    )
    watching = asyncio.create_task(
        watch(watcher, cluster=cluster, namespaces=options.namespaces, ready=ready, stop=stop)
    )
    working = asyncio.create_task(queue.run(WORKERS, reconciler.reconcile))
    signals = asyncio.create_task(_take_signals_back(ready, stop))
    try:
        await _first(watching, working, lease.lost.wait(), stop.wait())
        if stop.is_set():
            return 0
        if lease.lost.is_set():
            log.error("the lease is lost: ending, so that nothing is written beside its new holder")
        return 1 if lease.lost.is_set() or working.done() or _failed(watching) else 0
    finally:
        ready.clear()
        stop.set()
        queue.stop()
        others = (signals, observing, admitting, asking)
        for task in others:
            task.cancel()
        await asyncio.gather(watching, working, *others, return_exceptions=True)


@asynccontextmanager
async def _limiters(options: Options) -> AsyncIterator[ReadLimiters | None]:
    """What asks the limiters, None where none are given."""
    if options.limiters is None:
        yield None
        return
    async with LimiterReader(*options.limiters) as reader:
        yield reader.read


async def _observe(
    memory: Memory, queue: KeyedQueue[Key], *, metrics: Metrics, stop: asyncio.Event
) -> None:
    """Look at engines until ``stop``. Nothing waits for it, and nothing ends with it."""
    async with Scraper() as scraper:
        watcher = EngineWatcher(
            memory=memory,
            read=scraper.read,
            changed=queue.add,
            clock=SystemClock(),
            metrics=metrics,
            jitter=random.random,
        )
        await watcher.run(stop)


def _failed(task: asyncio.Task[None]) -> bool:
    error = None if not task.done() or task.cancelled() else task.exception()
    if error is not None:
        log.error("the watches ended: %s", error)
    return error is not None


def _stop_on_signals(stop: asyncio.Event) -> None:
    """Let SIGTERM and SIGINT set ``stop``."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)


async def _take_signals_back(ready: asyncio.Event, stop: asyncio.Event) -> None:
    """kopf takes the signals over when it starts, and does not say whether one of them ended it."""
    await ready.wait()
    _stop_on_signals(stop)


async def _until_served(cluster: AioCluster, options: Options, stop: asyncio.Event) -> bool:
    """Wait until the API server answers and serves our kind; False if told to stop before.

    kopf, with its scanning of CRDs switched off, would never see a CRD that comes later.
    """
    told = ""
    while not stop.is_set():
        try:
            for namespace in options.namespaces or ("",):
                await cluster.list(TIER, namespace)
        except ApiError as error:
            if str(error) != told:
                told = str(error)
                missing = isinstance(error, NotFound)
                log.warning("%s", f"the CRD is not installed: {error}" if missing else error)
        else:
            return True
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), CRD_RETRY)
    return False


async def _first(*waits: Awaitable[object]) -> None:
    """Return when the first is done. Tasks go on; what only waits is cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for wait, task in zip(waits, tasks, strict=True):
        if wait is not task:
            task.cancel()


def _log_failure(key: Key, error: Exception, failures: int) -> None:
    """Errors of the API server are one line; anything else is ours, and has its traceback."""
    namespace, name = key
    if isinstance(error, ApiError | NotLeading):
        log.warning("%s/%s: try %d failed: %s", namespace, name, failures, redact(str(error)))
    else:
        log.error("%s/%s: try %d failed", namespace, name, failures, exc_info=error)
