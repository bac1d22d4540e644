"""What an engine of a fleet tells, one line of JSON at a time.

Part of what runs in the pod, and what reads it again.
"""

import json
import time
from dataclasses import asdict, dataclass, field
from typing import Any

STALLED_SECONDS = 1.0
SLOW_SECONDS = 0.1
LATENCY_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


@dataclass(slots=True)
class Counts:
    """Objects, one per chunk and rank, unless it says otherwise.

    ``reads`` are values that were read and checked byte by byte: ``hits`` (right), ``stale`` (other
    weights wrote it), ``foreign`` and ``corrupt``. ``misses`` are those looked up that were not
    there or not to be had; of them, ``denied`` by access rules. ``refused`` are writes so denied.
    ``errors`` are batches that a rank did not answer, and error replies. ``batches`` are those that
    were sent; ``slow`` ones took more than 0.1 s, ``stalls`` more than 1 s, and the longest
    ``longest`` seconds. ``latency`` counts batches below each of LATENCY_SECONDS, and the rest.
    ``late`` is by how many seconds the engine itself was woken too late at most: a stall beside it
    may be the machine's.
    """

    requests: int = 0
    lookups: int = 0
    reads: int = 0
    hits: int = 0
    misses: int = 0
    denied: int = 0
    stale: int = 0
    foreign: int = 0
    corrupt: int = 0
    writes: int = 0
    refused: int = 0
    errors: int = 0
    batches: int = 0
    slow: int = 0
    stalls: int = 0
    longest: float = 0.0
    late: float = 0.0
    latency: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_SECONDS) + 1))

    @property
    def wrong(self) -> int:
        return self.stale + self.foreign + self.corrupt

    def __add__(self, other: "Counts") -> "Counts":
        mine, theirs = asdict(self), asdict(other)
        most = {name: max(mine[name], theirs[name]) for name in ("longest", "late")}
        latency = [sum(pair) for pair in zip(self.latency, other.latency, strict=True)]
        added = {
            name: mine[name] + theirs[name] for name in mine.keys() - most.keys() - {"latency"}
        }
        return Counts(**added, **most, latency=latency)

    def timed(self, seconds: float) -> None:
        self.batches += 1
        self.slow += seconds > SLOW_SECONDS
        self.stalls += seconds > STALLED_SECONDS
        self.longest = max(self.longest, round(seconds, 6))
        self.latency[sum(seconds >= bound for bound in LATENCY_SECONDS)] += 1


@dataclass(slots=True)
class Told:
    """What one pod did with one state of its Secret: a line of its log, each replacing the last.

    ``stretch`` counts the states from 0. ``weights`` stamps what it writes, ``runs`` is that in
    words. ``moments`` are the first and the last of ``hit``, ``write``, ``denied``, ``refused`` and
    ``wrong``, ``at`` and ``began`` when it was told and begun: seconds since the epoch, to a
    millisecond. ``final``: the stretch is over.
    """

    pod: str
    stretch: int
    weights: str
    runs: str
    generation: str
    began: float
    at: float = 0.0
    final: bool = False
    counts: Counts = field(default_factory=Counts)
    moments: dict[str, list[float]] = field(default_factory=dict)

    def note(self, moment: str) -> None:
        at = now()
        self.moments.setdefault(moment, [at, at])[1] = at

    @classmethod
    def parse(cls, line: str) -> "Told":
        found: dict[str, Any] = json.loads(line)
        return cls(**(found | {"counts": Counts(**found["counts"])}))


def now() -> float:
    """Seconds since the epoch, to a millisecond."""
    return round(time.time(), 3)
