"""A storm for real: engines with a true prefill rate behind Envoy and limiters lose their cache.

What requests, engines and limiters tell is put in the form of a simulated run, so that the same
figures and the same picture come of both.
"""

import argparse
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from kvtier.admission.fleet import Request
from kvtier.admission.simulate import Look, Plan, Run, simulate
from kvtier.admission.storm import State
from kvtier.api.load import parse_tier
from kvtier.cli import simulate as command
from kvtier.cli import simulate_plot
from kvtier.cli.simulate_report import Report
from livecluster.cluster import LiveCluster
from livecluster.figures import DOCS, RECORD, circumstances, write_row
from livecluster.fixtures import NewTier
from livecluster.gateway import gateway
from livecluster.installation import NAMESPACE, Installation
from livecluster.storm_load import Load, traffic
from livecluster.storms import (
    ENGINES,
    RATE,
    TRAFFIC,
    Pool,
    Seen,
    limited,
    limiter_addresses,
    limiter_pods,
    warm,
)
from livecluster.tier import Tier
from livecluster.waiting import eventually

pytestmark = pytest.mark.timeout(1200)
BEFORE = 30.0
"""Seconds of traffic before the rank is lost."""
AFTER = 400.0
"""Seconds of traffic after it, at most."""
CALM = 15.0
"""Seconds of traffic after all is over."""
SOON = 3.0
"""Seconds from the loss to the first 429."""
SEED = 11


@dataclass(frozen=True, slots=True)
class Story:
    """One storm: times in seconds from the start of the traffic."""

    load: Load
    seen: list[Seen]
    began: float
    wiped: float
    ended: float
    rate: float


@pytest.fixture(scope="module", autouse=True)
def limiters(kvtier: Installation) -> Iterator[None]:
    with limited(kvtier):
        yield


def play(
    pool: Pool, directory: Path, *, harm: Callable[[], None] = lambda: None, most: float = AFTER
) -> Story:
    """Traffic, a lost rank, and traffic until the tier is Open again."""
    tier = pool.tier
    with (
        gateway(
            directory,
            tier=f"{tier.namespace}/{tier.name}",
            engines=pool.addresses(),
            limiters=limiter_addresses(tier.cluster),
        ) as envoy,
        pool.watched(envoy),
        traffic(f"{envoy.url}/v1/completions", TRAFFIC, seed=SEED) as load,
    ):
        began = time.time()
        time.sleep(BEFORE)
        harm()
        wiped = time.time()
        tier.kubectl("delete", "pod", f"{tier.name}-r0-0", "--wait=false")
        struck = False
        while time.time() < wiped + most:
            time.sleep(1.0)
            state = pool.seen[-1].state if pool.seen else ""
            struck = struck or state == State.STORM
            if struck and state == State.OPEN:
                time.sleep(CALM)
                break
        ended, unasked = time.time(), envoy.let_in_unasked()
    print(f"{unasked} let in unasked; {load.late:.2f} s late at worst")
    assert not sum(each.wrong for each in pool.seen[-1:]), "an engine read wrong bytes"
    return Story(
        load=load,
        seen=list(pool.seen),
        began=began,
        wiped=wiped - began,
        ended=ended - began,
        rate=pool.rate,
    )


def reported(story: Story, tier: Tier, *, admission: bool) -> Report:
    """The story as the simulation tells its own."""
    plan = planned(tier, story, admission=admission)
    kind = plan.kinds[0]
    run = Run()
    for sent in story.load.sent:
        at = sent.at - story.began
        if sent.status == 200 and sent.ttft is not None:
            run.admitted.append(
                Request(
                    kind=kind,
                    prefix=0,
                    arrived=at,
                    hit=sent.hit,
                    ended=at + sent.ttft,
                    ttft=sent.ttft,
                )
            )
        elif sent.status == 429:
            run.shed.append((at, TRAFFIC.tokens))
    before: Seen | None = None
    for seen in story.seen:
        if before is not None and seen.at <= story.began + story.ended:
            new = [getattr(seen, name) - getattr(before, name) for name in _COUNTED]
            prompt, hit, computed = new
            miss = 1 - hit / prompt if prompt else 0.0
            run.looks.append(
                Look(
                    at=seen.at - story.began,
                    state=State(seen.state or State.OPEN),
                    limit=seen.limit if admission else None,
                    why="",
                    waiting=int(seen.waiting),
                    queue_seconds=seen.waiting / ENGINES * miss * TRAFFIC.tokens / story.rate,
                    prompt=prompt,
                    hit=hit,
                    computed=computed,
                )
            )
        before = seen
    return Report(name=tier.name, plan=plan, run=run, seed=SEED, step=5.0)


_COUNTED = ("prompt", "hit", "computed")


