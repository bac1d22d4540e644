"""One fault, with a client at work on the tier, another tier beside it, and the audit log open."""

import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from livecluster import loadtest
from livecluster.audit import Mark, Request, described
from livecluster.figures import write_row
from livecluster.fixtures import NewTier
from livecluster.installation import Installation
from livecluster.loadtest import Loadtest
from livecluster.tier import Tier
from livecluster.waiting import eventually

LOAD = ("--rate", "4", "--prompt-tokens", "2048", "--prefixes", "2")
"""Three quarters of each prompt begin as another one did."""
NEIGHBOUR_SECONDS = 5.0
MOST_REQUESTS, PER_MINUTE = 40, 60
"""Requests of kvtier at most: for what changes at once, and while it waits for the end of it."""
POLICIES = ("LFU", "LRU")


@dataclass(slots=True)
class Trial:
    """``victim`` is the rank that is hit, on ``node``, where neither the controller nor the client
    nor the neighbour runs. ``begun`` is when the fault began, in seconds since the epoch."""

    tier: Tier
    neighbour: Tier
    kvtier: Installation
    run: Loadtest
    victim: int
    node: str
    mark: Mark | None = None
    begun: float = 0.0
    neighbour_seconds: list[float] = field(default_factory=list)
    back: float = 0.0

    def start(self) -> None:
        """The fault begins now."""
        self.mark, self.begun = self.kvtier.cluster.audit.mark(), time.time()

    def edit_neighbour(self) -> None:
        """Change a live setting of the other tier, and time it until its servers have it."""
        policy = POLICIES[len(self.neighbour_seconds) % 2]
        started = time.monotonic()
        self.neighbour.patch({"store": {"eviction": policy}})
        wanted = f"allkeys-{policy.lower()}"
        eventually(
            lambda: policies(self.neighbour) == {wanted},
            seconds=3 * NEIGHBOUR_SECONDS,
            what=f"the other tier's servers evict by {wanted}",
            detail=lambda: policies(self.neighbour),
        )
        self.neighbour_seconds.append(time.monotonic() - started)

    def replaced(self, before: dict[int, str], *, seconds: float) -> float:
        """Wait until the victim runs in another container and the tier is Ready; how long since
        the fault began."""
        eventually(
            lambda: (
                self.tier.containers().get(self.victim, before[self.victim]) != before[self.victim]
            ),
            seconds=seconds,
            what=f"rank {self.victim} runs in another container",
            detail=lambda: self.tier.condition("StoreReady"),
        )
        return self.ready(seconds=seconds)

    def ready(self, *, seconds: float) -> float:
        self.tier.wait_ready(seconds=seconds)
        self.back = time.time() - self.begun
        return self.back

    def requests(self) -> list[Request]:
        """kvtier's requests about the tier that was hit since the fault began, and for nodes."""
        assert self.mark
        return [
            request
            for request in self.kvtier.requests(self.mark)
            if request.resource == "nodes"
            or (request.namespace == self.tier.namespace and self.tier.name in request.uri)
            or (request.namespace == self.tier.namespace and request.resource == "events")
        ]

    def finish(self, *, what: str, back: str) -> dict[str, Any]:
        """Let the client see hits again, end it, check what always holds, and write the row.

        ``back`` may name ``{seconds}``, from the fault until the tier was Ready.
        """
        self._hits_again()
        self.run.stop()
        report = self.run.report()
        assert report["wrong"] == {"corrupt": 0, "foreign": 0, "stale": 0}
        assert self.neighbour_seconds, "nobody looked whether the other tier was held up"
        assert max(self.neighbour_seconds) < NEIGHBOUR_SECONDS, self.neighbour_seconds
        requests = self.requests()
        minutes = max(self.back, 1.0) / 60
        listing = described(requests, keep=lambda _: True)
        # What a change costs at once, and what waiting for the end of it costs.
        assert len(requests) <= MOST_REQUESTS + PER_MINUTE * minutes, (
            f"{len(requests)} requests:\n{listing}"
        )
        row = (what, self.seen(report), back.format(seconds=f"{self.back:.0f} s"), told(requests))
        write_row("faults.md", place="ranks-and-nodes", row=row)
        print(json.dumps({"neighbour": self.neighbour_seconds, "outages": report["outages"]}))
        return report

    def _hits_again(self) -> None:
        """Until the client has hits as before, which the last seconds of its report show."""
        eventually(
            lambda: (self.run.progress() or [{}])[-1].get("hitRate", 0) >= 0.7,
            seconds=60,
            what="the client hits again",
            detail=lambda: self.run.progress()[-3:],
        )

    def seen(self, report: dict[str, Any]) -> str:
        """What the client saw since the fault began, in words."""
        cold = [
            entry
            for entry in report["timeline"]
            if epoch(entry["at"]) >= self.begun - 1
            and entry["requests"]
            and (entry["hitRate"] or 0) < 0.5
        ]
        outages = [each for each in report["outages"] if each["rank"] == self.victim]
        kinds = ", ".join(
            f"{kind} {sum(_length(each) for each in outages if each['kind'] == kind):.1f} s"
            for kind in dict.fromkeys(each["kind"] for each in outages)
        )
        others = [each for each in report["outages"] if each["rank"] != self.victim]
        said = [f"rank unreachable ({kinds})" if kinds else "no failed request"]
        if others:
            said.append(f"{len(others)} outages of other ranks")
        if cold:
            last = max(epoch(entry["at"]) for entry in cold) + 1 - self.begun
            said.append(f"misses until {last:.0f} s after")
        else:
            said.append("hits all the time")
        return "; ".join(said) + "; no wrong byte"


