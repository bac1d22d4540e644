"""From one generation to the next under load that runs throughout, and what a wrong pod can do."""

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

import pytest

from livecluster import rollouts
from livecluster.figures import write_row
from livecluster.fixtures import NewTier
from livecluster.fleet import Fleet, Runs, fleet
from livecluster.generations import FENCED_SECONDS
from livecluster.installation import NAMESPACE, RELEASE, Installation
from livecluster.replicas import Replicas, scaled
from livecluster.rollouts import LIVE_SECONDS, NEW, SLACK
from livecluster.waiting import eventually, never

MILLION = 1_000_000
RATE = 60.0
"""Requests/s of one engine: 7,700 values/s of two, if the machine lets them."""
READ_SECONDS = 600.0 * SLACK
ROLLED_SECONDS = 90.0 * SLACK
DRAIN_SECONDS = 10.0
ABSENT_SECONDS = 30.0
WINDOWS = 5

pytestmark = pytest.mark.timeout(3000)


@pytest.fixture
def replicas(kvtier: Installation) -> Iterator[Replicas]:
    yield from scaled(kvtier)


def test_of_a_million_values_read_through_a_rolling_update_none_is_stale(
    new_tier: NewTier,
) -> None:
    case = rollouts.begin(new_tier)
    with fleet(case.tier, replicas=2, rate=RATE) as engines:
        engines.deploy()
        engines.wait_rolled(seconds=ROLLED_SECONDS)
        rollouts.read(engines, values=MILLION // 4, seconds=READ_SECONDS)
        edited = time.time()
        new = case.edit(NEW, drain="10s")
        case.generations.wait(new, "Live", seconds=LIVE_SECONDS)
        engines.roll(revision="2", generation=new)
        engines.wait_rolled(seconds=ROLLED_SECONDS)
        used = engines.timeline(generation=new)[0].began
        case.generations.wait(case.old, "Fenced", "Purged", "gone", seconds=60 * SLACK)
        fenced = time.time()
        case.generations.wait(case.old, "gone", seconds=(FENCED_SECONDS + 60) * SLACK)
        gone = time.time()
        rollouts.read(engines, values=MILLION, seconds=READ_SECONDS)
        engines.delete()
        counts = engines.counts()
        new_reads = engines.counts(generation=new).reads
    assert fenced - used > DRAIN_SECONDS - 1
    rollouts.undisturbed(counts)
    assert counts.denied == counts.refused == 0
    assert 0 < new_reads < counts.reads
    assert counts.reads >= MILLION
    rollouts.row(
        "revision 1 -> 2, engines rolled one by one",
        counts,
        came=(
            f"fenced {fenced - used:.0f} s after the first engine of the new generation began "
            f"(drainTimeout 10s), all of it gone {gone - edited:.0f} s after the edit"
        ),
    )


def test_another_dtype_is_another_generation_to_every_engine(new_tier: NewTier) -> None:
    case = rollouts.begin(new_tier)
    with fleet(case.tier, replicas=2) as engines:
        engines.deploy()
        engines.wait_rolled(seconds=ROLLED_SECONDS)
        engines.wait("hit")
        new = case.edit({"model": {"kvCacheDtype": "fp8_e4m3"}}, drain="10s")
        case.generations.wait(new, "Live", seconds=LIVE_SECONDS)
        engines.roll(dtype="fp8_e4m3", generation=new)
        engines.wait_rolled(seconds=ROLLED_SECONDS)
        begun = time.time()
        case.generations.wait(case.old, "Fenced", "Purged", "gone", seconds=60 * SLACK)
        case.gone(seconds=LIVE_SECONDS)
        engines.wait("hit", since=begun)
        case.generations.wait(case.old, "gone", seconds=(FENCED_SECONDS + 60) * SLACK)
        engines.delete()
        counts = engines.counts()
        stamps = {told.weights for told in engines.timeline()}
        new_reads = engines.counts(generation=new).reads
    assert len(stamps) == 2
    assert 0 < new_reads < counts.reads
    assert counts.denied == counts.refused == 0
    rollouts.undisturbed(counts)
    rollouts.row(
        "kvCacheDtype bfloat16 -> fp8_e4m3, engines rolled one by one",
        counts,
        came="the old generation fenced, purged and gone",
    )


def test_a_rollout_without_the_operator_goes_on_once_it_is_there(
    new_tier: NewTier, kvtier: Installation
) -> None:
    case = rollouts.begin(new_tier)

    def scale(count: int) -> None:
        name = f"deployment/{RELEASE}"
        kvtier.cluster.kubectl("scale", name, f"--replicas={count}", "-n", NAMESPACE)

    with fleet(case.tier, replicas=2) as engines:
        engines.deploy()
        engines.wait_rolled(seconds=ROLLED_SECONDS)
        engines.wait("hit")
        scale(0)
        try:
            eventually(lambda: not kvtier.pods(), seconds=60 * SLACK, what="no operator is there")
            new = case.edit(NEW, drain="10s")
            engines.roll(revision="2", generation=new)
            # Its pod waits for a Secret that nobody makes, and the old ones go on.
            never(
                lambda: engines.timeline(generation=new),
                seconds=ABSENT_SECONDS,
                what="an engine of the new generation",
            )
            absent = time.time()
        finally:
            scale(1)
        kvtier.pod()
        engines.wait_rolled(seconds=ROLLED_SECONDS)
        used = engines.timeline(generation=new)[0].began
        case.generations.wait(case.old, "Fenced", "Purged", "gone", seconds=60 * SLACK)
        row = case.generations.rows().get(case.old, {})
        case.generations.wait(case.old, "gone", seconds=(FENCED_SECONDS + 60) * SLACK)
        gone = time.time()
        engines.delete()
        counts = engines.counts()
        last = rollouts.last_access(engines, generation=case.old)
    assert last > absent - 2, "the old engines did not go on while the operator was away"
    assert row.get("cause") == "Drained"
    # Its times are whole seconds.
    assert datetime.fromisoformat(row["since"]).timestamp() - used > DRAIN_SECONDS - 1
    assert counts.denied == counts.refused == 0
    rollouts.undisturbed(counts)
    rollouts.row(
        f"no operator for {ABSENT_SECONDS:.0f} s, in which the tier was edited and engines rolled",
        counts,
        came=(
            "the old engines went on and the new ones waited for their Secret; fenced after its "
            f"drain, gone {gone - absent:.0f} s after the operator came back"
        ),
    )


@dataclass(frozen=True, slots=True)
class Poisoning:
    """One pod of other weights. Seconds since the epoch; ``wrote`` is None if no rank took a byte
    of it. ``last`` is when a rank last gave or took a value."""

    made: float
    wrote: float | None
    last: float
    stale: int

    @property
    def window(self) -> float:
        return 0.0 if self.wrote is None else max(self.last - self.wrote, 0.0)


def _poison(new_tier: NewTier, name: str, *, absent: Replicas | None = None) -> Poisoning:
    """A pod of another revision mounts the Secret of a generation in use.

    With ``absent`` the operator is killed as the pod is made, and comes back by itself.
    """
    case = rollouts.begin(new_tier, name=name)
    with (
        fleet(case.tier, replicas=2, name=f"{name}-fleet") as engines,
        fleet(case.tier, replicas=1, name=f"{name}-stray") as strays,
    ):
        engines.deploy()
        engines.wait_rolled(seconds=ROLLED_SECONDS)
        engines.wait("hit")
        if absent:
            absent.kill(absent.leader())
        made = time.time()
        strays.deploy(replace(Runs.as_declared(case.tier), revision="2"))
        case.tier.wait(
            "GenerationCurrent", "False", reason="GenerationContaminated", seconds=90 * SLACK
        )
        case.gone(seconds=LIVE_SECONDS)
        fenced = time.time()
        # The stray's container may only begin now; whoever reads goes on reading.
        strays.wait_rolled(seconds=ROLLED_SECONDS)
        engines.wait("denied", since=fenced)
        time.sleep(5)
        strays.delete()
        engines.delete()
        case.tier.kubectl("delete", "kvt", case.tier.name, "--wait=false")
        found = (*engines.timeline(generation=case.old), *strays.timeline(generation=case.old))
        stale = engines.counts().wrong + strays.counts().wrong
        accesses = [
            told.moments[moment][1]
            for told in found
            if told.stretch == 0
            for moment in ("hit", "wrong", "write")
            if moment in told.moments
        ]
        assert max(accesses) < fenced, "a rank gave or took a value after the fence"
        return Poisoning(made=made, wrote=_wrote(strays), last=max(accesses), stale=stale)


def _wrote(strays: Fleet) -> float | None:
    """When a rank first took a value of theirs."""
    found = [told.moments["write"][0] for told in strays.timeline() if "write" in told.moments]
    return min(found, default=None)


def _row(runs: list[Poisoning]) -> tuple[str, ...]:
    windows = [run.window for run in runs]
    fences = [run.last - run.made for run in runs]
    return (
        f"{sum(run.wrote is not None for run in runs)} of {len(runs)}",
        f"{statistics.median(windows):.2f} s",
        f"{max(windows):.2f} s",
        f"{sum(run.stale for run in runs)}, then none",
        f"{statistics.median(fences):.1f} s",
        f"{max(fences):.1f} s",
    )


@pytest.mark.parametrize("operator", ["there", "killed (-9) as the pod is made"])
def test_a_pod_of_other_weights_harms_nobody_once_the_fence_stands(
    new_tier: NewTier, replicas: Replicas, operator: str
) -> None:
    absent = None if operator == "there" else replicas
    runs = [_poison(new_tier, f"chat-{number}", absent=absent) for number in range(WINDOWS)]
    print(runs)
    write_row("faults.md", place="poison", row=(operator, *_row(runs)))
