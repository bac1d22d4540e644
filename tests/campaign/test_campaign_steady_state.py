"""Twenty small tiers for an hour, two of them at work: nothing is written, nothing grows."""

import os
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from livecluster import figures, loadtest
from livecluster.audit import Request, described
from livecluster.cluster import LiveCluster
from livecluster.fixtures import NewTier
from livecluster.installation import MIB, Installation
from livecluster.tier import Tier
from livecluster.waiting import eventually

MINUTES = float(os.environ.get("KVTIER_SOAK_MINUTES", "60"))
TIERS = 20
BUSY = 2
RESYNC = 300.0
"""Seconds, as the chart has it; a tenth more or less."""
SETTLE_SECONDS = 60.0
SAMPLE_SECONDS = 15.0
MOST_RESIDENT = 120 * MIB
MOST_GROWTH = 4 * MIB
RESYNC_READS = {
    "get kvcachetiers": 1,
    "list statefulsets": 1,
    "list services": 1,
    "list configmaps": 1,
    # Its ranks', and its engines'.
    "list pods": 2,
    "get secrets": 4,
}
STAGES = {
    "Python alone": "pass",
    "+ aiohttp": "import aiohttp",
    "+ kubernetes.aio, as far as a request needs it": (
        "import aiohttp, kubernetes.aio.client as c; from kubernetes.aio.config import "
        "load_incluster_config, load_kube_config; c.ApiClient"
    ),
    "+ kopf": (
        "import aiohttp, kubernetes.aio.client as c; from kubernetes.aio.config import "
        "load_incluster_config, load_kube_config; c.ApiClient; import kopf"
    ),
    "+ pydantic": (
        "import aiohttp, kubernetes.aio.client as c; from kubernetes.aio.config import "
        "load_incluster_config, load_kube_config; c.ApiClient; import kopf, pydantic"
    ),
    "+ kvtier: the whole controller, imported": "import kvtier.cli.main, kvtier.cli.controller",
}


@dataclass(frozen=True, slots=True)
class Sample:
    """The controller's process at one moment. ``resident`` is in bytes."""

    at: float
    resident: int
    files: int
    tasks: int
    reconciles: int


def sample(kvtier: Installation) -> Sample:
    text = kvtier.metrics()

    def value(name: str) -> int:
        found = re.findall(rf"^{name}(?:{{[^}}]*}})? ([0-9.e+]+)$", text, flags=re.MULTILINE)
        assert found, f"no metric {name}"
        return int(sum(float(each) for each in found))

    return Sample(
        at=time.monotonic(),
        resident=kvtier.resident_bytes(),
        files=value("process_open_fds"),
        tasks=value("kvtier_asyncio_tasks"),
        reconciles=value("kvtier_reconcile_total"),
    )


def versions(tiers: list[Tier]) -> dict[tuple[str, str, str], str]:
    return {
        (tier.name, *key): obj["metadata"]["resourceVersion"]
        for tier in tiers
        for key, obj in (tier.children() | {("kvcachetiers", tier.name): tier.body()}).items()
    }


