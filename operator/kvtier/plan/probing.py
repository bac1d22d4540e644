"""Pure: when a tier is probed, from which nodes, and what its status keeps of a probe."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from kvtier.api.types import GROUP, KVCacheTier
from kvtier.breakeven.assessment import Evidence, LinkFigures, two_digits
from kvtier.placement.topology import Topology, evenly
from kvtier.plan.observed import Object, RankState
from kvtier.probe.result import ProbeResult, figures, parse
from kvtier.render.probe import CONTAINER

REQUESTED: Final = f"{GROUP}/probe-requested"
"""Annotation of a tier: the time at which somebody asked for a probe (``kubectl kvtier probe``)."""
MEASURED: Final = "measured"
"""What messages call a probed link, in the place of a declared one's domain."""
CLOCKS_DIFFER: Final = timedelta(minutes=1)
PER_CLASS: Final = 3
"""Nodes that are probed of those whose way to the ranks is the same."""
FIRST_RETRY: Final = 60.0
LAST_RETRY: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Places:
    """What a probe is of: the nodes that it measures from, each with the name of the farthest
    level between it and a rank, and where the ranks are."""

    engines: tuple[tuple[str, str], ...] = ()
    ranks: tuple[tuple[int, str], ...] = ()

    def level(self, node: str) -> str:
        return dict(self.engines).get(node, "")


def places(topology: Topology) -> Places:
    """Where to measure from: of the nodes with a Ready engine at most three of each class.

    A class are the nodes that have the same farthest level between them and a rank: what they share
    with it is the link. Of many the first, the middle and the last by name are taken.
    """
    order = [level.name for level in topology.levels]
    classes: dict[str, list[str]] = {}
    for node in sorted({engine.node for engine in topology.engines if engine.ready}):
        classes.setdefault(_farthest(topology, node, order=order), []).append(node)
    chosen = [
        (node, level)
        for level, nodes in sorted(classes.items())
        for node in evenly(nodes, most=PER_CLASS)
    ]
    return Places(engines=tuple(chosen), ranks=tuple(sorted(topology.ranks.items())))


def _farthest(topology: Topology, node: str, *, order: Sequence[str]) -> str:
    """The name of the level; that of the farthest of all where a rank shares none with the node."""
    found = [topology.nearest_common(node, rank) for rank in set(topology.ranks.values())]
    if not found or None in found:
        return order[-1]
    return max((level.name for level in found if level), key=order.index)


def why_now(
    tier: KVCacheTier,
    *,
    wanted: Places,
    measured: Places | None,
    states: Sequence[RankState],
    began: datetime | None,
    asked: str | None,
    now: datetime,
) -> str | None:
    """Why the tier is to be probed, None if it is not.

    ``measured`` are the places of the last probe of this process and ``began`` when that was, by
    the wall clock; ``asked`` is the request that it has heard already: what is asked for while a
    probe runs is another one. A process that has not probed yet takes what is in the status for
    current, unless no engine is on that node any more or a rank has started since.
    """
    last = _probed_at(tier.status)
    if last is None:
        return "it was never probed"
    if last > now + CLOCKS_DIFFER:
        return "it was probed in the future"
    request = tier.metadata.annotations.get(REQUESTED)
    at, known = time_of(request), min(began or last, last)
    if request is not None and request != asked and (asked is not None or (at and at > known)):
        return "it was asked for"
    if measured is not None and measured != wanted:
        return "engines or ranks moved"
    node = tier.status["measured"].get("node")
    if measured is None and node is not None and node not in dict(wanted.engines):
        return "engines moved"
    if measured is None and any((time_of(each.started_at) or last) > last for each in states):
        return "a rank has started since"
    if (now - last).total_seconds() >= tier.spec.placement.probe.interval_seconds:
        return "its interval is over"
    return None


def due_in(tier: KVCacheTier, *, now: datetime) -> float | None:
    """Seconds until the interval is over, None if nothing was probed."""
    last = _probed_at(tier.status)
    if last is None or last > now + CLOCKS_DIFFER:
        return None
    return max(0.0, tier.spec.placement.probe.interval_seconds - (now - last).total_seconds())


def retry_in(failures: int) -> float:
    """Seconds after so many probes in a row without a figure."""
    return float(min(FIRST_RETRY * 2 ** max(failures - 1, 0), LAST_RETRY))


def link_of(status: Mapping[str, Any], *, ranks: int) -> LinkFigures | None:
    """The probed link that a status tells of, None if it tells of none.

    The status is where a link is kept: a process that starts judges by the same figures.
    """
    measured = status.get("measured") or {}
    rate, round_trip = measured.get("bytesPerSecond"), measured.get("roundTripSeconds")
    if not _is_probed(status) or not rate or round_trip is None:
        return None
    return LinkFigures(
        domain=MEASURED,
        bytes_per_second=float(rate),
        round_trip_seconds=float(round_trip),
        evidence=Evidence.PROBED,
        at=measured.get("at"),
        node=measured.get("node"),
        slowest_rank_bytes_per_second=float(rate) / ranks,
        lower_bound=bool(measured.get("lowerBound")),
    )


