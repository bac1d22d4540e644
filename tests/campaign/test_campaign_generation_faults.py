"""What fences a generation breaks half way, and engines of it and of the next one check each byte.

Each generation is fenced by another salt here: the weights of its engines are others than those of
the old one, so any value that outlived the fence would be told.
"""

import base64
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import valkey
from live_kills import ground
from struck_controller import JUMP_SECONDS

from livecluster import rollouts
from livecluster.api import Object
from livecluster.cluster import LiveCluster
from livecluster.faults import Faults
from livecluster.fixtures import NewTier
from livecluster.fleet import Runs, fleet
from livecluster.generations import FENCED_SECONDS
from livecluster.installation import NAMESPACE, RELEASE, Installation
from livecluster.ranks import Engine
from livecluster.replicas import TAKEOVER, Replicas, scaled
from livecluster.rollouts import GONE_SECONDS, LIVE_SECONDS, NEW, SALTED, SLACK, Rollout
from livecluster.trial import cordoned
from livecluster.waiting import eventually, never

ROLLED_SECONDS = 90.0 * SLACK
WITHOUT_KEYS_SECONDS = 3.0 * SLACK
"""From the restart of a rank with its old file until the fenced user has no keys again."""
CUT_SECONDS = 20.0
BEYOND_SECONDS = 10.0
NOTHING_SECONDS = 15.0
ORDER = ("Live", "Draining", "Fenced", "Purged", "gone")

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture
def faults(live: LiveCluster) -> Iterator[Faults]:
    """What a test breaks is whole for the next one."""
    breaker = Faults(live)
    yield breaker
    breaker.mend()


@pytest.fixture
def replicas(kvtier: Installation) -> Iterator[Replicas]:
    yield from scaled(kvtier)


@pytest.fixture
def resting(live: LiveCluster, kvtier: Installation) -> Iterator[None]:
    """The installed controller is away: another one works."""

    def scale(count: int) -> None:
        name = f"deployment/{RELEASE}"
        live.kubectl("scale", name, "-n", NAMESPACE, f"--replicas={count}")

    scale(0)
    yield
    scale(1)
    kvtier.pod()


def _others(case: Rollout) -> Runs:
    """What engines of the next generation run: the weights that the salt stands for."""
    return replace(Runs.as_declared(case.tier), seed="weights of today")


def _loaded(engine: Engine, rank: int, *, operator: str) -> str:
    """Which users file the rank loaded, empty while it does not answer."""
    with (
        suppress(valkey.ValkeyError),
        engine.connect(rank, username="operator", password=operator) as session,
    ):
        shown: Any = session.acl_getuser("_rev")
        return str(shown["passwords"])
    return ""


def test_a_rank_that_starts_with_its_old_users_file_gives_a_fenced_user_nothing(
    new_tier: NewTier, faults: Faults
) -> None:
    case = rollouts.begin(new_tier)
    engine, victim = case.tier.engine(), 1
    operator = case.tier.secret(f"{case.tier.name}-operator")["token"]
    nodes = {rank: pod["spec"]["nodeName"] for rank, pod in case.tier.pods().items()}
    container = case.tier.containers()[victim]
    elsewhere = min({"node-1", "node-2", "node-3"} - {nodes[victim]})

    def reached() -> bool:
        try:
            return rollouts.reaches(
                engine, victim, operator=operator, generation=case.old, token=case.token
            )
        except valkey.ValkeyError:
            return True

    with (
        fleet(case.tier, replicas=2, node=elsewhere) as engines,
        fleet(case.tier, replicas=1, name="next", node=elsewhere) as successors,
    ):
        engines.deploy()
        engines.wait_rolled(seconds=ROLLED_SECONDS)
        engines.wait("hit")
        file = _loaded(engine, victim, operator=operator)
        with faults.stopped(f"kubelet-{nodes[victim]}"):
            new = case.edit(SALTED, drain="10s")
            case.gone(seconds=GONE_SECONDS + LIVE_SECONDS)
            assert _loaded(engine, victim, operator=operator) == file
            faults.rerun(nodes[victim], container)
            begun = time.monotonic()
            eventually(
                lambda: not reached(), seconds=WITHOUT_KEYS_SECONDS, what="it has no keys again"
            )
            seconds = time.monotonic() - begun
            assert _loaded(engine, victim, operator=operator) == file, "not the old file"
            assert case.generations.state(case.old) == "Fenced"
            successors.deploy(_others(case))
            successors.wait("hit", seconds=ROLLED_SECONDS)
            assert case.generations.state(case.old) == "Fenced", "purged before its file came"
            faults.end_rerun(nodes[victim], container)
        purged = case.generations.wait(case.old, "Purged", "gone", seconds=FENCED_SECONDS * SLACK)
        assert _loaded(engine, victim, operator=operator) != file
        successors.wait("hit", since=time.time())
        engines.delete()
        successors.delete()
        counts = engines.counts() + successors.counts()
        assert successors.counts(generation=new).reads > 0
    assert counts.denied > 0
    rollouts.row(
        "another salt while a rank's kubelet is stopped; then the rank restarts with its old file",
        counts,
        came=(
            f"the fenced user had keys on the empty rank for {seconds:.1f} s at most, and none "
            f"again; purged {purged:.0f} s after the kubelet was back"
        ),
    )


