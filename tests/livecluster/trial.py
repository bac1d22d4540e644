"""One fault, with a client at work on the tier, another tier beside it, and the audit log open."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from livecluster import loadtest
from livecluster.audit import Mark, Request, described
from livecluster.cluster import LiveCluster
from livecluster.figures import write_row
from livecluster.fixtures import NewTier
from livecluster.installation import Installation
from livecluster.loadtest import Loadtest
from livecluster.ranks import Engine
from livecluster.tier import Tier
from livecluster.waiting import eventually

LOAD = ("--rate", "4", "--prompt-tokens", "2048", "--prefixes", "2")
"""Three quarters of each prompt begin as another one did."""
NEIGHBOUR_SECONDS = 5.0
SLACK = 3.0
"""By how much a busy machine may be slower than what is asserted is meant for."""
MOST_REQUESTS, PER_MINUTE = 30, 30
"""Requests of kvtier at most: for what changes at once, and while it waits for the end of it."""
POLICIES = ("LFU", "LRU")
COLD, WARM = 0.5, 0.7
"""Hit rates of a second: below the one it misses, from the other on it hits as before."""


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
        engine = self.neighbour.engine()
        token = self.neighbour.secret(f"{self.neighbour.name}-operator")["token"]
        started = time.monotonic()
        self.neighbour.patch({"store": {"eviction": policy}})
        wanted = {f"allkeys-{policy.lower()}"}
        eventually(
            lambda: policies(engine, token) == wanted,
            seconds=SLACK * NEIGHBOUR_SECONDS,
            what=f"the other tier's servers evict by {policy}",
            detail=lambda: policies(engine, token),
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
        namespace, name = self.tier.namespace, self.tier.name
        return [
            request
            for request in self.kvtier.requests(self.mark)
            if request.resource == "nodes"
            or (request.namespace == namespace and name in f"{request.uri} {request.name}")
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
        assert max(self.neighbour_seconds) < SLACK * NEIGHBOUR_SECONDS, self.neighbour_seconds
        requests = self.requests()
        minutes = (time.time() - self.begun) / 60
        listing = described(requests, keep=lambda _: True)
        # What a change costs at once, and what waiting for the end of it costs.
        assert len(requests) <= MOST_REQUESTS + PER_MINUTE * minutes, (
            f"{len(requests)} requests:\n{listing}"
        )
        came_back = back.format(seconds=f"{self.back:.0f} s")
        beside = f"another tier's edit meanwhile: {max(self.neighbour_seconds):.1f} s"
        row = (what, self.seen(report), f"{came_back}; {beside}", told(requests))
        write_row("faults.md", place="ranks-and-nodes", row=row)
        print(json.dumps({"neighbour": self.neighbour_seconds, "outages": report["outages"]}))
        return report

    def _hits_again(self) -> None:
        """Until the client has hits as before, which the last seconds of its report show."""
        eventually(
            lambda: any((second["hitRate"] or 0) >= WARM for second in self.run.progress()[-2:]),
            seconds=60,
            what="the client hits again",
            detail=lambda: self.run.progress()[-3:],
        )

    def seen(self, report: dict[str, Any]) -> str:
        """What the client saw since the fault began, in words."""
        outages = [each for each in report["outages"] if epoch(each["from"]) >= self.begun - 1]
        mine = [each for each in outages if each["rank"] == self.victim]
        others = [each for each in outages if each["rank"] != self.victim]
        said = [f"the rank failed it for {_lasted(mine)}" if mine else "no failed request"]
        if others:
            said.append(f"the other for {_lasted(others)}")
        said.append(self._cold(report))
        return "; ".join(said) + "; no wrong byte"

    def _cold(self, report: dict[str, Any]) -> str:
        """From when until when prompts did not hit, in seconds since the fault began."""
        seconds = [
            (epoch(entry["at"]) - self.begun, entry["hitRate"] or 0)
            for entry in report["timeline"]
            if epoch(entry["at"]) >= self.begun - 1 and entry["requests"]
        ]
        first = next((at for at, hits in seconds if hits < COLD), None)
        if first is None:
            return "hits all the time"
        again = next((at for at, hits in seconds if at > first and hits >= WARM), None)
        until = "the end" if again is None else f"{again:.0f} s"
        return f"misses from {max(first, 0):.0f} s to {until} after"


def begin(new_tier: NewTier, kvtier: Installation, *, seconds: float = 240.0) -> Trial:
    """A tier of two ranks with a client whose prompts hit, and a tier beside it.

    One rank is alone on its node, but for node-1, whose name a part of the control plane borrows.
    """
    tier, neighbour = new_tier("chat"), new_tier("other")
    nodes = {node["metadata"]["name"] for node in tier.cluster.api.list("nodes")}
    busy = kvtier.pod()["spec"]["nodeName"]
    node = max(nodes - {busy})
    with cordoned(tier.cluster, busy):
        tier.apply()
        tier.wait_ready()
    tier.engine()
    placed = {rank: pod["spec"]["nodeName"] for rank, pod in tier.pods().items()}
    victims = [rank for rank, where in placed.items() if where == node]
    assert len(victims) == 1, f"not one rank is on {node}: {placed}"
    with cordoned(tier.cluster, node):
        neighbour.apply()
        neighbour.wait_ready()
        run = loadtest.start(tier, *LOAD, seconds=seconds)
        run.wait_hits()
    return Trial(
        tier=tier, neighbour=neighbour, kvtier=kvtier, run=run, victim=victims[0], node=node
    )


@contextmanager
def cordoned(cluster: LiveCluster, node: str) -> Iterator[None]:
    """Nothing new is scheduled on the node meanwhile."""
    cluster.kubectl("cordon", node)
    try:
        yield
    finally:
        cluster.kubectl("uncordon", node)


def policies(engine: Engine, token: str) -> set[str]:
    """By what the servers evict, asked as the operator."""
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


def _lasted(outages: list[dict[str, Any]]) -> str:
    """How long in all, by kind."""
    seconds: dict[str, float] = {}
    for each in outages:
        until = epoch(each["to"]) if each["to"] else epoch(each["from"])
        seconds[each["kind"]] = seconds.get(each["kind"], 0) + until - epoch(each["from"])
    return " and ".join(f"{total:.1f} s ({kind})" for kind, total in seconds.items())
