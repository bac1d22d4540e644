"""Metrics of generations: who uses them, how fast a fence holds, what was deleted."""

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from kvtier.generation.entry import GenerationEntry, GenerationState

_TIER = ("namespace", "tier")
# A fence is a write of the record and one round of commands; its file waits for the kubelet.
_FENCE_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_PURGE_BUCKETS = (0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0)
STAGES = ("access_gone", "files_loaded")


class GenerationMetrics:
    """Part of ``Metrics``; labels are a tier and, at most eight a tier, its generations."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._state = Gauge(
            "kvtier_generation_state",
            "1 for the state that a generation of a tier is in.",
            [*_TIER, "generation", "state"],
            registry=registry,
        )
        self._engines = Gauge(
            "kvtier_generation_engines",
            "Ready engines that have a generation's Secret.",
            [*_TIER, "generation"],
            registry=registry,
        )
        self._unproven = Gauge(
            "kvtier_generation_unproven_ranks",
            "Ranks of which it is not proven that no fenced generation reaches a key there, now or"
            " after a restart.",
            _TIER,
            registry=registry,
        )
        self._drifted = Gauge(
            "kvtier_engines_drifted",
            "Pods of a tier's pool that run another identity and mount no Secret of it.",
            _TIER,
            registry=registry,
        )
        self._unreadable = Gauge(
            "kvtier_engines_unreadable",
            "Pods that use a generation and do not tell whether they run its identity.",
            _TIER,
            registry=registry,
        )
        self._fence = Histogram(
            "kvtier_generation_fence_seconds",
            "Seconds from the decision to fence until all ranks proved it, by stage (access_gone,"
            " files_loaded).",
            ["stage"],
            buckets=_FENCE_BUCKETS,
            registry=registry,
        )
        self._purge = Histogram(
            "kvtier_generation_purge_seconds",
            "Seconds from the first key deleted of a generation to the last on all ranks.",
            buckets=_PURGE_BUCKETS,
            registry=registry,
        )
        self._purged = Counter(
            "kvtier_generation_purged_keys",
            "Keys that were deleted because their generation was fenced.",
            _TIER,
            registry=registry,
        )
        self._contaminations = Counter(
            "kvtier_generation_contaminations",
            "Generations that lost their access because a pod of another identity used them.",
            _TIER,
            registry=registry,
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
    ) -> None:
        """One tier as it is now; ``engines`` by generation."""
        labels = {"namespace": namespace, "tier": tier}
        self._state.remove_by_labels(labels)
        self._engines.remove_by_labels(labels)
        for entry in generations:
            for state in GenerationState:
                self._state.labels(namespace, tier, entry.id, state.value).set(entry.state is state)
            self._engines.labels(namespace, tier, entry.id).set(engines.get(entry.id, 0))
        self._unproven.labels(namespace, tier).set(unproven)
        self._drifted.labels(namespace, tier).set(drifted)
        self._unreadable.labels(namespace, tier).set(unreadable)
        # A tier that was never contaminated has 0, so that the first time is an increase.
        self._contaminations.labels(namespace, tier)
        self._purged.labels(namespace, tier)

    def count_contamination(self, namespace: str, tier: str) -> None:
        self._contaminations.labels(namespace, tier).inc()

    def count_purged(self, namespace: str, tier: str, *, keys: int) -> None:
        self._purged.labels(namespace, tier).inc(keys)

    def observe_fence(self, seconds: float, *, stage: str) -> None:
        self._fence.labels(stage).observe(seconds)

    def observe_purge(self, seconds: float) -> None:
        self._purge.observe(seconds)

    def forget_tier(self, labels: Mapping[str, str]) -> None:
        for series in (
            *(self._state, self._engines, self._unproven, self._drifted, self._unreadable),
            *(self._purged, self._contaminations),
        ):
            series.remove_by_labels(dict(labels))