def test_a_rank_that_is_cut_off_keeps_its_generation_from_being_called_fenced_everywhere(
    new_tier: NewTier, live: LiveCluster, kvtier: Installation, faults: Faults
) -> None:
    busy = kvtier.pod()["spec"]["nodeName"]
    with cordoned(live, busy):
        case = rollouts.begin(new_tier)
    engine = case.tier.engine()
    operator = case.tier.secret(f"{case.tier.name}-operator")["token"]
    placed = {pod["spec"]["nodeName"]: rank for rank, pod in case.tier.pods().items()}
    # Not node-1, whose name a part of the control plane borrows.
    node = max(placed)
    victim = placed[node]
    assert len(placed) == 2
    with (
        fleet(case.tier, replicas=1, node=busy) as engines,
        fleet(case.tier, replicas=1, name="behind", node=node) as behind,
        fleet(case.tier, replicas=1, name="next", node=busy) as successors,
    ):
        for each in (engines, behind):
            each.deploy()
            each.wait_rolled(seconds=ROLLED_SECONDS)
            each.wait("hit")
        with faults.cut_node(node):
            begun = time.time()
            new = case.edit(SALTED, drain="10s")
            eventually(
                lambda: (
                    not rollouts.reaches(
                        engine,
                        1 - victim,
                        operator=operator,
                        generation=case.old,
                        token=case.token,
                    )
                ),
                seconds=GONE_SECONDS + LIVE_SECONDS,
                what="its access is gone on the other rank",
            )
            other = engines.wait("denied").moments["denied"][0] - begun
            successors.deploy(_others(case))
            never(
                lambda: case.generations.state(case.old) != "Fenced",
                seconds=CUT_SECONDS,
                what="it went on without the rank that is cut off",
            )
            assert (
                f"access is gone on rank {victim}" in case.generations.rows()[case.old]["message"]
            )
        joined = time.time()
        case.gone(seconds=GONE_SECONDS + LIVE_SECONDS)
        back = time.time() - joined
        case.generations.wait(case.old, "Purged", "gone", seconds=FENCED_SECONDS * SLACK)
        assert case.generations.keys(case.old) == {0: 0, 1: 0}
        successors.wait("hit", since=time.time(), seconds=ROLLED_SECONDS)
        for each in (engines, behind, successors):
            each.delete()
        counts = engines.counts() + behind.counts() + successors.counts()
        assert successors.counts(generation=new).reads > 0
    rollouts.row(
        f"another salt while a rank's node is cut off for {CUT_SECONDS:.0f} s",
        counts,
        came=(
            f"the other rank gave nothing {other:.1f} s after the edit, the one cut off "
            f"{back:.1f} s after it was back; the generation was purged only then"
        ),
    )


