"""All tiers' gates in one replica."""

from collections.abc import Callable, Iterable, Sequence

from kvtier.limiter.gate import Gate
from kvtier.limiter.report import Key, Report, TierReport
from kvtier.limiter.tier import Tiers


class Gates:
    """A gate for each tier that the watcher or a peer knows; of others nothing is kept, whatever
    is asked for. ``clock`` is the one that views have their times of."""

    def __init__(self, tiers: Tiers, *, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.unknown = 0
        self.denied: Callable[[], None] = _nobody_to_tell
        self._tiers = tiers
        self._gates: dict[Key, Gate] = {}
        self._reports: Sequence[Report | None] = ()

    def find(self, namespace: str, name: str) -> Gate | None:
        """The gate, with the view that holds now. None for a tier that nobody knows."""
        gate = self._gates.get((namespace, name))
        view = self._tiers.get(namespace, name)
        if gate is not None:
            if gate.view is not view:
                gate.renew(view, self.clock())
            return gate
        if view is None and not any((namespace, name) in report.tiers for report in self._heard()):
            self.unknown += 1
            return None
        return self._add((namespace, name))

    def all(self) -> list[Gate]:
        return list(self._gates.values())

    def look(self) -> None:
        """Measure demand, take shares, and tell the machines what comes: every 0.2 s or so."""
        now = self.clock()
        known = {(view.namespace, view.name) for view in self._tiers.all()}
        for report in self._heard():
            known.update(report.tiers)
        for key in known - self._gates.keys():
            self._add(key)
        for key in self._gates.keys() - known:
            del self._gates[key]
        for (namespace, name), gate in self._gates.items():
            gate.look(now)
            view = self._tiers.get(namespace, name)
            if gate.view is not view:
                gate.renew(view, now)
            self._tiers.set_offered(namespace, name, gate.offered())

    def hear(self, reports: Sequence[Report | None]) -> None:
        """What each other replica that counts last said; None where it has said nothing yet."""
        self._reports = reports
        now = self.clock()
        for key, gate in self._gates.items():
            gate.hear(self._said_of(key), now)

    def reports(self) -> list[TierReport]:
        """What peers are told."""
        now = self.clock()
        return [gate.report(now) for gate in self._gates.values()]

    def are_told(self) -> None:
        """All peers are: the next denial is news again."""
        for gate in self._gates.values():
            gate.told = True

    def peers(self) -> int:
        """How many other replicas count."""
        return len(self._reports)

    def _add(self, key: Key) -> Gate:
        now = self.clock()
        gate = Gate(namespace=key[0], name=key[1], now=now, denied=self._tell)
        self._gates[key] = gate
        gate.hear(self._said_of(key), now)
        gate.renew(self._tiers.get(*key), now)
        return gate

    def _tell(self) -> None:
        self.denied()

    def _said_of(self, key: Key) -> list[TierReport | None]:
        return [report.tiers.get(key) if report is not None else None for report in self._reports]

    def _heard(self) -> Iterable[Report]:
        return (report for report in self._reports if report is not None)


def _nobody_to_tell() -> None:
    """A replica without peers."""
