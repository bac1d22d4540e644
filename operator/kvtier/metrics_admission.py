"""Metrics of admission: the state, and the figures that move too often for a status."""

from collections.abc import Mapping
from typing import Any

from kvtier.admission.storm import State
from kvtier.plan.admission import View
from kvtier.series import Series


class AdmissionMetrics:
    """Part of ``Metrics``. A figure that is not known has no series."""

    def __init__(self, tiers: Series) -> None:
        gauge = tiers.gauge
        self._state = gauge(
            "kvtier_admission_state", "1 for the state that a tier's admission is in.", "state"
        )
        self._hit_ratio = gauge(
            "kvtier_tier_hit_ratio", "Share of prompt tokens that the tier's hits spare engines."
        )
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
        key = (namespace, tier)
        self._enforces.set(key, enforces)
        for state in State:
            self._state.set(key, admission["state"] == state, state.value)
        self._hit_ratio.set(key, view.hit)
        self._capacity.set(key, admission.get("zeroHitTokensPerSecond"))
        self._factor.set(key, admission.get("stormFactor"))
        self._queued.set(key, admission.get("maxQueuedTokens"))
        self._required.set(key, admission.get("requiredEngines"))
        self._offered.set(key, view.offered)
        self._limit.set(key, view.limit)
        self._replicas.set(key, view.enforcement.replicas)

    def show_policy(self, namespace: str, tier: str, *, rate: float | None) -> None:
        """``rate`` is what the tier's BackendTrafficPolicy says, None without one."""
        self._policy.set((namespace, tier), rate)