def as_kept(link: LinkFigures, *, ranks: int) -> LinkFigures:
    """The link as the status will tell of it: a lower bound is rounded down."""
    rate = two_digits(link.bytes_per_second)
    if rate > link.bytes_per_second and link.lower_bound:
        digit = 10 ** max(len(str(int(rate))) - 2, 0)
        rate = link.bytes_per_second // digit * digit
    rate = max(1.0, float(int(rate)))
    return LinkFigures(
        domain=MEASURED,
        bytes_per_second=rate,
        round_trip_seconds=two_digits(link.round_trip_seconds),
        evidence=link.evidence,
        at=link.at,
        node=link.node,
        slowest_rank_bytes_per_second=rate / ranks,
        lower_bound=link.lower_bound,
    )


@dataclass(frozen=True, slots=True)
class NodeResult:
    """One node's probe: what it found, or one line that says why not."""

    node: str
    level: str
    found: ProbeResult | str

    @property
    def link(self) -> LinkFigures | None:
        return None if isinstance(self.found, str) else figures(self.found, domain=self.level)

    @property
    def trouble(self) -> str | None:
        """Why there is no figure, in one line."""
        if isinstance(self.found, str):
            return f"from {self.node}: {self.found}"
        if self.link is not None:
            return None
        told = [
            f"rank {', '.join(map(str, each.ranks))}: {each.text}" for each in self.found.troubles
        ]
        return f"from {self.node}: {'; '.join(told) or 'no byte came'}"


def slowest(results: Sequence[NodeResult]) -> LinkFigures | None:
    """Of all nodes' links the one that gives least: an engine there gets no more."""
    links = [each.link for each in results]
    return min(
        (link for link in links if link is not None),
        key=lambda link: link.bytes_per_second,
        default=None,
    )


def is_finished(job: Object) -> bool:
    return any(
        each["type"] in ("Complete", "Failed") and each["status"] == "True"
        for each in (job.get("status") or {}).get("conditions") or ()
    )


def result_of(job: Object, pods: Sequence[Object], *, now: datetime) -> ProbeResult | str:
    """What the Job's pod left, or one line that says why there is nothing.

    Its time is no later than ``now`` and no earlier than the Job: by the clock of a node that is
    years ahead the tier would not be probed for years, by one that is behind again and again.
    """
    uid = job["metadata"]["uid"]
    for pod in pods:
        owners = pod["metadata"].get("ownerReferences", ())
        if any(owner.get("uid") == uid for owner in owners):
            message, why = _last_words(pod)
            found = parse(message)
            if isinstance(found, str):
                return f"{found}{why}"
            at = min(max(time_of(found.at) or now, created(job) or now), now)
            return replace(found, at=at.strftime("%Y-%m-%dT%H:%M:%SZ"))
    conditions = (job.get("status") or {}).get("conditions") or ()
    told: Object = next((each for each in conditions if each["type"] == "Failed"), {})
    reason = told.get("reason", "")
    if reason == "DeadlineExceeded":
        return "its pod did not run to an end in time: no room on the node, or no image"
    return f"its Job failed ({reason})" if reason else "its pod is gone"


def _last_words(pod: Object) -> tuple[str | None, str]:
    """The termination message, and why the container ended, for a person."""
    status = pod.get("status") or {}
    for each in status.get("containerStatuses") or ():
        ended = (each.get("state") or {}).get("terminated")
        if each.get("name") == CONTAINER and ended:
            reason = ended.get("reason", "")
            why = f" ({reason}, exit code {ended.get('exitCode')})" if reason else ""
            return ended.get("message"), why
    return None, f" ({status.get('reason') or status.get('phase') or 'no status'})"


def created(job: Object) -> datetime | None:
    """When the API server made it."""
    return time_of(job["metadata"].get("creationTimestamp"))


def seconds_of(text: str | None) -> float:
    """Seconds since the epoch of an RFC 3339 time, 0 for none."""
    found = time_of(text)
    return found.timestamp() if found else 0.0


def _is_probed(status: Mapping[str, Any]) -> bool:
    return (status.get("measured") or {}).get("evidence") == Evidence.PROBED.value


def _probed_at(status: Mapping[str, Any]) -> datetime | None:
    """When the figures of a status were probed; None for other figures, and for none."""
    return time_of(status["measured"].get("at")) if _is_probed(status) else None


def time_of(text: object) -> datetime | None:
    """An RFC 3339 time; None for anything else: people write annotations."""
    if not isinstance(text, str):
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found
