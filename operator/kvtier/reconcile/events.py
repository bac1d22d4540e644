"""Events people read with ``kubectl describe``: aggregated, rate limited, redacted."""

import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from kvtier.cluster.protocol import EVENT, ApiError, Cluster, NotFound, Object
from kvtier.plan.observed import EventSpec
from kvtier.reconcile.clock import Clock, SystemClock
from kvtier.redact import redact

log = logging.getLogger(__name__)

COMPONENT = "kvtier"
STORY = 3600.0
"""Seconds without a word after which what happens is a new story."""
SAME_WITHIN = 600.0
"""Seconds for which an event is added to when the very same happens again."""
DISTINCT = 3
"""Messages of one story that have an event of their own: who reads of rank 0 reads of rank 1, and
not forty times of another figure."""
BURST = 12
REFILL = 450.0
"""Writes that an object has at once, and seconds for each one more: at most 20 in an hour."""
RESERVE = 4
"""Of these, those that only something new may take: what repeats waits, and is counted."""
MAX_MESSAGE = 1024
MAX_REMEMBERED = 4096

_Which = tuple[str, str, str]
"""A story: the object's uid, the event's type and reason."""


@dataclass(slots=True)
class _Told:
    """An event that was written: ``count`` is how often it stands for what happened."""

    name: str
    message: str
    count: int
    last: float


@dataclass(slots=True)
class _Story:
    """``events`` are those of its own, the one that was written last at the end; ``untold`` is what
    none of them counts yet, ``newest`` the message of the last of that. Times are monotonic."""

    last: float
    events: list[_Told] = field(default_factory=list)
    untold: int = 0
    newest: str = ""
    written: float = 0.0


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float


class Recorder:
    """Writes core/v1 Events; it never raises into the reconcile.

    Events of one object, type and reason are one story. Its first is told at once, always. So are
    the next messages that differ, ``DISTINCT`` in all; what comes then changes the last event:
    its count, its message. The very same within ``SAME_WITHIN`` seconds adds to the count of its
    event. One object gets ``BURST`` writes, then one every ``REFILL`` seconds; what that keeps
    back is in the count of the next one, of whichever story waits longest.
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
        self._stories: dict[_Which, _Story] = {}
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
        which = (uid, str(event.type), event.reason)
        story = self._stories.pop(which, None) or _Story(last=now)
        # Popped and set again: the table stays in the order of the last occurrence.
        self._stories[which] = story
        story.last = now
        story.untold += 1
        story.newest = message
        told = _same(story, message, now=now)
        is_first = not story.events
        if is_first or (told is None and len(story.events) < DISTINCT):
            if self._may_write(uid, now, first=is_first, keep=0):
                await self._begin(obj, event, story)
            return
        waiting = self._waiting(uid)
        if self._may_write(uid, now, first=False, keep=RESERVE):
            try:
                await self._add_to(obj, waiting)
            except NotFound:
                # It outlived its time to live on the server; the next one is told anew.
                waiting.events.pop()
                if waiting is story:
                    await self._begin(obj, event, story)

    def _waiting(self, uid: str) -> _Story:
        """Of the object's stories with something untold the one that was written longest ago: none
        starves beside another, and what has ended is told to its end."""
        stories = [story for (of, _, _), story in self._stories.items() if of == uid]
        untold = [story for story in stories if story.untold and story.events]
        return min(untold, key=lambda story: story.written)

    async def _begin(self, obj: Object, event: EventSpec, story: _Story) -> None:
        """An event of its own for what is untold."""
        count, now = story.untold, self._clock.monotonic()
        name = await self._tell(obj, event, message=story.newest, count=count)
        story.events.append(_Told(name=name, message=story.newest, count=count, last=now))
        story.untold, story.written = 0, now

    async def _add_to(self, obj: Object, story: _Story) -> None:
        """What is untold, in the event that says the same, or else in the last one."""
        now = self._clock.monotonic()
        told = _same(story, story.newest, now=now) or story.events[-1]
        # The one that is changed is the last: it goes first if the server has it no more.
        story.events.remove(told)
        story.events.append(told)
        patch: dict[str, object] = {
            "count": told.count + story.untold,
            "lastTimestamp": self._timestamp(),
        }
        if story.newest != told.message:
            patch["message"] = story.newest
        await self._cluster.merge_patch(EVENT, _namespace(obj), told.name, patch)
        told.message, told.last = story.newest, now
        told.count += story.untold
        story.untold, story.written = 0, now

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

    def _may_write(self, uid: str, now: float, *, first: bool, keep: float) -> bool:
        """Whether to write now, so that ``keep`` writes are left. The first of a story may
        overdraw: others then wait longer."""
        bucket = self._buckets.setdefault(uid, _Bucket(tokens=BURST, at=now))
        bucket.tokens = min(BURST, bucket.tokens + (now - bucket.at) / REFILL)
        bucket.at = now
        if not first and bucket.tokens < 1 + keep:
            return False
        bucket.tokens -= 1
        return True

    def _forget(self) -> None:
        """Drop stories that are over, and buckets that are full again."""
        now = self._clock.monotonic()
        while self._stories:
            oldest = next(iter(self._stories))
            recent = now - self._stories[oldest].last <= STORY
            if recent and len(self._stories) < MAX_REMEMBERED:
                break
            del self._stories[oldest]
        if len(self._buckets) >= MAX_REMEMBERED:
            full = {
                uid
                for uid, bucket in self._buckets.items()
                if bucket.tokens + (now - bucket.at) / REFILL >= BURST
            }
            self._buckets = {uid: b for uid, b in self._buckets.items() if uid not in full}

    def _timestamp(self) -> str:
        return self._clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")


def _same(story: _Story, message: str, *, now: float) -> _Told | None:
    """The event that already says this, if that is not too long ago; it is the latest then."""
    for told in story.events:
        if told.message == message and now - told.last <= SAME_WITHIN:
            told.last = now
            return told
    return None


def _namespace(obj: Object) -> str:
    """Events of cluster-scoped objects live in ``default``."""
    return str(obj["metadata"].get("namespace") or "default")


def _shorten(message: str) -> str:
    return message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 3] + "..."
