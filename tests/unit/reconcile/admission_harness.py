"""Limiters and engines around tiers on fakes, for tests of admission and of planned work."""

from collections.abc import Iterable
from typing import Any

from pool_harness import add_engine, add_node
from tier_harness import KEY, Operator, spec

from kvtier.admission.signals import TokenSignal
from kvtier.api.types import KIND
from kvtier.cluster.protocol import POD, TIER
from kvtier.plan.limiters import Limiters, Replica, TierTold
from kvtier.plan.planned import ROLL_REQUESTED
from kvtier.reconcile.admission import INTERVAL, AdmissionWatcher
from kvtier.reconcile.memory import Key

ENFORCE = {**spec(), "admission": {"mode": "Enforce"}}


class FakeLimiters:
    """Replicas by address -> what they say of the tier; None: no answer. Those in ``follow`` take
    a planned storm up as soon as the status has it, as real ones do within a second."""

    def __init__(self, operator: Operator, *addresses: str) -> None:
        self.operator = operator
        self.says: dict[str, dict[str, Any] | None] = {each: {} for each in addresses}
        self.follow: set[str] = set(addresses)
        self.asked = 0

    async def read(self) -> Limiters:
        self.asked += 1
        return Limiters(told=True, replicas=[self._replica(each) for each in self.says])

    def _replica(self, address: str) -> Replica:
        said = self.says[address]
        if said is None:
            return Replica(address, trouble="no answer within 2 s")
        return Replica(address, tiers=dict(self._tiers(address, said)))

    def _tiers(self, address: str, said: dict[str, Any]) -> Iterable[tuple[Key, TierTold]]:
        for tier in self.operator.cluster.all(TIER):
            key = (tier["metadata"]["namespace"], tier["metadata"]["name"])
            admission = tier.get("status", {}).get("admission", {})
            planned = (admission.get("state"), admission.get("reason")) == ("Storm", "Planned")
            held = {"state": "Storm", "cause": "Planned"}
            told = {"state": "Open", **said, **(held if planned and address in self.follow else {})}
            yield key, TierTold.model_validate({"namespace": key[0], "name": key[1], **told})


class Admitted:
    """An operator with its watcher of admission; ``restart`` is another process."""

    def __init__(self, operator: Operator, limiters: FakeLimiters | None) -> None:
        self.operator = operator
        self.limiters = limiters
        self.start()

    def start(self) -> None:
        read = self.limiters.read if self.limiters else None
        self.operator.reconciler._planned._read = read
        self.watcher = AdmissionWatcher(
            memory=self.operator.reconciler.memory,
            read=read,
            changed=self.operator.queue.add,
            clock=self.operator.clock,
            metrics=self.operator.metrics,
        )

    async def restart(self) -> None:
        self.operator.restart()
        self.start()
        for tier in self.operator.cluster.all(TIER):
            metadata = tier["metadata"]
            self.operator.queue.add(
                (metadata["namespace"], metadata["name"]), dirty=frozenset({KIND})
            )

    async def looks(self, count: int = 1, tokens: TokenSignal | None = None) -> None:
        for _ in range(count):
            await self.operator.clock.advance(INTERVAL)
            self.operator.reconciler.memory.of(KEY).tokens = tokens
            await self.watcher.look()
            await self.operator.settle()

    async def seconds(self, count: int, *keys: Key) -> None:
        """What the queue does when a requeue is due each second."""
        for _ in range(count):
            await self.operator.clock.advance(1)
            for key in keys or (KEY,):
                self.operator.queue.add(key)
            await self.operator.settle()

    def admission(self, key: Key = KEY) -> dict[str, Any]:
        tier = self.operator.cluster.peek(TIER, *key)
        assert tier is not None
        found: dict[str, Any] = tier["status"]["admission"]
        return found

    def events(self, reason: str) -> list[str]:
        return [e.message for e in self.operator.recorder.events if e.reason == reason]


def roll(operator: Operator, key: Key = KEY) -> None:
    now = operator.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
    operator.cluster.edit(TIER, *key, {"metadata": {"annotations": {ROLL_REQUESTED: now}}})


def uids(operator: Operator, tier: str = KEY[1]) -> set[str]:
    return {
        pod["metadata"]["uid"]
        for pod in operator.cluster.all(POD)
        if pod["metadata"]["name"].startswith(f"{tier}-r")
    }


async def serving(operator: Operator, tier_spec: dict[str, Any], *, engines: int = 2) -> None:
    """A Ready tier beside some engines, whose first probe still runs."""
    operator.links = {"n1": None}
    add_node(operator, "n1", "leaf-a")
    for number in range(engines):
        add_engine(operator, f"engine-{number}", "n1")
    operator.apply(tier_spec)
    await operator.settle()
    assert operator.condition("Ready")["status"] == "True", operator.condition("Ready")