def test_two_operators_over_one_fence_never_take_the_record_back(
    new_tier: NewTier, replicas: Replicas
) -> None:
    replicas.scale(2)
    case = rollouts.begin(new_tier)
    first = replicas.leader()
    pid, restarts = replicas.pid(first), replicas.restarts(first)
    told: list[str] = []
    frozen: list[float] = []

    def saw(secret: Object) -> None:
        """Freeze the leader as soon as its record has the fence, before a rank can prove it."""
        if secret["metadata"]["name"] != f"{case.tier.name}-acl":
            return
        record = json.loads(base64.b64decode(secret["data"]["record.json"]))
        states = {each["id"]: each["state"] for each in record["generations"]}
        told.append(states.get(case.old, "gone"))
        if told[-1] == "Fenced" and not frozen:
            os.kill(pid, signal.SIGSTOP)
            frozen.append(time.time())

    with (
        fleet(case.tier, replicas=2) as engines,
        fleet(case.tier, replicas=1, name="next") as successors,
        case.tier.cluster.api.watch("secrets", case.tier.namespace, seen=saw),
    ):
        engines.deploy()
        engines.wait_rolled(seconds=ROLLED_SECONDS)
        engines.wait("hit")
        new = case.edit(SALTED, drain="10s")
        try:
            eventually(lambda: frozen, seconds=LIVE_SECONDS, what="the leader is frozen")
            second = replicas.wait_other(first, seconds=TAKEOVER * SLACK)
            case.gone(seconds=GONE_SECONDS + LIVE_SECONDS)
            gone = time.time() - frozen[0]
            successors.deploy(_others(case))
            successors.wait("hit", seconds=ROLLED_SECONDS)
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        eventually(
            lambda: replicas.restarts(first) > restarts,
            seconds=60 * SLACK,
            what="the first leader ends",
        )
        case.generations.wait(case.old, "Purged", "gone", seconds=FENCED_SECONDS * SLACK)
        time.sleep(BEYOND_SECONDS)
        case.gone(seconds=1)
        assert replicas.leader() == second
        engines.delete()
        successors.delete()
        counts = engines.counts() + successors.counts()
        assert successors.counts(generation=new).reads > 0
        assert case.generations.state(new) == "Live"
    assert "Fenced" in told
    assert told == sorted(told, key=ORDER.index), told
    rollouts.row(
        "the leading operator frozen as its record had the fence; another took over; then thawed",
        counts,
        came=(
            f"all ranks proved the fence {gone:.0f} s after the leader froze, by the other's word; "
            "the first, thawed, ended and wrote nothing; no state ever went back"
        ),
    )


@pytest.mark.usefixtures("resting")
def test_an_hour_that_the_clocks_jump_ends_no_drain(live: LiveCluster, tmp_path: Path) -> None:
    with (
        ground(live, label="clock", home=tmp_path) as place,
        place.controller(lease="clock") as controller,
    ):
        case = rollouts.begin(lambda _: place.tier, drain="5m")
        with fleet(case.tier, replicas=2) as engines:
            engines.deploy()
            engines.wait_rolled(seconds=ROLLED_SECONDS)
            engines.wait("hit")
            ranks = case.tier.containers()
            new = case.edit(NEW, drain="5m")
            case.generations.wait(new, "Live", seconds=LIVE_SECONDS)
            engines.roll(revision="2", generation=new)
            engines.wait_rolled(seconds=ROLLED_SECONDS)
            for _ in ("ahead", "back", "ahead"):
                controller.process.send_signal(signal.SIGUSR2)
                never(
                    lambda: case.generations.state(case.old) != "Draining",
                    seconds=NOTHING_SECONDS,
                    what="fenced by a clock that jumped",
                )
            # The clocks still go: the drain ends as soon as it may.
            case.edit(NEW, drain="10s")
            case.generations.wait(case.old, "Fenced", "Purged", seconds=30 * SLACK)
            row = case.generations.rows()[case.old]
            case.gone(seconds=LIVE_SECONDS)
            engines.wait("hit", since=time.time())
            assert case.tier.containers() == ranks
            engines.delete()
            counts = engines.counts()
    ahead = datetime.fromisoformat(row["since"]).timestamp() - time.time()
    assert ahead > JUMP_SECONDS / 2, "the clock did not jump"
    assert counts.denied == counts.refused == 0
    rollouts.row(
        "the operator's clocks, the monotonic one too, jump an hour ahead, back and ahead again",
        counts,
        came=f"nothing is fenced by it: draining for {3 * NOTHING_SECONDS:.0f} s more (5m)",
    )
