"""Metrics of admission: the state, and the figures that move too often for a status."""

from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Gauge

from kvtier.admission.storm import State
from kvtier.plan.admission import View

_TIER = ("namespace", "tier")


class AdmissionMetrics:
    """Part of ``Metrics``. A figure that is not known has no series."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._state = Gauge(
            "kvtier_admission_state",
            "1 for the state that a tier's admission is in.",
            [*_TIER, "state"],
            registry=registry,
        )

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, _TIER, registry=registry)

        self._capacity = gauge(
            "kvtier_admission_zero_hit_capacity_tokens_per_second",
            "Prompt tokens/s that a tier's Ready engines take while nothing hits.",
        )
        self._factor = gauge(
            "kvtier_admission_storm_factor",
            "How many times the prefill work of now a cold tier means.",
        )
        self._queued = gauge(
            "kvtier_admission_max_queued_tokens",
            "Tokens that may wait in a tier's engines by workload.targetTTFT.",
        )
        self._required = gauge(
            "kvtier_required_engines_zero_hit",
            "Engines that what comes in at the peak needs while nothing hits.",
        )
        self._offered = gauge(
            "kvtier_admission_offered_tokens_per_second",
            "Prompt tokens/s that come in, before anything is refused.",
        )
        self._limit = gauge(
            "kvtier_admission_limit_tokens_per_second",
            "Prompt tokens/s that are let in; no series without a limit.",
        )
        self._replicas = gauge(
            "kvtier_admission_limiters", "Limiters that answer and know the tier."
        )
        self._enforces = gauge(
            "kvtier_admission_enforces", "1 where spec.admission.mode is Enforce, else 0."
        )
        self._policy = gauge(
            "kvtier_admission_policy_requests_per_second",
            "Requests/s that Envoy Gateway is told to let each Envoy pass; no series without one.",
        )
        self._gauges = (
            self._policy,
            *(self._capacity, self._factor, self._queued, self._required),
            *(self._offered, self._limit, self._replicas, self._enforces),
        )

    def show(
        self,
        namespace: str,
        tier: str,
        *,
        admission: Mapping[str, Any],
        view: View,
        enforces: bool,
    ) -> None:
        """``admission`` is what the status says, or will say."""
        self._enforces.labels(namespace, tier).set(enforces)
        for state in State:
            shown = admission["state"] == state
            self._state.labels(namespace, tier, state.value).set(shown)
        figures = (
            (self._capacity, admission.get("zeroHitTokensPerSecond")),
            (self._factor, admission.get("stormFactor")),
            (self._queued, admission.get("maxQueuedTokens")),
            (self._required, admission.get("requiredEngines")),
            (self._offered, view.offered),
            (self._limit, view.limit),
            (self._replicas, view.enforcement.replicas),
        )
        for gauge, figure in figures:
            if figure is None:
                gauge.remove_by_labels({"namespace": namespace, "tier": tier})
            else:
                gauge.labels(namespace, tier).set(figure)

    def show_policy(self, namespace: str, tier: str, *, rate: float | None) -> None:
        """``rate`` is what the tier's BackendTrafficPolicy says, None without one."""
        if rate is None:
            self._policy.remove_by_labels({"namespace": namespace, "tier": tier})
        else:
            self._policy.labels(namespace, tier).set(rate)

    def forget_tier(self, labels: dict[str, str]) -> None:
        for gauge in (self._state, *self._gauges):
            gauge.remove_by_labels(labels)
