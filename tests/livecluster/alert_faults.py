"""Faults of which alerts tell, each on a tier of its own, and their rows in docs/faults.md."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Final

import valkey

from livecluster.figures import write_row
from livecluster.monitoring import Monitoring
from livecluster.tier import Patch, Tier
from livecluster.waiting import eventually

Harm = Callable[[Tier], AbstractContextManager[None]]
FIRES_SECONDS: Final = 240.0
"""Until the receiver is told, on a busy machine: kubelets bring a changed file within 90 s."""
SETTLES_SECONDS: Final = 40.0
"""The range over which writes count here, and the receiver's delay."""
RESOLVES_SECONDS: Final = 420.0
"""Ranges of the rules have to pass, and pods that crashed are started again with growing delay."""


@dataclass(frozen=True, slots=True)
class Fault:
    """``harm`` breaks something until its block ends; ``alerts`` are what must tell of it, with
    labels beside the tier's own, or instead of them where ``is_tiers`` is False."""

    name: str
    what: str
    alerts: Sequence[tuple[str, Mapping[str, str]]]
    harm: Harm
    repair: str
    spec: Patch = field(default_factory=dict)
    prepare: Callable[[Tier], object] | None = None
    is_tiers: bool = True

    def labels(self, tier: Tier, extra: Mapping[str, str]) -> dict[str, str]:
        mine = {"namespace": tier.namespace, "tier": tier.name} if self.is_tiers else {}
        return {**mine, **extra}


def play(watched: Monitoring, faults: Sequence[Fault], tiers: Mapping[str, Tier]) -> None:
    """All faults side by side until each alert has reached the receiver, then all repairs until
    each is resolved. A row for each alert."""
    # What a bring-up writes tells of itself for a while: such an alert is not the fault's.
    time.sleep(SETTLES_SECONDS)
    eventually(
        lambda: not _firing(watched, faults, tiers),
        seconds=RESOLVES_SECONDS,
        what="nothing of a bring-up is told any more",
        detail=lambda: _firing(watched, faults, tiers),
    )
    open_, begun, missed = [], {}, []
    try:
        for fault in faults:
            block = fault.harm(tiers[fault.name])
            begun[fault.name] = time.time()
            block.__enter__()
            open_.append((fault, block))
        fired = {
            (fault.name, alert): _fired(
                watched, alert, fault.labels(tiers[fault.name], extra), begun[fault.name], missed
            )
            for fault in faults
            for alert, extra in fault.alerts
        }
    finally:
        repaired = {}
        for fault, block in open_:
            repaired[fault.name] = time.time()
            block.__exit__(None, None, None)
    for fault in faults:
        for alert, extra in fault.alerts:
            first = fired[fault.name, alert]
            if first is None:
                continue
            labels = fault.labels(tiers[fault.name], extra)
            at = _resolved(watched, alert, labels, repaired[fault.name], missed)
            if at is not None:
                row = (
                    *(alert, fault.what, f"{first - begun[fault.name]:.0f} s"),
                    *(fault.repair, f"{at - repaired[fault.name]:.0f} s"),
                )
                write_row("faults.md", place="alerts", row=row)
    assert not missed, "\n".join(missed)


def _firing(
    watched: Monitoring, faults: Sequence[Fault], tiers: Mapping[str, Tier]
) -> list[tuple[str, str]]:
    """Those of the faults' alerts that fire now, by tier."""
    found = []
    for fault in faults:
        for alert, extra in fault.alerts:
            last = watched.now(alert, **fault.labels(tiers[fault.name], extra))
            if last is not None and last.status == "firing":
                found.append((fault.name, alert))
    return found


def _fired(
    watched: Monitoring, alert: str, labels: Mapping[str, str], since: float, missed: list[str]
) -> float | None:
    """When the receiver was first told of it; None, with a line in ``missed``, if not in time. Some
    alerts are over before anybody has asked after them here."""

    def told() -> float | None:
        found = (each for each in watched.notices if each.is_of(alert, labels))
        return next((n.at for n in found if n.status == "firing" and n.at >= since), None)

    try:
        return eventually(told, seconds=FIRES_SECONDS, what=f"{alert} {labels} is firing")
    except AssertionError as error:
        missed.append(str(error))
        return None


def _resolved(
    watched: Monitoring, alert: str, labels: Mapping[str, str], since: float, missed: list[str]
) -> float | None:
    """When the receiver was told that it is over, by the repair and not before it; or as above."""
    try:
        at = watched.wait("resolved", alert, seconds=RESOLVES_SECONDS, **labels).at
        assert at >= since, f"{alert} {labels} was over {since - at:.0f} s before the repair"
    except AssertionError as error:
        missed.append(str(error))
        return None
    return at


@contextmanager
def repeated(action: Callable[[], None], *, every: float) -> Iterator[None]:
    """Do it from another thread, now and so many seconds after it was done. The last error of a
    connection that comes and goes is nobody's; any other fails the block's end."""
    stop = threading.Event()
    failed: list[BaseException] = []

    def run() -> None:
        while not stop.is_set():
            try:
                action()
            except (OSError, valkey.exceptions.ConnectionError, json.JSONDecodeError):
                pass
            except BaseException as error:
                failed.append(error)
                return
            stop.wait(every)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)
    assert not failed, failed
