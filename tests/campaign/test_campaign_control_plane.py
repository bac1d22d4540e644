"""What else can become of the control plane and of the controller. The core is in tests/cluster."""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from itertools import count

import pytest
import urllib3

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
from livecluster.faults import Faults
from livecluster.fixtures import NewTier
from livecluster.installation import NAMESPACE, RELEASE, Installation
from livecluster.poison import poisoned
from livecluster.replicas import Replicas, scaled
from livecluster.tier import Tier
from livecluster.waiting import eventually, never

AWAY_SECONDS = 120.0
STORM_SECONDS = 60.0
STORM_UPDATES = 2000
GOOD = 20
PROMPT = 5.0
"""Seconds in which a tier is served, whatever happens to others."""
RUN_SECONDS = 600.0


@pytest.fixture
def tier(new_tier: NewTier) -> Tier:
    made = new_tier("chat")
    made.apply()
    made.wait_ready()
    return made


@pytest.fixture
def replicas(kvtier: Installation) -> Iterator[Replicas]:
    yield from scaled(kvtier)


@pytest.mark.parametrize(
    ("component", "by"),
    [
        ("kube-scheduler", signal.SIGKILL),
        ("kube-controller-manager", signal.SIGKILL),
        ("etcd", signal.SIGKILL),
        ("kube-apiserver", signal.SIGTERM),
    ],
)
def test_a_restarted_component_is_nothing_to_clients_and_ends_no_controller(
    tier: Tier, kvtier: Installation, live: LiveCluster, component: str, by: signal.Signals
) -> None:
    replicas = Replicas(kvtier)
    name = kvtier.pod()["metadata"]["name"]
    before = replicas.restarts(name), tier.containers()
    run = loadtest.start(tier, "--rate", "4", seconds=RUN_SECONDS)
    run.wait_hits()
    begin, start = live.audit.mark(), time.monotonic()
    Faults(live).restart(component, by=by)
    took = repaired(tier)
    seconds = time.monotonic() - start
    requests = kvtier.requests(begin)
    run.stop()
    report = run.report()
    assert (replicas.restarts(name), tier.containers()) == before
    assert not broken(report), broken(report)
    assert len(counting(requests)) <= 60, described(counting(requests), keep=lambda _: True)
    how = "killed" if by is signal.SIGKILL else "stopped"
    control_plane_row(
        f"{component} {how}, started again",
        client_saw(report),
        f"a Service that was deleted then was there again {took:.1f} s later",
        requests_in_words(requests, seconds=seconds),
    )


def test_two_minutes_without_an_api_server_cost_no_more_than_the_ranks_that_die_meanwhile(
    tier: Tier, new_tier: NewTier, kvtier: Installation, live: LiveCluster
) -> None:
    replicas, faults = Replicas(kvtier), Faults(live)
    other = new_tier("other")
    other.apply()
    other.wait_ready()
    name = kvtier.pod()["metadata"]["name"]
    restarts, ranks = replicas.restarts(name), tier.containers()
    address = kvtier.pod()["status"]["podIP"]
    victim = faults.server_pid(other.containers()[1])
    run = loadtest.start(tier, "--rate", "4", seconds=RUN_SECONDS)
    run.wait_hits()
    tries_before = asked(address)
    with faults.stopped("kube-apiserver", by=signal.SIGKILL):
        begin = time.monotonic()
        # Its kubelet starts it again without an API server.
        os.kill(victim, signal.SIGKILL)
        time.sleep(max(begin + AWAY_SECONDS - time.monotonic(), 0))
        tries = asked(address) - tries_before
        back_at = time.monotonic()
    mark = live.audit.mark()
    took = repaired(tier)
    seconds = time.monotonic() - back_at
    other.wait_ready(seconds=60)
    requests = kvtier.requests(mark)
    run.stop()
    report = run.report()
    assert replicas.restarts(name) == restarts
    assert tier.containers() == ranks
    assert not broken(report), broken(report)
    # The Lease once a second, six watches every 3 s, and each tier with growing delay.
    assert tries <= AWAY_SECONDS * (1 + 6 / 3) * 1.2 + 60, tries
    control_plane_row(
        f"API server away for {AWAY_SECONDS:.0f} s, a rank of another tier killed meanwhile",
        client_saw(report),
        f"its kubelet brought the rank back; kvtier repaired {took:.1f} s after the API server "
        f"was there again ({seconds:.0f} s after its start)",
        f"{tries} in vain while it was away; then {requests_in_words(requests, seconds=seconds)}",
    )


def asked(address: str) -> int:
    """Requests that the controller has sent so far, as it counts them itself."""
    text = urllib3.request("GET", f"http://{address}:8080/metrics").data.decode()
    lines = [line for line in text.splitlines() if line.startswith("kvtier_api_requests_total{")]
    return int(sum(float(line.rpartition(" ")[2]) for line in lines))


def test_a_leader_cut_off_from_the_api_server_is_succeeded_and_writes_nothing_when_back(
    tier: Tier, kvtier: Installation, live: LiveCluster, replicas: Replicas
) -> None:
    replicas.scale(2)
    zombie = replicas.leader()
    begin, start = live.audit.mark(), time.monotonic()
    with replicas.cut_off(zombie):
        repaired(tier)
        took = time.monotonic() - start
        heir = replicas.leader()
        assert heir != zombie
        back = live.audit.mark()
    eventually(lambda: replicas.restarts(zombie) > 0, seconds=60, what="the old leader ends")
    repaired(tier)
    requests = kvtier.requests(begin)
    tried = [each for each in kvtier.requests(back) if each.is_write and each.pod == zombie]
    # A renewal that lay in its socket arrives, and is refused: it names an old version.
    written = [each for each in tried if each.resource != "leases" or each.code < 400]
    assert not written, described(written, keep=lambda _: True)
    assert replicas.leader() == heir
    control_plane_row(
        "active controller cut off from the API server, second replica there",
        "nothing",
        f"the second repaired after {took:.0f} s; the first, back, wrote nothing and restarted",
        requests_in_words(requests, seconds=time.monotonic() - start),
    )


