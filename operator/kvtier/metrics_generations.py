"""Metrics of generations: who uses them, how fast a fence holds, what was deleted."""

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Histogram

from kvtier.generation.entry import GenerationEntry, GenerationState
from kvtier.series import Series

# A fence is a write of the record and one round of commands; its file waits for the kubelet.
_FENCE_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_PURGE_BUCKETS = (0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0)
STAGES = ("access_gone", "files_loaded")


class GenerationMetrics:
    """Part of ``Metrics``; labels are a tier and, at most eight a tier, its generations."""

    def __init__(self, process: CollectorRegistry, tiers: Series) -> None:
        gauge, counter = tiers.gauge, tiers.counter
        self._state = gauge(
            "kvtier_generation_state",
            "1 for the state that a generation of a tier is in.",
            *("generation", "state"),
        )
        self._engines = gauge(
            "kvtier_generation_engines",
            "Ready engines that have a generation's Secret.",
            "generation",
        )
        self._drain_began = gauge(
            "kvtier_generation_drain_started_timestamp_seconds",
            "When a generation that drains began to, in seconds since the epoch.",
            "generation",
        )
        self._drain = gauge(
            "kvtier_generation_drain_seconds",
            "Seconds that a generation drains at least, by the spec (drainTimeout).",
        )
        self._unproven = gauge(
            "kvtier_generation_unproven_ranks",
            "Ranks of which it is not proven that no fenced generation reaches a key there, now or"
            " after a restart.",
        )
        self._drifted = gauge(
            "kvtier_engines_drifted",
            "Pods of a tier's pool that run another identity and mount no Secret of it.",
        )
        self._unreadable = gauge(
            "kvtier_engines_unreadable",
            "Pods that use a generation and do not tell whether they run its identity.",
        )
        self._purged = counter(
            "kvtier_generation_purged_keys",
            "Keys that were deleted because their generation was fenced.",
        )
        self._contaminations = counter(
            "kvtier_generation_contaminations",
            "Generations that lost their access because a pod of another identity used them.",
        )
        self._fence = Histogram(
            "kvtier_generation_fence_seconds",
            "Seconds from the decision to fence until all ranks proved it, by stage (access_gone,"
            " files_loaded).",
            ["stage"],
            buckets=_FENCE_BUCKETS,
            registry=process,
        )
        self._purge = Histogram(
            "kvtier_generation_purge_seconds",
            "Seconds from the first key deleted of a generation to the last on all ranks.",
            buckets=_PURGE_BUCKETS,
            registry=process,
        )
        for stage in STAGES:
            self._fence.labels(stage)

    def show(
        self,
        namespace: str,
        tier: str,
        *,
        generations: Iterable[GenerationEntry],
        engines: Mapping[str, int],
        unproven: int,
        drifted: int,
        unreadable: int,
        drain_seconds: float,
        drains_since: Mapping[str, float],
    ) -> None:
        """One tier as it is now; ``engines`` and ``drains_since`` (seconds since the epoch) by
        generation."""
        key = (namespace, tier)
        entries = list(generations)
        self._state.replace(
            key,
            {
                (entry.id, state.value): entry.state is state
                for entry in entries
                for state in GenerationState
            },
        )
        self._engines.replace(key, {(entry.id,): engines.get(entry.id, 0) for entry in entries})
        self._drain_began.replace(key, {(which,): at for which, at in drains_since.items()})
        self._drain.set(key, drain_seconds)
        self._unproven.set(key, unproven)
        self._drifted.set(key, drifted)
        self._unreadable.set(key, unreadable)
        # A tier that was never contaminated has 0, so that the first time is an increase.
        self._contaminations.inc(key, by=0)
        self._purged.inc(key, by=0)

    def count_contamination(self, namespace: str, tier: str) -> None:
        self._contaminations.inc((namespace, tier))

    def count_purged(self, namespace: str, tier: str, *, keys: int) -> None:
        self._purged.inc((namespace, tier), by=keys)

    def observe_fence(self, seconds: float, *, stage: str) -> None:
        self._fence.labels(stage).observe(seconds)

    def observe_purge(self, seconds: float) -> None:
        self._purge.observe(seconds)
