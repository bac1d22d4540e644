"""Metrics of whether a tier pays: verdict, break-even, probes."""

import math

from kvtier.breakeven.assessment import Verdict
from kvtier.placement.judgement import Judgement
from kvtier.series import Series


class VerdictMetrics:
    """Part of ``Metrics``. A figure that is not known has no series."""

    def __init__(self, tiers: Series) -> None:
        gauge, counter = tiers.gauge, tiers.counter
        self._verdict = gauge(
            "kvtier_tier_verdict", "1 for the verdict that a tier's status shows.", "verdict"
        )
        self._required = gauge(
            "kvtier_break_even_required_bytes_per_second",
            "Bandwidth above which fetching beats prefilling, on a link without latency (B*).",
        )
        self._ratio = gauge(
            "kvtier_break_even_ratio", "Measured bandwidth over the one that is required (B/B*)."
        )
        self._minimum_hit = gauge(
            "kvtier_break_even_minimum_hit_tokens",
            "Fewest tokens of a hit for which fetching beats prefilling.",
        )
        self._target = gauge(
            "kvtier_tier_target_ttft_seconds", "Time to first token that spec.workload asks for."
        )
        self._interval = gauge(
            "kvtier_probe_interval_seconds", "Seconds between two probes, by the spec."
        )
        self._probes = counter(
            "kvtier_probe_runs",
            "Probes of a tier from one node, by result (success or error).",
            "result",
        )
        self._probed_rate = gauge(
            "kvtier_probe_bytes_per_second",
            "Bandwidth from all ranks of a tier into an engine's node, as last probed.",
        )
        self._probed_round_trip = gauge(
            "kvtier_probe_round_trip_seconds",
            "Round trip from an engine's node to the farthest rank, as last probed.",
        )
        self._probed_at = gauge(
            "kvtier_probe_timestamp_seconds",
            "When a tier was last probed, in seconds since the epoch.",
        )

    def show(
        self,
        namespace: str,
        tier: str,
        *,
        judgement: Judgement,
        target_ttft: float | None,
        probe_interval: float,
    ) -> None:
        """One tier as it was judged; times in seconds."""
        key, assessment = (namespace, tier), judgement.assessment
        for verdict in Verdict:
            self._verdict.set(key, judgement.shown.verdict is verdict, verdict.value)
        least = assessment.minimum_hit
        known = least is not None and math.isfinite(least)
        self._required.set(key, assessment.break_even)
        self._ratio.set(key, assessment.ratio if judgement.measured else None)
        self._minimum_hit.set(key, least if known else None)
        self._target.set(key, target_ttft)
        self._interval.set(key, probe_interval)

    def count_probe(self, namespace: str, tier: str, *, result: str) -> None:
        self._probes.inc((namespace, tier), result)

    def set_probed(
        self, namespace: str, tier: str, *, bytes_per_second: float, round_trip: float, at: float
    ) -> None:
        """``at`` is in seconds since the epoch."""
        self._probed_rate.set((namespace, tier), bytes_per_second)
        self._probed_round_trip.set((namespace, tier), round_trip)
        self._probed_at.set((namespace, tier), at)
