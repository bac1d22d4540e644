"""The limiter's metrics, read from the gates when they are asked for. See docs/limiter.md."""

from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvtier.limiter.gate import RESULTS, Gate
from kvtier.limiter.gates import Gates
from kvtier.metrics import new_registry

STATES = ("Open", "Storm", "Recovering")
_TIER = ("namespace", "tier")


def registry_of(gates: Gates, *, failures: Callable[[], int]) -> CollectorRegistry:
    """``failures`` counts the exchanges with a peer that failed."""
    registry = new_registry()
    registry.register(_Gates(gates, failures))
    return registry


class _Gates(Collector):
    """Counting with a client library's locks would cost as much as the decision."""

    def __init__(self, gates: Gates, failures: Callable[[], int]) -> None:
        self._gates, self._failures = gates, failures

    def collect(self) -> Iterator[Metric]:
        gates = self._gates.all()
        now = self._gates.clock()
        yield from _counted(gates)
        yield _gauge(
            "limit_tokens_per_second",
            "Prompt tokens/s that all replicas let in; no series without a limit.",
            [(gate, gate.bounds.limit) for gate in gates],
        )
        yield _gauge(
            "share_tokens_per_second",
            "This replica's part of the limit; no series without a limit.",
            [(gate, gate.bucket.rate if gate.bucket else None) for gate in gates],
        )
        yield _gauge(
            "queued_tokens",
            "Prompt tokens that wait in engines, by this replica's estimate of its own.",
            [(gate, gate.queued(now)) for gate in gates],
        )
        yield _gauge(
            "enforces",
            "1 if the tier's mode is Enforce.",
            [(gate, float(gate.bounds.enforces)) for gate in gates],
        )
        states = GaugeMetricFamily(
            "kvtier_limiter_state", "1 for the state that a tier is in.", labels=[*_TIER, "state"]
        )
        for gate in gates:
            for state in STATES:
                labels = [gate.namespace, gate.name, state]
                states.add_metric(labels, float(gate.bounds.state == state))
        yield states
        yield GaugeMetricFamily(
            "kvtier_limiter_peers",
            "Other replicas that have a share.",
            value=self._gates.peers(),
        )
        yield CounterMetricFamily(
            "kvtier_limiter_unknown_requests",
            "Requests of tiers that nobody knows; they are admitted.",
            value=self._gates.unknown,
        )
        yield CounterMetricFamily(
            "kvtier_limiter_exchange_failures",
            "Times that a replica did not answer another.",
            value=self._failures(),
        )


def _counted(gates: Sequence[Gate]) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        "kvtier_limiter_requests",
        "Requests by result (admitted, shed; wouldShed: let in by the mode Observe).",
        labels=[*_TIER, "result"],
    )
    tokens = CounterMetricFamily(
        "kvtier_limiter_tokens", "Prompt tokens of those requests.", labels=[*_TIER, "result"]
    )
    offered = CounterMetricFamily(
        "kvtier_limiter_offered_tokens",
        "Prompt tokens that came, before anything was refused.",
        labels=_TIER,
    )
    unsized = CounterMetricFamily(
        "kvtier_limiter_unsized_requests",
        "Requests whose size no gateway told; they count as the mean.",
        labels=_TIER,
    )
    for gate in gates:
        of = [gate.namespace, gate.name]
        for result in RESULTS:
            requests.add_metric([*of, result], gate.passed[result].requests)
            tokens.add_metric([*of, result], gate.passed[result].tokens)
        offered.add_metric(of, sum(passed.tokens for passed in gate.passed.values()))
        unsized.add_metric(of, gate.unsized)
    return iter((requests, tokens, offered, unsized))


def _gauge(name: str, text: str, values: Sequence[tuple[Gate, float | None]]) -> Metric:
    family = GaugeMetricFamily(f"kvtier_limiter_{name}", text, labels=_TIER)
    for gate, value in values:
        if value is not None:
            family.add_metric([gate.namespace, gate.name], value)
    return family