@pytest.mark.timeout(MINUTES * 60 + 1800, func_only=True)
def test_soak_twenty_tiers_write_nothing_and_grow_by_nothing(
    new_tier: NewTier, kvtier: Installation, live: LiveCluster
) -> None:
    seconds = MINUTES * 60
    fresh = sample(kvtier)
    tiers = [new_tier(f"soak-{number:02}") for number in range(TIERS)]
    for number, tier in enumerate(tiers):
        # Every probe is a process: as few ranks as there can be, on the CPU that probes need.
        tier.apply({"pool": {"ranks": 2 if number < BUSY else 1}, "store": {"cpu": "200m"}})
    for tier in tiers:
        tier.wait_ready(seconds=600)
    eventually(
        lambda: len(live.api.list("kvcachetiers")) == TIERS,
        seconds=300,
        what="tiers of earlier tests are gone",
    )
    runs = [
        loadtest.start(
            tier,
            *("--rate", "2", "--max-bytes", "1Ti"),
            seconds=seconds + SETTLE_SECONDS + 60,
            name=f"loadtest-{tier.name}",
        )
        for tier in tiers[:BUSY]
    ]
    for run in runs:
        run.wait_hits()
    time.sleep(SETTLE_SECONDS)

    before, mark, start = versions(tiers), live.audit.mark(), time.monotonic()
    began = datetime.now(UTC)
    samples = [sample(kvtier)]
    while time.monotonic() - start < seconds:
        time.sleep(SAMPLE_SECONDS)
        try:
            samples.append(sample(kvtier))
        except OSError as error:
            # One reading that a busy machine lost is none of the process's growth.
            print(f"no sample after {time.monotonic() - start:.0f} s: {error}", flush=True)
    lasted = time.monotonic() - start
    requests = kvtier.requests(mark)
    after = versions(tiers)
    reports = [run.report() for run in runs]

    calm = [tier for tier in tiers if not flipped(tier, since=began)]
    assert len(calm) > TIERS / 2, "too busy a machine: ranks do not answer their probes"
    names = {tier.name for tier in calm}
    writes = [request for request in requests if request.is_write]
    leases = [request for request in writes if request.resource == "leases"]
    # A rank that was not ready for a moment is told of; nothing else is anything to write for.
    told = [
        request
        for request in writes
        if request.resource in ("kvcachetiers/status", "events")
        and request.name.partition(".")[0] not in names
    ]
    beside = [request for request in writes if request not in leases and request not in told]
    assert not beside, described(beside, keep=lambda _: True)
    assert len(samples) >= 0.95 * lasted / SAMPLE_SECONDS - 2, len(samples)
    assert lasted / 7 <= len(leases) <= lasted / 5 + 2
    unequal = {key for key in before if before[key] != after.get(key)}
    assert before.keys() == after.keys()
    assert not {name for name, *_ in unequal} & names, unequal
    resyncs = sum(whole_resyncs(requests, tier) for tier in calm)
    seen = samples[-1].reconciles - samples[0].reconciles
    assert seen >= TIERS * (lasted / (1.1 * RESYNC) - 1)
    if len(calm) == TIERS:
        # One is cut by the beginning and one by the end, for each tier.
        assert resyncs <= seen <= resyncs + 2 * TIERS, (resyncs, seen)
    watching(requests, seconds=lasted)
    assert not any(any(report["wrong"].values()) for report in reports)
    assert all(report["hitRate"] > 0 for report in reports)
    grown = growth(samples)
    figures.write(
        "benchmarks.md",
        place="steady-state",
        text=figures.table(
            [
                ["", "fresh, without tiers", "at the beginning", "at the end", "most"],
                [
                    "resident memory, MiB",
                    *(f"{each.resident / MIB:.0f}" for each in (fresh, samples[0], samples[-1])),
                    f"{most(samples, 'resident') / MIB:.0f}",
                ],
                [
                    "open files and sockets",
                    *(str(each.files) for each in (fresh, samples[0], samples[-1])),
                    str(most(samples, "files")),
                ],
                [
                    "asyncio tasks",
                    *(str(each.tasks) for each in (fresh, samples[0], samples[-1])),
                    str(most(samples, "tasks")),
                ],
            ]
        )
        + f"\n{TIERS} tiers for {lasted / 60:.0f} minutes, traffic on {BUSY}: "
        f"{len(leases)} writes of the Lease, {beside_the_lease(told, TIERS - len(calm))}; "
        f"{seen} reconciles, resyncs of "
        f"{sum(RESYNC_READS.values())} reads each, and one for each node of the tier's ranks; "
        f"resident memory grew by {grown / MIB:.1f} MiB from the second quarter to the last.\n\n"
        f"{figures.circumstances(live)}",
    )
    assert most(samples, "resident") <= MOST_RESIDENT
    assert grown <= MOST_GROWTH, [each.resident // MIB for each in samples]
    assert flat([each.files for each in samples]), [each.files for each in samples]
    assert flat([each.tasks for each in samples]), [each.tasks for each in samples]


def beside_the_lease(told: list[Request], restless: int) -> str:
    if not told:
        return "and no other"
    return f"and {len(told)} that told of {restless} tiers whose ranks missed their probes"


def flipped(tier: Tier, *, since: datetime) -> bool:
    """Whether a rank of the tier became ready or unready after that moment."""
    times = [
        condition["lastTransitionTime"]
        for pod in tier.pods().values()
        for condition in pod["status"]["conditions"]
        if condition["type"] == "Ready"
    ]
    # They are whole seconds.
    return any(datetime.fromisoformat(time) >= since.replace(microsecond=0) for time in times)


def most(samples: list[Sample], name: str) -> int:
    return max(getattr(each, name) for each in samples)


def growth(samples: list[Sample]) -> float:
    """Bytes by which the median of the last quarter is above that of the second."""
    quarter = max(len(samples) // 4, 1)
    second = statistics.median(each.resident for each in samples[quarter : 2 * quarter])
    return statistics.median(each.resident for each in samples[-quarter:]) - second


def flat(values: list[int]) -> bool:
    """Whether the last quarter's median is no more than a few above the first's."""
    quarter = max(len(values) // 4, 1)
    return statistics.median(values[-quarter:]) <= statistics.median(values[:quarter]) + 3


def whole_resyncs(requests: list[Request], tier: Tier) -> int:
    """How many resyncs of one tier began and ended here; each must read exactly what one does."""
    mine = [
        request
        for request in sorted(requests, key=lambda request: request.at)
        if request.namespace == tier.namespace and belongs(request, tier)
    ]
    groups: list[Counter[str]] = []
    for request in mine:
        what = f"{request.verb} {request.resource}"
        if what == "get kvcachetiers":
            groups.append(Counter())
        if groups:
            groups[-1][what] += 1
    whole = groups[:-1]
    for group in whole:
        assert group == RESYNC_READS, (tier.name, group)
    return len(whole)


def belongs(request: Request, tier: Tier) -> bool:
    """All tiers are in one namespace: by the name, or by the label that a list selects."""
    named = request.name == tier.name or request.name.startswith(f"{tier.name}-")
    selects = (f"tier-name%3D{tier.name}&", f"tier%3D{tier.name}&")
    return named or any(each in f"{request.uri}&" for each in selects)


def watching(requests: list[Request], *, seconds: float) -> None:
    """What keeps the watches up: one request for each kind in five minutes or more, no listing."""
    cluster_wide = [each for each in requests if not each.namespace and each.resource != "nodes"]
    listings = [each for each in cluster_wide if each.verb != "watch"]
    assert not listings, described(listings, keep=lambda _: True)
    assert len(cluster_wide) <= 5 * (seconds / 300 + 1)


def test_soak_names_what_the_resident_memory_is() -> None:
    rows = [["", "resident, MiB", "of it mapped from files"]]
    for name, imports in STAGES.items():
        resident, files = imported(imports)
        rows.append([name, f"{resident / MIB:.0f}", f"{files / MIB:.0f}"])
    figures.write("benchmarks.md", place="memory", text=figures.table(rows))
    assert float(rows[-1][1]) * MIB < MOST_RESIDENT / 1.3, rows


def imported(statements: str) -> tuple[int, int]:
    """Bytes resident after these imports, and how many of them are pages of files."""
    show = "print(open('/proc/self/status').read())"
    done = subprocess.run(
        [sys.executable, "-c", f"{statements}\n{show}"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": "131072"},
    )
    sizes = dict(re.findall(r"^(VmRSS|RssFile):\s+(\d+) kB", done.stdout, flags=re.MULTILINE))
    return int(sizes["VmRSS"]) * 1024, int(sizes["RssFile"]) * 1024