def begin(
    new_tier: NewTier, kvtier: Installation, *, ranks: int = 2, seconds: float = 240.0
) -> Trial:
    """A tier with a client whose prompts hit, and a tier beside it."""
    tier, neighbour = new_tier("chat"), new_tier("other")
    tier.apply({"pool": {"ranks": ranks}})
    tier.wait_ready()
    tier.engine()
    avoided = kvtier.pod()["spec"]["nodeName"]
    nodes = {rank: pod["spec"]["nodeName"] for rank, pod in tier.pods().items()}
    victim = next(rank for rank, node in nodes.items() if node != avoided)
    with cordoned(tier, nodes[victim]):
        neighbour.apply()
        neighbour.wait_ready()
        run = loadtest.start(tier, *LOAD, seconds=seconds)
        run.wait_hits()
    return Trial(
        tier=tier,
        neighbour=neighbour,
        kvtier=kvtier,
        run=run,
        victim=victim,
        node=nodes[victim],
    )


class cordoned:  # noqa: N801 - a context manager that reads as a word
    """Nothing new is scheduled on the node meanwhile."""

    def __init__(self, tier: Tier, node: str) -> None:
        self._kubectl: Callable[..., str] = tier.cluster.kubectl
        self._node = node

    def __enter__(self) -> None:
        self._kubectl("cordon", self._node)

    def __exit__(self, *_: object) -> None:
        self._kubectl("uncordon", self._node)


def policies(tier: Tier) -> set[str]:
    """By what the tier's servers evict, asked as the operator."""
    token = tier.secret(f"{tier.name}-operator")["token"]
    engine = tier.engine()
    found = set()
    for rank in engine.ranks:
        with engine.connect(rank, username="operator", password=token) as client:
            shown: Any = client.config_get("maxmemory-policy")
        found.add(str(shown["maxmemory-policy"]))
    return found


def told(requests: list[Request]) -> str:
    """How many requests there were, reads and writes by kind."""
    reads = sum(not request.is_write for request in requests)
    writes = Counter(request.resource for request in requests if request.is_write)
    listed = ", ".join(f"{count} {resource}" for resource, count in sorted(writes.items()))
    return f"{reads} reads; writes: {listed}" if listed else f"{reads} reads, no write"


def epoch(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _length(outage: dict[str, Any]) -> float:
    return epoch(outage["to"]) - epoch(outage["from"]) if outage["to"] else 0.0
