"""The controller is killed at twenty of its calls, and another one goes on where it was."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_kills import ACTIONS, Outcome, ground, run

from livecluster.cluster import LiveCluster
from livecluster.figures import circumstances, write
from livecluster.installation import NAMESPACE, Installation

SEED = 4
KILLS = 20
SIDES = ("before", "after")
LEAST_STRUCK = 15
"""How long pods take decides how often the controller looks: the last calls may not come."""


def _drawn() -> list[tuple[str, float, str]]:
    """What is going on, where in it (a share of its calls), and on which side of that call."""
    lot = random.Random(SEED)
    names = sorted(ACTIONS)
    return [
        (names[number % len(names)], round(lot.uniform(0, 0.8), 2), lot.choice(SIDES))
        for number in range(KILLS)
    ]


class Campaign:
    """The undisturbed runs, each made when it is first needed, and what came of the others."""

    def __init__(self, cluster: LiveCluster, home: Path) -> None:
        self.cluster = cluster
        self.struck: list[str] = []
        self.runs = 0
        self.same = 0
        self._home = home
        self._expected: dict[str, Outcome] = {}

    def expected(self, action: str) -> Outcome:
        if action not in self._expected:
            with ground(self.cluster, label=action, home=self._home) as place:
                self._expected[action] = run(place, action)
            assert not self._expected[action].wrong, self._expected[action].wrong
            assert self._expected[action].calls
        return self._expected[action]

    def strike(self, action: str, *, index: int, side: str) -> Outcome:
        with ground(self.cluster, label=action, home=self._home) as place:
            ended = run(place, action, index=index, side=side)
        self.runs += 1
        if ended.struck:
            self.struck.append(action)
        return ended


@pytest.fixture(scope="module")
def campaign(
    live: LiveCluster, kvtier: Installation, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Campaign]:
    """The installed controller rests meanwhile: the ones that die run on this machine."""

    def scale(replicas: int) -> None:
        live.kubectl("scale", "deployment/kvtier", "-n", NAMESPACE, f"--replicas={replicas}")

    scale(0)
    made = Campaign(live, tmp_path_factory.mktemp("kills"))
    yield made
    scale(1)
    kvtier.pod()
    if made.same == KILLS:
        _record(made)


@pytest.mark.parametrize(("action", "share", "side"), _drawn())
def test_killed_at_any_call_the_next_controller_brings_it_to_the_same_end(
    campaign: Campaign, action: str, share: float, side: str
) -> None:
    expected = campaign.expected(action)
    index = int(share * expected.calls)
    ended = campaign.strike(action, index=index, side=side)
    print(f"{action}: {side} call {index} of {expected.calls}, struck: {ended.struck}")
    assert not ended.difference(expected)
    campaign.same += 1


def test_nearly_every_kill_hit(campaign: Campaign) -> None:
    if campaign.runs == KILLS:
        assert len(campaign.struck) >= LEAST_STRUCK


def _record(made: Campaign) -> None:
    kinds = ", ".join(f"{name} {made.struck.count(name)}" for name in sorted(set(made.struck)))
    write(
        "faults.md",
        place="kills",
        text=(
            f"{len(made.struck)} of {made.runs} controllers died at the call drawn for them "
            f"({kinds}); the others had done all before they came to it. Every tier ended as in an "
            "undisturbed run: the same objects and status, one token of each role ever, the "
            "record's users on every rank, nothing orphaned, no rank restarted more often.\n\n"
            f"{circumstances(made.cluster)}"
        ),
    )
