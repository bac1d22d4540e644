"""kvtier's own metrics. Every name is explained in docs/metrics.md."""

from collections.abc import Mapping, Sequence
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)

from kvtier import __version__
from kvtier.metrics_admission import AdmissionMetrics
from kvtier.metrics_generations import GenerationMetrics
from kvtier.placement.findings import Finding, Severity

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
    """The metrics of one controller process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = new_registry()
        self._duration = Histogram(
            "kvtier_reconcile_duration_seconds",
            "Seconds that one reconcile of one tier took.",
            ["result"],
            buckets=_DURATION_BUCKETS,
            registry=self.registry,
        )
        self._total = Counter(
            "kvtier_reconcile",
            "Reconciles by result (success or error).",
            ["result"],
            registry=self.registry,
        )
        self._requests = Counter(
            "kvtier_api_requests",
            "Requests to the API server, by verb, kind and HTTP status (0: no answer).",
            ["verb", "kind", "code"],
            registry=self.registry,
        )
        self._condition = Gauge(
            "kvtier_tier_condition",
            "1 for the status that a tier's condition has.",
            ["namespace", "tier", "type", "status"],
            registry=self.registry,
        )
        self._ranks = Gauge(
            "kvtier_tier_ranks", "Ranks of a tier.", ["namespace", "tier"], registry=self.registry
        )
        self._ready = Gauge(
            "kvtier_tier_ranks_ready",
            "Ranks of a tier that are ready.",
            ["namespace", "tier"],
            registry=self.registry,
        )
        self._engines = Gauge(
            "kvtier_tier_engines",
            "Ready engines of a tier's pool.",
            ["namespace", "tier"],
            registry=self.registry,
        )
        self._engines_outside = Gauge(
            "kvtier_tier_engines_outside",
            "Engines of a tier that run outside of the domain in which its ranks belong.",
            ["namespace", "tier"],
            registry=self.registry,
        )
        self._ranks_outside = Gauge(
            "kvtier_tier_ranks_outside",
            "Ranks of a tier that run outside of the domain in which they belong.",
            ["namespace", "tier"],
            registry=self.registry,
        )
        self._forced = Counter(
            "kvtier_forced_deletions",
            "Pods of lost nodes that were deleted by force.",
            ["namespace", "tier"],
            registry=self.registry,
        )
        self._certificate = Gauge(
            "kvtier_tier_certificate_expiry_timestamp_seconds",
            "When the first of a tier's certificates ends, in seconds since the epoch.",
            ["namespace", "tier"],
            registry=self.registry,
        )
        self._findings = Gauge(
            "kvtier_tier_findings",
            "What the checks found about a tier, by severity.",
            ["namespace", "tier", "severity"],
            registry=self.registry,
        )
        self._probes = Counter(
            "kvtier_probe_runs",
            "Probes of a tier from one node, by result (success or error).",
            ["namespace", "tier", "result"],
            registry=self.registry,
        )
        self._probed_rate = Gauge(
            "kvtier_probe_bytes_per_second",
            "Bandwidth from all ranks into an engine's node, as last probed.",
            ["namespace", "tier"],
            registry=self.registry,
        )
        self._probed_round_trip = Gauge(
            "kvtier_probe_round_trip_seconds",
            "Round trip from an engine's node to the farthest rank, as last probed.",
            ["namespace", "tier"],
            registry=self.registry,
        )
        self._probed_at = Gauge(
            "kvtier_probe_timestamp_seconds",
            "When a tier was last probed, in seconds since the epoch.",
            ["namespace", "tier"],
            registry=self.registry,
        )
        self._scrapes = Counter(
            "kvtier_engine_scrapes",
            "Looks at the metrics of a tier's engines, by result (success or error).",
            ["namespace", "tier", "result"],
            registry=self.registry,
        )
        self._observed_rate = Gauge(
            "kvtier_observed_prefill_tokens_per_second",
            "What engines' metrics bound the prefill rate of one engine to (least, most).",
            ["namespace", "tier", "bound"],
            registry=self.registry,
        )
        self.generations = GenerationMetrics(self.registry)
        self.admission = AdmissionMetrics(self.registry)
        self.probes_running = Gauge(
            "kvtier_probes_running", "Probes that run now.", registry=self.registry
        )
        self.queue_depth = Gauge(
            "kvtier_queue_depth", "Tiers that wait for a reconcile.", registry=self.registry
        )
        self.queue_oldest = Gauge(
            "kvtier_queue_oldest_seconds",
            "Seconds for which the tier that waits longest has been due, its reconcile included.",
            registry=self.registry,
        )
        self.throttled = Counter(
            "kvtier_reconcile_throttled",
            "Reconciles that waited because their tier asks for more than one a second.",
            registry=self.registry,
        )
        self.asyncio_tasks = Gauge(
            "kvtier_asyncio_tasks", "Tasks of the controller's event loop.", registry=self.registry
        )
        self.leader = Gauge(
            "kvtier_leader", "1 while this process holds the Lease.", registry=self.registry
        )
        # A result that never happened is 0, not absent: rate() of it must be 0 too.
        for result in ("success", "error"):
            self._total.labels(result=result)

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
                self._condition.labels(namespace, tier, condition["type"], status).set(
                    condition["status"] == status
                )

    def set_tier(self, namespace: str, tier: str, *, ranks: int, ready: int) -> None:
        self._ranks.labels(namespace, tier).set(ranks)
        self._ready.labels(namespace, tier).set(ready)
        # A tier that never lost a node has 0, so that the first loss is an increase.
        self._forced.labels(namespace, tier)

    def set_placement(
        self, namespace: str, tier: str, *, engines: int, engines_outside: int, ranks_outside: int
    ) -> None:
        self._engines.labels(namespace, tier).set(engines)
        self._engines_outside.labels(namespace, tier).set(engines_outside)
        self._ranks_outside.labels(namespace, tier).set(ranks_outside)

    def count_forced_deletion(self, namespace: str, tier: str) -> None:
        self._forced.labels(namespace, tier).inc()

    def set_certificate_expiry(self, namespace: str, tier: str, *, ends: Sequence[float]) -> None:
        """The first of ``ends``; no series without any."""
        if ends:
            self._certificate.labels(namespace, tier).set(min(ends))
        else:
            self._certificate.remove_by_labels({"namespace": namespace, "tier": tier})

    def set_findings(self, namespace: str, tier: str, *, findings: Sequence[Finding]) -> None:
        """How many there are of each severity, 0 included."""
        for severity in Severity:
            self._findings.labels(namespace, tier, severity.value).set(
                sum(found.severity is severity for found in findings)
            )

    def count_probe(self, namespace: str, tier: str, *, result: str) -> None:
        self._probes.labels(namespace, tier, result).inc()

    def set_probed(
        self, namespace: str, tier: str, *, bytes_per_second: float, round_trip: float, at: float
    ) -> None:
        """``at`` is in seconds since the epoch."""
        self._probed_rate.labels(namespace, tier).set(bytes_per_second)
        self._probed_round_trip.labels(namespace, tier).set(round_trip)
        self._probed_at.labels(namespace, tier).set(at)

    def count_engine_scrape(self, namespace: str, tier: str, *, result: str) -> None:
        self._scrapes.labels(namespace, tier, result).inc()

    def set_observed_rate(
        self, namespace: str, tier: str, *, at_least: float, at_most: float | None
    ) -> None:
        """Tokens/s; no series of a bound that is not known."""
        labels = {"namespace": namespace, "tier": tier}
        for bound, rate in (("least", at_least), ("most", at_most)):
            if rate is None:
                self._observed_rate.remove_by_labels({**labels, "bound": bound})
            else:
                self._observed_rate.labels(namespace, tier, bound).set(rate)

    def forget_tier(self, namespace: str, tier: str) -> None:
        """Drop every series of a deleted tier."""
        for series in (
            self._condition,
            self._ranks,
            self._ready,
            self._forced,
            self._certificate,
            self._findings,
            self._engines,
            self._engines_outside,
            self._ranks_outside,
            *(self._probes, self._probed_rate, self._probed_round_trip, self._probed_at),
            *(self._scrapes, self._observed_rate),
        ):
            series.remove_by_labels({"namespace": namespace, "tier": tier})
        for part in (self.generations, self.admission):
            part.forget_tier({"namespace": namespace, "tier": tier})
