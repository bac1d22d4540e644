"""The Lease that one active controller holds.

Another holder's Lease is expired once nobody has been seen to renew it for its duration by our own
monotonic clock; what other machines write as time is never compared with ours.
"""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from kvtier.cluster.protocol import (
    LEASE,
    AlreadyExists,
    ApiError,
    Cluster,
    Conflict,
    NotFound,
    Object,
    Unavailable,
)
from kvtier.reconcile.clock import Clock, SystemClock

log = logging.getLogger(__name__)

DURATION = 15.0
RENEW_DEADLINE = 10.0
RENEW_EVERY = 5.0
RETRY_EVERY = 1.0
LABEL = "app.kubernetes.io/name=kvtier"
"""On the Lease, so that whoever asks finds it, whatever the release is called."""

Answer = TypeVar("Answer")


class Lease:
    """Acquires, renews and releases one Lease; writes nothing else.

    ``held`` is set once it is ours and ``lost`` once another has it, for good: a process that lost
    its Lease ends. Between the last renewal that began ``RENEW_DEADLINE`` ago and the moment
    another may take over, ``DURATION``, nobody holds it. A Lease that ran out because the API
    server was away, and that nobody took meanwhile, is held again by the next renewal:
    ``on_regained`` is then called.

    With ``pod_uid``, the uid of the pod that the process runs in, what a process of the same pod
    held is taken over at once: it is dead.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        namespace: str,
        name: str,
        identity: str,
        pod_uid: str = "",
        clock: Clock | None = None,
        on_regained: Callable[[], None] = lambda: None,
    ) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._name = name
        # Whoever has this in front of its name ran in our pod before us. A kubelet starts a
        # container again only once the one before has ended, and a pod never runs on two nodes.
        self._pod = f"{identity}_{pod_uid}_" if pod_uid else ""
        # A name that only this process has: a restarted one is another holder.
        self._identity = f"{self._pod or f'{identity}_'}{uuid.uuid4().hex[:12]}"
        self._clock = clock or SystemClock()
        self._on_regained = on_regained
        self._mine: Object = {}
        self._valid_until = float("-inf")
        self._stopping = asyncio.Event()
        self.held = asyncio.Event()
        self.lost = asyncio.Event()

    def holds(self) -> bool:
        """Whether the Lease is ours at this moment. Ask before every write."""
        return self.remaining() > 0

    def remaining(self) -> float:
        """Seconds for which it stays ours without another renewal; not above 0 if it is not."""
        return self._valid_until - self._clock.monotonic()

    def stop(self) -> None:
        """Release the Lease if it is held, and end ``run``."""
        self._stopping.set()

    async def run(self) -> None:
        """Wait for the Lease, then renew it; returns when it is lost or was released."""
        try:
            if await self._acquire():
                log.info("holding the lease as %s", self._identity)
                self.held.set()
                await self._keep()
                if self.holds():
                    await self._release()
        finally:
            self._valid_until = float("-inf")
            self.lost.set()

    async def _acquire(self) -> bool:
        """Try until it is ours (True) or we are to stop (False)."""
        seen, since = "", self._clock.monotonic()
        while not self._stopping.is_set():
            now = self._clock.monotonic()
            try:
                lease = await self._get()
                if lease is not None and lease["metadata"]["resourceVersion"] != seen:
                    seen, since = lease["metadata"]["resourceVersion"], now
                if lease is None or self._may_take(lease, unchanged_for=now - since):
                    await self._write(lease, started=now, taken_over=True)
                    return True
            except (Conflict, AlreadyExists):
                log.info("another controller took the lease")
            except ApiError as error:
                log.warning("the lease cannot be acquired: %s", error)
            await self._clock.wait(self._stopping, RETRY_EVERY)
        return False

    def _may_take(self, lease: Object, *, unchanged_for: float) -> bool:
        spec = _spec(lease)
        holder = spec.get("holderIdentity") or ""
        # Our own name: a write of ours landed although its answer was lost.
        if holder in ("", self._identity) or (self._pod and holder.startswith(self._pod)):
            return True
        return bool(unchanged_for > spec.get("leaseDurationSeconds", DURATION))

    async def _keep(self) -> None:
        """Renew until another has it, or we are to stop."""
        pause = RENEW_EVERY
        while not await self._clock.wait(self._stopping, min(pause, self._left())):
            held = self.holds()
            pause = RENEW_EVERY if held else RETRY_EVERY
            try:
                if not await self._renew():
                    self._valid_until = float("-inf")
                    log.error("the lease is lost")
                    return
            except ApiError as error:
                log.warning("the lease was not renewed: %s", error)
                pause = RETRY_EVERY
            else:
                if not held and self.holds():
                    log.info("the lease is held again, nobody else had it meanwhile")
                    self._on_regained()

    async def _renew(self) -> bool:
        """Renew once; False if another has it. Raises ApiError when that cannot be told."""
        started = self._clock.monotonic()
        held = self.holds()
        # Who is back after its Lease had run out looks first: it writes nothing over a successor.
        if held:
            try:
                await self._write(self._mine, started=started)
            except (Conflict, NotFound):
                # Someone else wrote, or our own write of before landed after all, or it is gone.
                pass
            else:
                return True
        lease = await self._get()
        if lease is None:
            # While it had run out, another may have held what is gone now.
            if not held:
                return False
        elif _spec(lease).get("holderIdentity") != self._identity:
            return False
        try:
            await self._write(lease, started=started)
        except (Conflict, AlreadyExists):
            return False
        return True

    async def _release(self) -> None:
        self._valid_until = float("-inf")
        spec = {
            name: value
            for name, value in (self._mine.get("spec") or {}).items()
            if name != "holderIdentity"
        }
        try:
            await self._cluster.replace({**self._mine, "spec": spec})
        except ApiError as error:
            log.warning("the lease was not released, it will expire: %s", error)

    async def _get(self) -> Object | None:
        return await self._in_time(self._cluster.get(LEASE, self._namespace, self._name))

    async def _write(
        self, lease: Object | None, *, started: float, taken_over: bool = False
    ) -> None:
        """Write that the Lease is ours, over the version that was read."""
        now = self._clock.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        before: Mapping[str, Any] = {} if lease is None else _spec(lease)
        spec = {
            **before,
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(DURATION),
            "renewTime": now,
        }
        if taken_over or "acquireTime" not in spec:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = before.get("leaseTransitions", -1) + 1
        found: Object = lease or {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.kind,
            "metadata": {"name": self._name, "namespace": self._namespace},
        }
        name, _, value = LABEL.partition("=")
        labels = {**(found["metadata"].get("labels") or {}), name: value}
        metadata = {**found["metadata"], "labels": labels}
        write = self._cluster.post if lease is None else self._cluster.replace
        self._mine = await self._in_time(write({**found, "metadata": metadata, "spec": spec}))
        # Counted from before the request, which is no later than anyone can have seen it.
        self._valid_until = started + RENEW_DEADLINE

    async def _in_time(self, request: Awaitable[Answer]) -> Answer:
        """Give up a request that outlasts the Lease, so that a loss is told at once."""
        done = asyncio.Event()
        task = asyncio.ensure_future(request)
        task.add_done_callback(lambda _: done.set())
        try:
            if await self._clock.wait(done, self._left()):
                return task.result()
        finally:
            task.cancel()
        message = "no answer before the lease ran out"
        raise Unavailable(status=0, reason="Timeout", message=message)

    def _left(self) -> float:
        """Seconds in which the Lease stays ours, or, while it is not, one deadline."""
        left = self._valid_until - self._clock.monotonic()
        return left if left > 0 else RENEW_DEADLINE


def _spec(lease: Mapping[str, Any]) -> Mapping[str, Any]:
    """The spec, which somebody may have taken away."""
    return lease.get("spec") or {}
