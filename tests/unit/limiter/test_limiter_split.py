"""Replicas that exchange their demand, in a time of their own: what passes in sum."""

import random
from collections.abc import Callable

import pytest

from kvtier.limiter.gates import Gates
from kvtier.limiter.report import Report
from limiter_process import TIER, FixedTiers

LIMIT = 30_000.0
REPLICAS = 3


class Fleet:
    """Replicas that hear of each other each 0.2 s, and ``late`` seconds after it was said."""

    def __init__(self, *, late: float = 0.005) -> None:
        self.now = 0.0
        self._late = late
        self._tiers = FixedTiers()
        self._tiers.tell({TIER: {"limit": LIMIT, "mean_prompt": 200.0}}, now=0.0)
        self.gates = [Gates(self._tiers, clock=lambda: self.now) for _ in range(REPLICAS)]
        self._said: list[Report | None] = [None] * REPLICAS
        self._due = [0.03 * replica for replica in range(REPLICAS)]
        self._hear: list[tuple[float, int]] = []
        for replica, gates in enumerate(self.gates):
            gates.denied = lambda replica=replica: self._kick(replica)
            gates.hear([None] * (REPLICAS - 1))

    def _kick(self, replica: int) -> None:
        # An exchange is 50 ms from the last at least.
        self._due[replica] = max(self.now, self._due[replica] - 0.15)

    def until(self, moment: float) -> None:
        """Let the exchanges happen that are due by ``moment``."""
        while (at := min(*self._due, *(at for at, _ in self._hear), moment)) < moment:
            self.now = at
            for replica in range(REPLICAS):
                if self._due[replica] == at:
                    self._exchange(replica)
            for heard in [heard for heard in self._hear if heard[0] == at]:
                self._hear.remove(heard)
                gates = self.gates[heard[1]]
                gates.hear([said for of, said in enumerate(self._said) if of != heard[1]])
        self.now = moment

    def _exchange(self, replica: int) -> None:
        gates = self.gates[replica]
        if int(self.now) != int(self.now - 0.2):
            self._tiers.tell({TIER: {"limit": LIMIT, "mean_prompt": 200.0}}, now=self.now)
        gates.look()
        tiers = {(tier.namespace, tier.name): tier for tier in gates.reports()}
        gates.are_told()
        self._said[replica] = Report(replica=str(replica), run=str(replica), tiers=tiers)
        self._due[replica] = self.now + 0.2
        self._hear += [(self.now + self._late, other) for other in range(REPLICAS)]

    def offer(
        self, choose: Callable[[float], int], *, rate: float, size: float, seconds: float
    ) -> list[tuple[float, float]]:
        """Poisson arrivals; moments and tokens of what passed."""
        chance = random.Random(3)
        passed: list[tuple[float, float]] = []
        end = self.now + seconds
        while True:
            self.until(self.now + chance.expovariate(rate / size))
            if self.now >= end:
                return passed
            gate = self.gates[choose(chance.random())].find("prod", "llama")
            assert gate is not None
            if gate.decide(size, self.now) == 0.0:
                passed.append((self.now, size))


def of_limit(passed: list[tuple[float, float]], *, begin: float, end: float) -> float:
    return sum(size for at, size in passed if begin <= at < end) / (LIMIT * (end - begin))


@pytest.mark.parametrize("size", [50.0, 200.0, 1000.0])
def test_traffic_that_is_pinned_gets_the_limit_and_takes_it_along_when_it_jumps(
    size: float,
) -> None:
    fleet = Fleet()
    first = fleet.offer(lambda _: 0, rate=2 * LIMIT, size=size, seconds=10.0)
    assert 0.97 <= of_limit(first, begin=0.5, end=10) <= 1.02
    second = fleet.offer(lambda _: 1, rate=2 * LIMIT, size=size, seconds=10.0)
    assert of_limit(second, begin=10, end=13) >= 0.80
    assert 0.95 <= of_limit(second, begin=11, end=20) <= 1.02


@pytest.mark.parametrize("size", [50.0, 200.0, 1000.0, 4000.0])
@pytest.mark.parametrize("parts", [(1 / 3, 2 / 3), (0.8, 0.9), (0.5, 1.0)])
def test_traffic_that_is_spread_gets_the_limit(size: float, parts: tuple[float, float]) -> None:
    fleet = Fleet()
    passed = fleet.offer(
        lambda part: sum(part >= each for each in parts), rate=2 * LIMIT, size=size, seconds=30.0
    )
    assert 0.93 <= of_limit(passed, begin=1, end=30) <= 1.04


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_below_the_limit_next_to_nothing_is_shed_however_uneven_it_is(load: float) -> None:
    fleet = Fleet()
    passed = fleet.offer(
        lambda part: sum(part >= each for each in (0.8, 0.9)),
        rate=load * LIMIT,
        size=200.0,
        seconds=30.0,
    )
    came = sum(
        sum(each.tokens for each in gate.passed.values())
        for gates in fleet.gates
        for gate in gates.all()
    )
    assert sum(size for _, size in passed) > 0.99 * came
