"""Events people read with ``kubectl describe``: aggregated, rate limited, redacted."""

import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from kvtier.cluster.protocol import EVENT, ApiError, Cluster, NotFound, Object
from kvtier.plan.observed import EventSpec
from kvtier.reconcile.clock import Clock, SystemClock
from kvtier.redact import redact

log = logging.getLogger(__name__)

COMPONENT = "kvtier"
SAME_WITHIN = 600.0
BURST = 25
REFILL = 300.0
MAX_MESSAGE = 1024
MAX_REMEMBERED = 4096

_Same = tuple[str, str, str, str]


@dataclass(slots=True)
class _Told:
    """An event: the name of its object once it has one, how often, and when last it happened."""

    name: str | None
    count: int
    last: float


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float


class Recorder:
    """Writes core/v1 Events; it never raises into the reconcile.

    The same type, reason and message of one object within ``SAME_WITHIN`` seconds of the last one
    adds to the count of that event. One object gets ``BURST`` writes, then one every ``REFILL``
    seconds; what that keeps back is in the count of the next one.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        instance: str,
        clock: Clock | None = None,
        redacted: Callable[[str], str] = redact,
    ) -> None:
        self._cluster = cluster
        self._instance = instance
        self._clock = clock or SystemClock()
        self._redacted = redacted
        self._told: dict[_Same, _Told] = {}
        self._buckets: dict[str, _Bucket] = {}

    async def record(self, obj: Object, event: EventSpec) -> None:
        """Tell that something happened to an object that was read from the API server."""
        try:
            await self._record(obj, event)
        except ApiError as error:
            log.warning("event %s was not written: %s", event.reason, error)
        except Exception:
            log.exception("event %s was not written", event.reason)

    async def _record(self, obj: Object, event: EventSpec) -> None:
        self._forget()
        now = self._clock.monotonic()
        uid = obj["metadata"]["uid"]
        message = _shorten(self._redacted(event.message))
        same = (uid, str(event.type), event.reason, message)
        told = self._told.pop(same, None) or _Told(name=None, count=0, last=now)
        told.count += 1
        told.last = now
        # Popped and set again: the table stays in the order of the last occurrence.
        self._told[same] = told
        if not self._may_write(uid, now):
            return
        if told.name is not None:
            try:
                await self._add_to(obj, told)
            except NotFound:
                # It outlived its time to live on the server.
                told.count = 1
            else:
                return
        told.name = await self._tell(obj, event, message=message, count=told.count)

    async def _add_to(self, obj: Object, told: _Told) -> None:
        patch = {"count": told.count, "lastTimestamp": self._timestamp()}
        await self._cluster.merge_patch(EVENT, _namespace(obj), str(told.name), patch)

    async def _tell(self, obj: Object, event: EventSpec, *, message: str, count: int) -> str:
        metadata, now = obj["metadata"], self._timestamp()
        name = f"{metadata['name']}.{uuid.uuid4().hex[:16]}"
        subject = {key: obj[key] for key in ("apiVersion", "kind")} | {
            key: metadata[key]
            for key in ("namespace", "name", "uid", "resourceVersion")
            if key in metadata
        }
        await self._cluster.post(
            {
                "apiVersion": EVENT.api_version,
                "kind": EVENT.kind,
                "metadata": {"name": name, "namespace": _namespace(obj)},
                "involvedObject": subject,
                "type": str(event.type),
                "reason": event.reason,
                "message": message,
                "count": count,
                "firstTimestamp": now,
                "lastTimestamp": now,
                "source": {"component": COMPONENT},
                "reportingComponent": COMPONENT,
                "reportingInstance": self._instance,
            }
        )
        return name

    def _may_write(self, uid: str, now: float) -> bool:
        bucket = self._buckets.setdefault(uid, _Bucket(tokens=BURST, at=now))
        bucket.tokens = min(BURST, bucket.tokens + (now - bucket.at) / REFILL)
        bucket.at = now
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        return True

    def _forget(self) -> None:
        """Drop what is too old to be added to, and buckets that are full again."""
        now = self._clock.monotonic()
        while self._told:
            oldest = next(iter(self._told))
            recent = now - self._told[oldest].last <= SAME_WITHIN
            if recent and len(self._told) < MAX_REMEMBERED:
                break
            del self._told[oldest]
        if len(self._buckets) >= MAX_REMEMBERED:
            full = {
                uid
                for uid, bucket in self._buckets.items()
                if bucket.tokens + (now - bucket.at) / REFILL >= BURST
            }
            self._buckets = {uid: b for uid, b in self._buckets.items() if uid not in full}

    def _timestamp(self) -> str:
        return self._clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")


def _namespace(obj: Object) -> str:
    """Events of cluster-scoped objects live in ``default``."""
    return str(obj["metadata"].get("namespace") or "default")


def _shorten(message: str) -> str:
    return message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 3] + "..."
