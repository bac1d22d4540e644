"""kvtier's own metrics. Every name is explained in docs/metrics.md."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from kvtier import __version__
from kvtier.metrics_admission import AdmissionMetrics
from kvtier.metrics_engines import EngineMetrics
from kvtier.metrics_generations import GenerationMetrics
from kvtier.metrics_ranks import RankMetrics
from kvtier.metrics_verdict import VerdictMetrics
from kvtier.placement.findings import Finding, Severity
from kvtier.series import Series

# A reconcile that finds nothing to do takes about 20 ms; one that creates a tier's children takes
# a second. A Valkey that does not answer holds one up to the store timeout.
_DURATION_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_STATUSES = ("True", "False", "Unknown")


def new_registry() -> CollectorRegistry:
    """What every process of kvtier shows of itself; its own metrics join it."""
    # A series beside every counter that says when it was made, and nobody reads.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    info = Gauge("kvtier_build_info", "Always 1.", ["version"], registry=registry)
    info.labels(version=__version__).set(1)
    return registry


class Metrics:
    """The metrics of one controller process.

    ``process`` are those of the process as a whole, ``tiers`` those that each tier has;
    ``registry`` is both, for who wants prometheus-client's own.
    """

    def __init__(self) -> None:
        self.process = new_registry()
        self.tiers = Series()
        self.registry = CollectorRegistry()
        self.registry.register(_Of(self.process))
        self.registry.register(self.tiers)
        self._duration = Histogram(
            "kvtier_reconcile_duration_seconds",
            "Seconds that one reconcile of one tier took.",
            ["result"],
            buckets=_DURATION_BUCKETS,
            registry=self.process,
        )
        self._total = Counter(
            "kvtier_reconcile",
            "Reconciles by result (success or error).",
            ["result"],
            registry=self.process,
        )
        self._requests = Counter(
            "kvtier_api_requests",
            "Requests to the API server, by verb, kind and HTTP status (0: no answer).",
            ["verb", "kind", "code"],
            registry=self.process,
        )
        self.queue_depth = Gauge(
            "kvtier_queue_depth", "Tiers that wait for a reconcile.", registry=self.process
        )
        self.queue_oldest = Gauge(
            "kvtier_queue_oldest_seconds",
            "Seconds for which the tier that waits longest has been due, its reconcile included.",
            registry=self.process,
        )
        self.throttled = Counter(
            "kvtier_reconcile_throttled",
            "Reconciles that waited because their tier asks for more than one a second.",
            registry=self.process,
        )
        self.probes_running = Gauge(
            "kvtier_probes_running", "Probes that run now.", registry=self.process
        )
        self.asyncio_tasks = Gauge(
            "kvtier_asyncio_tasks", "Tasks of the controller's event loop.", registry=self.process
        )
        self.leader = Gauge(
            "kvtier_leader", "1 while this process holds the Lease.", registry=self.process
        )
        # A result that never happened is 0, not absent: rate() of it must be 0 too.
        for result in ("success", "error"):
            self._total.labels(result=result)
        self._of_tiers()
        self.verdict = VerdictMetrics(self.tiers)
        self.ranks = RankMetrics(self.tiers)
        self.generations = GenerationMetrics(self.process, self.tiers)
        self.admission = AdmissionMetrics(self.tiers)
        self.engines = EngineMetrics(self.tiers)

    def _of_tiers(self) -> None:
        gauge, counter = self.tiers.gauge, self.tiers.counter
        self._condition = gauge(
            "kvtier_tier_condition",
            "1 for the status that a tier's condition has.",
            *("type", "status"),
        )
        self._paused = gauge("kvtier_tier_paused", "1 while spec.paused is set, else 0.")
        self._ranks = gauge("kvtier_tier_ranks", "Ranks of a tier.")
        self._ready = gauge("kvtier_tier_ranks_ready", "Ranks of a tier that are ready.")
        self._engines = gauge("kvtier_tier_engines", "Ready engines of a tier's pool.")
        self._engines_outside = gauge(
            "kvtier_tier_engines_outside",
            "Engines of a tier that run outside of the domain in which its ranks belong.",
        )
        self._ranks_outside = gauge(
            "kvtier_tier_ranks_outside",
            "Ranks of a tier that run outside of the domain in which they belong.",
        )
        self._forced = counter(
            "kvtier_forced_deletions", "Pods of lost nodes that were deleted by force."
        )
        self._certificate = gauge(
            "kvtier_tier_certificate_expiry_timestamp_seconds",
            "When the first of a tier's certificates ends, in seconds since the epoch.",
        )
        self._findings = gauge(
            "kvtier_tier_findings", "What the checks found about a tier, by severity.", "severity"
        )

    def observe_reconcile(self, *, seconds: float, result: str) -> None:
        self._duration.labels(result=result).observe(seconds)
        self._total.labels(result=result).inc()

    def count_request(self, *, verb: str, kind: str, code: int) -> None:
        self._requests.labels(verb=verb, kind=kind, code=str(code)).inc()

    def set_conditions(
        self, namespace: str, tier: str, conditions: Sequence[Mapping[str, Any]]
    ) -> None:
        for condition in conditions:
            for status in _STATUSES:
                value = condition["status"] == status
                self._condition.set((namespace, tier), value, condition["type"], status)

    def set_tier(self, namespace: str, tier: str, *, ranks: int, ready: int) -> None:
        self._ranks.set((namespace, tier), ranks)
        self._ready.set((namespace, tier), ready)
        # A tier that never lost a node has 0, so that the first loss is an increase.
        self._forced.inc((namespace, tier), by=0)

    def set_paused(self, namespace: str, tier: str, *, paused: bool) -> None:
        self._paused.set((namespace, tier), paused)

    def set_placement(
        self, namespace: str, tier: str, *, engines: int, engines_outside: int, ranks_outside: int
    ) -> None:
        self._engines.set((namespace, tier), engines)
        self._engines_outside.set((namespace, tier), engines_outside)
        self._ranks_outside.set((namespace, tier), ranks_outside)

    def count_forced_deletion(self, namespace: str, tier: str) -> None:
        self._forced.inc((namespace, tier))

    def set_certificate_expiry(self, namespace: str, tier: str, *, ends: Sequence[float]) -> None:
        """The first of ``ends``; no series without any."""
        self._certificate.set((namespace, tier), min(ends, default=None))

    def set_findings(self, namespace: str, tier: str, *, findings: Sequence[Finding]) -> None:
        """How many there are of each severity, 0 included."""
        for severity in Severity:
            count = sum(found.severity is severity for found in findings)
            self._findings.set((namespace, tier), count, severity.value)

    def forget_tier(self, namespace: str, tier: str) -> None:
        """Drop every series of a deleted tier."""
        self.tiers.forget((namespace, tier))


class _Of(Collector):
    """A registry within another one."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        yield from self._registry.collect()
