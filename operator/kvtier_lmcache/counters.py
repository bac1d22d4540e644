"""What the plugin did, by rank: for LMCache's metrics where it has a way, else a line a minute."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from time import monotonic
from typing import Any

try:
    from opentelemetry import metrics
except ImportError:
    metrics = None

from kvtier_lmcache.jobs import Job, Kind

LINE_SECONDS = 60.0
HAS_METERS = metrics is not None


@dataclass(slots=True)
class Counts:
    """Of one rank since the start. Chunks are objects: what has a key of its own.

    ``failures``: that the rank was not there. ``refused``: of requests that it answered with an
    error. ``dropped``: chunks not stored.
    """

    hits: int = 0
    misses: int = 0
    loaded: int = 0
    loaded_bytes: int = 0
    not_loaded: int = 0
    stored: int = 0
    stored_bytes: int = 0
    dropped: int = 0
    failures: int = 0
    refused: int = 0

    def count(self, job: Job, found: Sequence[bool]) -> None:
        good = sum(found)
        bad = len(found) - good
        if job.kind is Kind.LOOKUP:
            self.hits += good
            self.misses += bad
        elif job.kind is Kind.LOAD:
            self.loaded += good
            self.loaded_bytes += good * job.moved_bytes
            self.not_loaded += bad
        else:
            self.stored += good
            self.stored_bytes += good * job.moved_bytes
            self.dropped += bad


NAMES = tuple(field.name for field in fields(Counts))


class Lines:
    """A line for each rank, at most once in LINE_SECONDS and only where something happened."""

    def __init__(
        self, write: Callable[[str], None], *, clock: Callable[[], float] = monotonic
    ) -> None:
        self._write = write
        self._clock = clock
        self._next = clock() + LINE_SECONDS
        self._last: dict[str, dict[str, Any]] = {}

    def write(self, ranks: Mapping[str, Counts]) -> None:
        if self._clock() < self._next:
            return
        self._next = self._clock() + LINE_SECONDS
        for rank, counts in ranks.items():
            now = asdict(counts)
            before = self._last.get(rank, dict.fromkeys(NAMES, 0))
            self._last[rank] = now
            moved = {name: now[name] - before[name] for name in NAMES if now[name] != before[name]}
            if moved:
                text = ", ".join(f"{name} {value}" for name, value in moved.items())
                self._write(f"rank {rank}, last minute: {text}")


def publish(
    ranks: Mapping[str, Counts],
    *,
    states: Callable[[], Mapping[str, str]],
    suppressed: Callable[[], int],
) -> None:
    """Observable instruments on OpenTelemetry's meter, which LMCache's server exports.

    The provider may be set later than this: the API's instruments find it then.
    """
    meter = metrics.get_meter("kvtier_lmcache")

    def counter(name: str) -> Callable[[object], Iterable[metrics.Observation]]:
        def observe(_: object) -> Iterable[metrics.Observation]:
            for rank, counts in ranks.items():
                yield metrics.Observation(getattr(counts, name), {"rank": rank})

        return observe

    for name in NAMES:
        meter.create_observable_counter(f"kvtier_plugin_{name}", callbacks=[counter(name)])
    meter.create_observable_counter(
        "kvtier_plugin_short_hits_suppressed",
        callbacks=[lambda _: [metrics.Observation(suppressed())]],
    )
    meter.create_observable_gauge(
        "kvtier_plugin_rank_answers",
        callbacks=[
            lambda _: [
                metrics.Observation(int(state == "closed"), {"rank": rank})
                for rank, state in states().items()
            ]
        ],
    )
