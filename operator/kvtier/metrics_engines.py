"""Metrics of what engines tell of themselves."""

from kvtier.series import Series


class EngineMetrics:
    """Part of ``Metrics``: of the engines that kvtier asks, together."""

    def __init__(self, tiers: Series) -> None:
        self._scrapes = tiers.counter(
            "kvtier_engine_scrapes",
            "Looks at the metrics of a tier's engines, by result (success or error).",
            "result",
        )
        self._observed_rate = tiers.gauge(
            "kvtier_observed_prefill_tokens_per_second",
            "What engines' metrics bound the prefill rate of one engine to (least, most).",
            "bound",
        )
        self._prompt = tiers.counter(
            "kvtier_engine_prompt_tokens", "Prompt tokens of the engines that are asked."
        )
        self._recomputed = tiers.counter(
            "kvtier_engine_recomputed_tokens",
            "Prompt tokens that these engines prefilled: nothing had cached them.",
        )
        self._failed = tiers.counter(
            "kvtier_engine_failed_loads",
            "Chunks that were found in the tier and could not be loaded.",
        )

    def count_scrape(self, namespace: str, tier: str, *, result: str) -> None:
        self._scrapes.inc((namespace, tier), result)

    def set_rate(
        self, namespace: str, tier: str, *, at_least: float, at_most: float | None
    ) -> None:
        """Tokens/s; no series of a bound that is not known."""
        self._observed_rate.set((namespace, tier), at_least, "least")
        self._observed_rate.set((namespace, tier), at_most, "most")

    def count_tokens(self, namespace: str, tier: str, *, prompt: float, recomputed: float) -> None:
        """What was counted since the last look; 0 is a series too."""
        self._prompt.inc((namespace, tier), by=prompt)
        self._recomputed.inc((namespace, tier), by=recomputed)

    def count_failed_loads(self, namespace: str, tier: str, *, chunks: float) -> None:
        self._failed.inc((namespace, tier), by=chunks)
