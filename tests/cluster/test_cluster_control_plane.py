"""An API server that restarts, a controller that hangs, and tiers that poison: the core of it.

The rest is in tests/campaign.
"""

import signal
import time
from collections.abc import Iterator

import pytest

from livecluster import loadtest
from livecluster.audit import described
from livecluster.cluster import LiveCluster
from livecluster.fault_rows import (
    broken,
    client_saw,
    control_plane_row,
    counting,
    repaired,
    requests_in_words,
)
from livecluster.faults import Faults, stopped_processes
from livecluster.fixtures import NewTier
from livecluster.installation import RESYNC, Installation
from livecluster.poison import poisoned
from livecluster.replicas import Replicas, scaled
from livecluster.tier import Tier
from livecluster.waiting import eventually

SECONDS = 300
"""Each takes 15 to 40 s; a busy machine gets more than this folder's bound."""
GOOD = 4
PROMPT = 5.0
"""Seconds in which a good tier is served whatever the others are."""


@pytest.fixture
def replicas(kvtier: Installation) -> Iterator[Replicas]:
    yield from scaled(kvtier)


def ready_tier(new_tier: NewTier, name: str = "chat") -> Tier:
    tier = new_tier(name)
    tier.apply()
    tier.wait_ready()
    return tier


@pytest.mark.timeout(SECONDS, func_only=True)
def test_a_killed_api_server_is_nothing_to_clients_and_ends_no_controller(
    new_tier: NewTier, kvtier: Installation, live: LiveCluster
) -> None:
    tier = ready_tier(new_tier)
    name = kvtier.pod()["metadata"]["name"]
    replicas, faults = Replicas(kvtier), Faults(live)
    restarts, ranks = replicas.restarts(name), tier.containers()
    run = loadtest.start(tier, "--rate", "4", seconds=300)
    run.wait_hits()
    begin = live.audit.mark()
    start = time.monotonic()
    faults.restart("kube-apiserver", by=signal.SIGKILL)
    took = repaired(tier)
    seconds = time.monotonic() - start
    requests = kvtier.requests(begin)
    run.stop()
    report = run.report()
    assert replicas.restarts(name) == restarts
    assert tier.containers() == ranks
    assert not broken(report), broken(report)
    # New watches, a reconcile or two for each tier that there is, and the tests' resyncs.
    mine = [each for each in counting(requests) if each.namespace == tier.namespace]
    most = 40 + 10 * seconds / RESYNC
    assert len(mine) <= most, described(mine, keep=lambda _: True)
    control_plane_row(
        "API server killed, started again *test*",
        client_saw(report),
        f"a Service that was deleted then was there again {took:.1f} s later",
        requests_in_words(requests, seconds=seconds),
    )


@pytest.mark.timeout(SECONDS, func_only=True)
def test_a_leader_that_hangs_is_succeeded_and_writes_nothing_when_it_wakes(
    new_tier: NewTier, kvtier: Installation, live: LiveCluster, replicas: Replicas
) -> None:
    tier = ready_tier(new_tier)
    replicas.scale(2)
    zombie = replicas.leader()
    begin = live.audit.mark()
    with stopped_processes([replicas.pid(zombie)]):
        stopped = time.monotonic()
        # Whoever wakes has its deletion still to tell of.
        repaired(tier)
        took = time.monotonic() - stopped
        heir = replicas.leader()
        assert heir != zombie
        woken = live.audit.mark()
    eventually(
        lambda: replicas.restarts(zombie) > 0,
        seconds=30,
        what="the old leader sees that it is none, and ends",
    )
    repaired(tier)
    requests = kvtier.requests(begin)
    writes = [each for each in kvtier.requests(woken) if each.is_write and each.pod == zombie]
    assert not writes, described(writes, keep=lambda _: True)
    assert {each.pod for each in requests if each.is_write} >= {heir}
    assert replicas.leader() == heir
    control_plane_row(
        "active controller hung (SIGSTOP), second replica there *test*",
        "nothing",
        f"the second repaired after {took:.0f} s; the first, woken, wrote nothing and restarted",
        requests_in_words(requests, seconds=time.monotonic() - stopped),
    )


@pytest.mark.timeout(SECONDS, func_only=True)
def test_good_tiers_are_served_while_others_poison(
    new_tier: NewTier, kvtier: Installation, live: LiveCluster
) -> None:
    good = [new_tier(f"good-{number}") for number in range(GOOD)]
    with poisoned(live) as poison:
        for tier in good:
            tier.apply()
        for tier in good:
            tier.wait_ready()
        begin, start = live.audit.mark(), time.monotonic()
        took = [repaired(tier, seconds=3 * PROMPT) for tier in good]
        seconds = time.monotonic() - start
        requests = kvtier.requests(begin)
    # Each at most once a second, with the four reads that a reconcile has, and its writes.
    assert len(counting(requests)) <= len(poison) * seconds * 8 + GOOD * 20
    control_plane_row(
        f"{len(poison)} tiers poison: {', '.join(poison)}; {GOOD} good ones beside them *test*",
        "nothing",
        f"good tiers were repaired within {max(took):.1f} s",
        requests_in_words(requests, seconds=seconds),
    )