def test_a_killed_leader_is_succeeded(
    tier: Tier, kvtier: Installation, live: LiveCluster, replicas: Replicas
) -> None:
    replicas.scale(2)
    leader = replicas.leader()
    begin, start = live.audit.mark(), time.monotonic()
    replicas.kill(leader)
    repaired(tier)
    took = time.monotonic() - start
    requests = kvtier.requests(begin)
    control_plane_row(
        "active controller killed (-9), second replica there",
        "nothing",
        f"a replica repaired after {took:.0f} s",
        requests_in_words(requests, seconds=took),
    )


@pytest.mark.parametrize("when", ["1999-01-01T00:00:00.000000Z", "2099-01-01T00:00:00.000000Z"])
def test_a_clock_that_is_years_off_moves_no_lease(
    tier: Tier, replicas: Replicas, live: LiveCluster, when: str
) -> None:
    replicas.scale(2)
    leader = replicas.leader()
    patch = json.dumps({"spec": {"renewTime": when, "acquireTime": when}})
    restarts = {pod: replicas.restarts(pod) for pod in replicas.running()}

    def moved() -> bool:
        live.kubectl("patch", "lease", RELEASE, "-n", NAMESPACE, "--type=merge", "-p", patch)
        return replicas.leader() != leader

    never(moved, seconds=20, what="the Lease moved")
    assert {pod: replicas.restarts(pod) for pod in replicas.running()} == restarts
    repaired(tier)


def test_two_thousand_updates_in_a_minute_cost_one_tier_one_reconcile_a_second(
    tier: Tier, new_tier: NewTier, kvtier: Installation, live: LiveCluster
) -> None:
    other = new_tier("other")
    other.apply()
    other.wait_ready()
    begin, start = live.audit.mark(), time.monotonic()
    storm = Storm(live, tier)
    took = []
    with storm:
        while time.monotonic() - start < STORM_SECONDS or storm.sent < STORM_UPDATES:
            assert time.monotonic() - start < 3 * STORM_SECONDS, f"{storm.sent} updates"
            took.append(repaired(other, rank=len(took) % 2, seconds=3 * PROMPT))
            time.sleep(5)
    seconds = time.monotonic() - start
    requests = kvtier.requests(begin)
    mine = [each for each in counting(requests) if each.namespace == tier.namespace]
    assert storm.sent >= STORM_UPDATES
    assert max(took) < PROMPT, took
    # 20 at once and then one a second, of a list of each kind and of the pods.
    assert len(mine) <= (20 + seconds) * 5 + len(took) * 20, f"{len(mine)} in {seconds:.0f} s"
    control_plane_row(
        f"{storm.sent} updates of one tier's status and children in {seconds:.0f} s",
        "nothing",
        f"another tier was repaired within {max(took):.1f} s meanwhile",
        requests_in_words(requests, seconds=seconds),
    )


class Storm:
    """Updates a tier's status and the annotations of its children, 2,000 a minute in all.

    Each has a thread of its own: two writers of one object would wait for each other.
    """

    def __init__(self, live: LiveCluster, tier: Tier) -> None:
        self._live = live
        self._tier = tier
        self._stop = threading.Event()
        targets = [
            ("kvcachetiers", f"{tier.name}/status"),
            ("configmaps", f"{tier.name}-valkey"),
            *(
                (plural, f"{tier.name}-r{k}")
                for plural in ("statefulsets", "services")
                for k in (0, 1)
            ),
        ]
        self._every = len(targets) * STORM_SECONDS / STORM_UPDATES
        self._sent = dict.fromkeys(targets, 0)
        self._threads = [
            threading.Thread(target=self._run, args=target, name="storm", daemon=True)
            for target in targets
        ]

    @property
    def sent(self) -> int:
        return sum(self._sent.values())

    def __enter__(self) -> "Storm":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=30)

    def _run(self, plural: str, name: str) -> None:
        begin = time.monotonic()
        for number in count(1):
            body: dict[str, object] = {"metadata": {"annotations": {"storm": str(number)}}}
            if name.endswith("/status"):
                body = {"status": {"ranks": f"{number}/2"}}
            self._live.api.patch(plural, self._tier.namespace, name, body)
            self._sent[plural, name] = number
            if self._stop.wait(max(begin + number * self._every - time.monotonic(), 0)):
                return


def test_twenty_good_tiers_are_served_while_others_poison(
    new_tier: NewTier, kvtier: Installation, live: LiveCluster
) -> None:
    good = [new_tier(f"good-{number}") for number in range(GOOD)]
    with poisoned(live) as poison:
        for tier in good:
            tier.apply({"store": {"cpu": "50m"}})
        for tier in good:
            tier.wait_ready(seconds=300)
        begin, start = live.audit.mark(), time.monotonic()
        took = [repaired(tier, seconds=3 * PROMPT) for tier in good]
        seconds = time.monotonic() - start
        requests = kvtier.requests(begin)
    assert max(took) < PROMPT, took
    assert len(counting(requests)) <= len(poison) * seconds * 8 + GOOD * 20
    control_plane_row(
        f"{len(poison)} tiers poison: {', '.join(poison)}; {GOOD} good ones beside them",
        "nothing",
        f"good tiers were repaired within {max(took):.1f} s",
        requests_in_words(requests, seconds=seconds),
    )
