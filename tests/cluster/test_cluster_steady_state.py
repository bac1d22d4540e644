"""A tier of eight ranks: what its bring-up costs, and that nothing is written once it serves."""

import threading
import time
from dataclasses import dataclass

import pytest

from livecluster.audit import Request, described
from livecluster.fixtures import NewTier
from livecluster.installation import MIB, Installation
from livecluster.tier import Tier
from livecluster.waiting import eventually

RANKS = 8
CHART_RESYNC = "5m"
QUIET_SECONDS = 45
"""Fifteen resyncs of every tier; `make campaign` looks on for an hour."""
OTHERS_SECONDS = 180
"""A namespace of a test before was seen to take one minute to go away."""
MOST_REQUESTS = 75
MOST_RESIDENT = 80 * MIB
CHUNKS = 8


@dataclass(frozen=True, slots=True)
class BroughtUp:
    """The tier, and all requests of the controller from apply to Ready and 2 s more."""

    tier: Tier
    requests: list[Request]


@pytest.fixture(scope="module")
def brought_up(module_tiers: NewTier, kvtier: Installation) -> BroughtUp:
    # The chart's own resync: the tests' would add full reads that no installation has.
    kvtier.install(f"--set=controller.resync={CHART_RESYNC}")
    kvtier.pod()
    tier = module_tiers("chat")
    begin = kvtier.cluster.audit.mark()
    tier.apply({"pool": {"ranks": RANKS}})
    tier.wait_ready()
    time.sleep(2)
    requests = kvtier.requests(begin)
    kvtier.install()
    return BroughtUp(tier=tier, requests=requests)


def counts(request: Request, namespace: str) -> bool:
    """Whether a request was made for this tier: in its namespace, or (nodes) in none. The Lease
    is renewed whether there are tiers or not, and a watch is opened once per process."""
    return (
        request.namespace in (namespace, "")
        and request.verb != "watch"
        and request.resource != "leases"
    )


def test_bringing_up_eight_ranks_takes_at_most_75_api_requests(brought_up: BroughtUp) -> None:
    namespace = brought_up.tier.namespace
    made = [request for request in brought_up.requests if counts(request, namespace)]
    listing = described(made, keep=lambda _: True)
    assert len(made) <= MOST_REQUESTS, f"{len(made)} requests:\n{listing}"
    creates = [request for request in made if request.code == 201]
    # 8 StatefulSets, 8 Services, the ConfigMap, 5 Secrets; the rest are events.
    assert len([each for each in creates if each.resource != "events"]) == 2 * RANKS + 6, listing


class Traffic:
    """Engines at work: every rank is read and written, every byte compared, until stopped."""

    def __init__(self, tier: Tier) -> None:
        self._engine = tier.engine()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="traffic", daemon=True)
        self.rounds = 0
        self.error: Exception | None = None

    def __enter__(self) -> "Traffic":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=30)

    def _run(self) -> None:
        try:
            while not self._stop.wait(0.5):
                self._engine.store(chunks=CHUNKS)
                hits = self._engine.hits(chunks=CHUNKS)
                assert hits == dict.fromkeys(range(RANKS), CHUNKS), hits
                self.rounds += 1
        except Exception as error:
            self.error = error


def versions(tier: Tier) -> dict[tuple[str, str], str]:
    """resourceVersion of the tier and of every child."""
    objects = tier.children() | {("kvcachetiers", tier.name): tier.body()}
    return {key: obj["metadata"]["resourceVersion"] for key, obj in objects.items()}


@pytest.mark.timeout(QUIET_SECONDS + OTHERS_SECONDS + 30, func_only=True)
def test_nothing_is_written_while_engines_are_at_work(
    brought_up: BroughtUp, kvtier: Installation
) -> None:
    tier = brought_up.tier
    # Tiers of earlier tests are deleted in the background; their end is no steady state.
    eventually(
        lambda: len(kvtier.cluster.api.list("kvcachetiers")) == 1,
        seconds=OTHERS_SECONDS,
        what="this tier is the only one",
        detail=lambda: kvtier.cluster.api.list("kvcachetiers"),
    )
    with Traffic(tier) as traffic:
        before, begin = versions(tier), kvtier.cluster.audit.mark()
        time.sleep(QUIET_SECONDS)
        made = kvtier.requests(begin)
        after = versions(tier)
    assert traffic.error is None, traffic.error
    assert traffic.rounds >= 10
    writes = [request for request in made if request.is_write]
    leases = [request for request in writes if request.resource == "leases"]
    assert writes == leases, described(writes, keep=lambda each: each.resource != "leases")
    assert leases, "the Lease was not renewed: is this the controller's user?"
    assert after == before
    resident = kvtier.resident_bytes()
    print(f"idle: {resident / MIB:.0f} MiB resident, {len(made)} requests in {QUIET_SECONDS} s")
    assert resident <= MOST_RESIDENT, f"{resident / MIB:.1f} MiB resident"
