"""The controller is killed at twenty of its calls, and another one goes on where it was.

And at twenty more while one generation follows another.
"""

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
ROLL = "roll_to_another"
SIDES = ("before", "after")
LEAST_STRUCK = 15
"""How long pods take decides how often the controller looks: the last calls may not come."""


def _drawn(*names: str) -> list[tuple[str, float, str]]:
    """What is going on, where in it (a share of its calls), and on which side of that call."""
    lot = random.Random(SEED)
    return [
        (names[number % len(names)], round(lot.uniform(0, 0.8), 2), lot.choice(SIDES))
        for number in range(KILLS)
    ]


OTHERS = sorted(ACTIONS.keys() - {ROLL})


class Campaign:
    """The undisturbed runs, each made when it is first needed, and what came of the others."""

    def __init__(self, cluster: LiveCluster, home: Path) -> None:
        self.cluster = cluster
        self.struck: list[str] = []
        self.runs: list[str] = []
        self.same: list[str] = []
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
        self.runs.append(action)
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
    for place, names in (("kills", OTHERS), ("kills-rollouts", [ROLL])):
        if sum(made.same.count(name) for name in names) == KILLS:
            _record(made, place=place, names=names)


@pytest.mark.parametrize(("action", "share", "side"), [*_drawn(*OTHERS), *_drawn(ROLL)])
def test_killed_at_any_call_the_next_controller_brings_it_to_the_same_end(
    campaign: Campaign, action: str, share: float, side: str
) -> None:
    expected = campaign.expected(action)
    index = int(share * expected.calls)
    ended = campaign.strike(action, index=index, side=side)
    print(f"{action}: {side} call {index} of {expected.calls}, struck: {ended.struck}")
    assert not ended.difference(expected)
    campaign.same.append(action)


@pytest.mark.parametrize("names", [OTHERS, [ROLL]])
def test_nearly_every_kill_hit(campaign: Campaign, names: list[str]) -> None:
    if sum(campaign.runs.count(name) for name in names) == KILLS:
        assert sum(campaign.struck.count(name) for name in names) >= LEAST_STRUCK


def _record(made: Campaign, *, place: str, names: list[str]) -> None:
    counts = {name: made.struck.count(name) for name in names}
    kinds = ", ".join(f"{name} {count}" for name, count in counts.items())
    write(
        "faults.md",
        place=place,
        text=(
            f"{sum(counts.values())} of {KILLS} controllers died at the call drawn for them "
            f"({kinds}); the others had done all before they came to it. Every tier ended as in an "
            "undisturbed run: the same objects and status, one token of each role ever, the "
            "record's users on every rank, nothing orphaned, no rank restarted more often.\n\n"
            f"{circumstances(made.cluster)}"
        ),
    )
