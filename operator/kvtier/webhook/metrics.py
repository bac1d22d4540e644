"""The webhook's metrics. Every name is explained in docs/metrics.md."""

from prometheus_client import Counter, Gauge, Histogram

from kvtier.metrics import new_registry

RESULTS = ("allowed", "warned", "refused", "bad", "failed")
INJECTIONS = ("injected", "leftAlone")
# A tier is judged in a few milliseconds; the API server waits for seconds.
_DURATION_BUCKETS = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class WebhookMetrics:
    """The metrics of one webhook process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = new_registry()
        self._reviews = Counter(
            "kvtier_webhook_reviews",
            "Reviews by result (allowed, warned, refused, bad, failed).",
            ["result"],
            registry=self.registry,
        )
        for result in RESULTS:
            self._reviews.labels(result=result)
        self._duration = Histogram(
            "kvtier_webhook_review_duration_seconds",
            "Seconds from a review's arrival to its answer.",
            buckets=_DURATION_BUCKETS,
            registry=self.registry,
        )
        self._pods = Counter(
            "kvtier_webhook_pods",
            "Pods that asked to be injected, by result (injected, leftAlone).",
            ["result"],
            registry=self.registry,
        )
        for result in INJECTIONS:
            self._pods.labels(result=result)
        self._expiry = Gauge(
            "kvtier_webhook_certificate_expiry_timestamp_seconds",
            "When the certificate that is served ends, in seconds since the epoch.",
            registry=self.registry,
        )
        self._refused = Gauge(
            "kvtier_webhook_certificate_unusable",
            "1 while the certificate's files cannot be served (an older one is, if there was one).",
            registry=self.registry,
        )

    def observe_review(self, *, result: str, seconds: float) -> None:
        """``result`` is one of RESULTS."""
        self._reviews.labels(result=result).inc()
        self._duration.observe(seconds)

    def count_pod(self, *, result: str) -> None:
        """``result`` is one of INJECTIONS."""
        self._pods.labels(result=result).inc()

    def set_certificate(self, *, ends: float) -> None:
        """``ends``: of the certificate that is served from now on, in seconds since the epoch."""
        self._expiry.set(ends)
        self._refused.set(0)

    def set_certificate_unusable(self) -> None:
        self._refused.set(1)