def planned(tier: Tier, story: Story, *, admission: bool) -> Plan:
    """The simulation of the same tier under the same traffic."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    arguments = parser.parse_args(
        [
            *("storm", "-f", "-", "--engines", f"{ENGINES}"),
            *("--requests-per-second", f"{TRAFFIC.requests_per_second:g}"),
            *("--hit-rate", f"{TRAFFIC.shared / TRAFFIC.tokens:g}"),
            *("--prefixes", f"{TRAFFIC.prefixes}"),
            *("--true-rate-factor", f"{story.rate / RATE:g}"),
            *("--wipe-at", f"{story.wiped:.1f}s", "--duration", f"{story.ended:.1f}s"),
            *("--admission", "on" if admission else "off"),
        ]
    )
    return command.plan_of(parse_tier(tier.body()), arguments)


def kept(name: str, report: Report, other: Report, live: LiveCluster) -> None:
    """A row of docs/admission.md, and the picture."""

    def cell(figure: float | None, form: str = "{:.1f} s") -> str:
        return "-" if figure is None else form.format(figure)

    first = report.first_shed
    row = (
        name,
        cell(None if first is None else first - report.plan.wipe_at),
        f"{cell(report.ttft_p99)} ({cell(other.ttft_p99)})",
        f"{cell(report.ttft_p99_since_wipe)} ({cell(other.ttft_p99_since_wipe)})",
        cell(report.ttft_bound),
        f"{cell(report.goodput, '{:.2f}')} ({cell(other.goodput, '{:.2f}')})",
        f"{len(report.run.shed) / max(1, len(report.run.shed) + len(report.run.admitted)):.0%}",
        f"{report.worst_queue:.1f} s ({other.worst_queue:.1f} s)",
        f"{cell(_opened(report))} ({cell(_opened(other))})",
    )
    write_row("admission.md", place="storms", row=row)
    print(circumstances(live))


def _opened(report: Report) -> float | None:
    return None if report.opened is None else report.opened - report.plan.wipe_at


def pictured(report: Report, file: str) -> None:
    if os.environ.get(RECORD) == "1":
        (DOCS / file).write_text(simulate_plot.plot(report), encoding="utf-8")


def simulated(report: Report) -> Report:
    run = simulate(report.plan, chance=random.Random(SEED))
    return replace(report, run=run)


def agree(report: Report, other: Report) -> None:
    """The curves of the cluster and those of the simulation, after the loss."""
    pairs = [
        (mine.hit_rate, theirs.hit_rate)
        for mine, theirs in zip(report.rows, other.rows, strict=False)
        if mine.hit_rate is not None and theirs.hit_rate is not None
    ]
    off = sum(abs(mine - theirs) for mine, theirs in pairs) / len(pairs)
    assert off < 0.12, f"the hit rate is {off:.2f} off on average"
    mine, theirs = _opened(report), _opened(other)
    assert mine is not None
    assert theirs is not None
    assert 1 / 1.6 < mine / theirs < 1.6, (mine, theirs)


def holds(report: Report) -> None:
    assert report.first_shed is not None, "nothing was refused"
    assert report.first_shed - report.plan.wipe_at <= SOON
    # What came before anybody could know waits for as long as it has to; the rows tell that too.
    assert report.ttft_p99 is not None
    assert report.ttft_p99 <= report.ttft_bound
    assert report.goodput is not None
    assert report.goodput >= 0.8
    assert report.opened is not None, "it did not open again"


def served_all(story: Story) -> None:
    """Each request is answered, by an engine or by 429 with a time to come back."""
    others = {sent.status for sent in story.load.sent} - {200, 429}
    assert not others, [sent for sent in story.load.sent if sent.status not in (200, 429)][:5]
    assert all(sent.retry_after for sent in story.load.sent if sent.status == 429)


def test_without_admission_the_queue_grows_as_long_as_hits_are_few(
    new_tier: NewTier, live: LiveCluster, tmp_path: Path
) -> None:
    with warm(new_tier("storm"), mode="Observe", rate=RATE) as pool:
        story = play(pool, tmp_path, most=90.0)
        report = reported(story, pool.tier, admission=False)
    other = simulated(report)
    kept("without admission (Observe)", report, other, live)
    pictured(report, "storm-cluster-without.svg")
    assert not report.run.shed
    assert report.worst_queue > 3 * report.queue_bound
    assert report.ttft_p99_since_wipe is not None
    assert report.ttft_p99_since_wipe > 3 * report.ttft_bound


@pytest.mark.parametrize("factor", [1.0, 0.5, 2.0])
def test_admission_keeps_the_time_to_first_token_through_a_storm(
    new_tier: NewTier,
    live: LiveCluster,
    tmp_path: Path,
    factor: float,
) -> None:
    with warm(new_tier("storm"), mode="Enforce", rate=factor * RATE) as pool:
        story = play(pool, tmp_path)
        report = reported(story, pool.tier, admission=True)
    other = simulated(report)
    name = "Enforce" if factor == 1 else f"Enforce, R {factor:g} times what is declared"
    kept(name, report, other, live)
    if factor == 1:
        pictured(report, "storm-cluster.svg")
        pictured(other, "storm-cluster-simulated.svg")
    served_all(story)
    holds(report)
    agree(report, other)


def test_with_the_operator_and_one_limiter_dead_it_holds_too(
    new_tier: NewTier, live: LiveCluster, kvtier: Installation, tmp_path: Path
) -> None:
    def harm() -> None:
        live.kubectl("scale", "-n", NAMESPACE, "deployment/kvtier", "--replicas=0")
        victim = limiter_pods(live)[0]["metadata"]["name"]
        live.kubectl("delete", "pod", "-n", NAMESPACE, victim, "--grace-period=0", "--force")
        eventually(lambda: not kvtier.pods(), seconds=60, what="the operator is gone")

    try:
        with warm(new_tier("storm"), mode="Enforce", rate=RATE) as pool:
            story = play(pool, tmp_path, harm=harm)
            report = reported(story, pool.tier, admission=True)
    finally:
        live.kubectl("scale", "-n", NAMESPACE, "deployment/kvtier", "--replicas=1")
    kept("Enforce, operator and one of two limiters dead", report, simulated(report), live)
    served_all(story)
    holds(report)
