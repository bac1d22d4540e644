"""The reconciler on fakes: what engines' metrics make of a tier, and what they never cost."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from pool_harness import add_engine, add_node, placement_message
from prometheus_client import generate_latest
from tier_harness import KEY, Operator, spec

from kvtier.breakeven.assessment import Evidence, LinkFigures
from kvtier.cluster.protocol import POD, TIER
from kvtier.engines.endpoint import Endpoint
from kvtier.engines.exposition import Counters
from kvtier.engines.watch import INTERVAL, MOST_ENGINES, EngineWatcher
from kvtier.placement.topology import Engine, evenly

LINK = LinkFigures(
    domain="",
    bytes_per_second=8.0e6,
    round_trip_seconds=50e-6,
    evidence=Evidence.PROBED,
    at="2026-11-30T01:00:00Z",
    node="n1",
    slowest_rank_bytes_per_second=4.0e6,
)
"""The small tier keeps 1,024 bytes a token: at 5,000 tokens/s B* is 5.12 MB/s."""


async def at_once(act: Callable[[str], Counters | None], text: str) -> Counters | None:
    """No thread: the clock of these tests would not wait for it."""
    return act(text)


class Engines:
    """Engines of vLLM, each of which prefills ``rate`` tokens/s of prompts one by one."""

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.rate = 5000.0
        self.hang: set[str] = set()
        self.hit_share = 0.0
        self.failed: int | None = None
        self.released = asyncio.Event()
        self.asked: list[Endpoint] = []
        self._text = {
            "vllm:request_prefill_time_seconds_sum": 0.0,
            "vllm:request_prefill_time_seconds_count": 0.0,
            "vllm:request_prefill_kv_computed_tokens_sum": 0.0,
            "vllm:request_prompt_tokens_sum": 0.0,
            "vllm:iteration_tokens_total_count": 0.0,
            "vllm:iteration_tokens_total_sum": 0.0,
        }
        self.start()

    def start(self) -> None:
        """The controller's process starts."""
        self.watcher = EngineWatcher(
            memory=self.operator.reconciler.memory,
            read=self.read,
            changed=self.operator.queue.add,
            clock=self.operator.clock,
            metrics=self.operator.metrics,
            jitter=lambda: 0.5,
            apart=at_once,
        )

    async def read(self, endpoint: Endpoint) -> str | None:
        self.asked.append(endpoint)
        if endpoint.host in self.hang:
            await self.released.wait()
        lines = [f'{name}{{engine="0"}} {value}\n' for name, value in self._text.items()]
        if self.failed is not None:
            lines.append(f"lmcache_mp_l2_prefetch_failure_chunks_total {self.failed}\n")
        return "".join(lines)

    def serve(self, *, requests: int = 60, tokens: int = 4000) -> None:
        total = requests * tokens
        computed = total * (1 - self.hit_share)
        done = (computed / self.rate, requests, computed, total, requests, computed + requests)
        for name, more in zip(self._text, done, strict=True):
            self._text[name] += more

    async def minutes(self, count: int = 1) -> None:
        for _ in range(count):
            self.serve()
            await self.operator.clock.advance(INTERVAL)
            await self.watcher.look()
            await self.operator.settle()


def tier(**pool: Any) -> dict[str, Any]:
    document = spec()
    document["pool"] |= {"hitLatency": "1ms", "hitEngineTime": "1ms", **pool}
    document["workload"] = {"hitTokens": [{"quantile": "1", "tokens": 8192}]}
    return document


@pytest.fixture
async def engines(operator: Operator) -> Engines:
    """A measured tier that pays, and an engine beside it."""
    # The probe of its own goes on for as long as the test does.
    operator.links = {"n1": None}
    found = Engines(operator)
    add_node(operator, "n1", "leaf-a")
    add_engine(operator, "engine-0", "n1")
    operator.cluster.edit(POD, KEY[0], "engine-0", {"status": {"podIP": "10.9.0.1"}})
    operator.apply(tier())
    await operator.settle()
    operator.reconciler.memory.of(KEY).link = LINK
    operator.queue.add(KEY)
    await operator.settle()
    assert operator.status()["verdict"] == "Pays"
    return found


def observed(operator: Operator) -> int | None:
    found: int | None = operator.status()["breakEven"].get("observedTokensPerSecond")
    return found


def placement(operator: Operator) -> str:
    return placement_message(operator)


async def test_engines_that_do_what_is_declared_change_nothing(
    operator: Operator, engines: Engines
) -> None:
    writes, requests = len(operator.cluster.writes), len(operator.cluster.requests)
    await engines.minutes(5)
    assert {each.host for each in engines.asked} == {"10.9.0.1"}
    assert len(operator.cluster.writes) == writes
    asked = [each.verb for each in operator.cluster.requests[requests:]]
    assert "list" not in asked, "no look at engines lists anything"
    assert observed(operator) is None
    text = generate_latest(operator.metrics.registry).decode()
    assert (
        "kvtier_observed_prefill_tokens_per_second"
        '{bound="least",namespace="serving",tier="demo"} 5000.0'
    ) in text
    assert (
        'kvtier_engine_scrapes_total{namespace="serving",result="success",tier="demo"} 5.0' in text
    )


async def test_quicker_engines_change_the_verdict_at_once(
    operator: Operator, engines: Engines
) -> None:
    engines.rate = 10_000.0
    await engines.minutes(2)
    assert observed(operator) == 10_000
    assert operator.status()["breakEven"]["bytesPerSecond"] == 10_240_000
    assert operator.status()["verdict"] == "NeverPays"
    earning = operator.condition("EarningItsKeep")
    assert (earning["status"], earning["reason"]) == ("False", "BelowBreakEven")
    assert "at the 10,000 tokens/s that engines show" in earning["message"]
    assert "PrefillRateOff" in placement(operator)
    for figure in ("10,000 tokens/s", "(Observed)", "5,000 (Declared)", "2 times"):
        assert figure in placement(operator)


async def test_slower_engines_are_told_of_and_the_verdict_stays(
    operator: Operator, engines: Engines
) -> None:
    engines.rate = 1000.0
    # Ten prompts of 4,000 tokens: two thirds of a minute.
    for _ in range(10):
        engines.serve(requests=10)
        await operator.clock.advance(INTERVAL)
        await engines.watcher.look()
    await operator.settle()
    found = observed(operator)
    assert found is not None
    assert found == 1700, "at most what a request sees and what the clock sees together"
    assert "at most" in placement(operator)
    assert operator.status()["verdict"] == "Pays"
    assert operator.status()["breakEven"]["bytesPerSecond"] == 5_120_000, "by what is declared"


async def test_what_is_found_is_written_once(operator: Operator, engines: Engines) -> None:
    engines.rate = 10_000.0
    await engines.minutes(3)
    writes = len(operator.cluster.writes)
    for rate in (9_500.0, 10_500.0, 9_800.0, 10_200.0):
        engines.rate = rate
        await engines.minutes(10)
    await operator.resync()
    assert len(operator.cluster.writes) == writes


async def test_many_hits_take_nothing_back(operator: Operator, engines: Engines) -> None:
    engines.rate = 10_000.0
    await engines.minutes(3)
    writes = len(operator.cluster.writes)
    engines.hit_share, engines.rate = 0.9, 3000.0
    await engines.minutes(60)
    assert len(operator.cluster.writes) == writes


async def test_a_new_process_goes_on_from_the_status(operator: Operator, engines: Engines) -> None:
    engines.rate = 10_000.0
    await engines.minutes(2)
    writes = len(operator.cluster.writes)
    operator.restart()
    engines.start()
    operator.queue.add(KEY, dirty=frozenset({TIER.kind}))
    await operator.settle()
    await engines.minutes(4)
    assert len(operator.cluster.writes) == writes
    assert operator.status()["verdict"] == "NeverPays"


async def test_a_process_that_does_not_look_takes_it_back(
    operator: Operator, engines: Engines
) -> None:
    engines.rate = 10_000.0
    await engines.minutes(2)
    operator.restart()
    operator.queue.add(KEY, dirty=frozenset({TIER.kind}))
    await operator.settle()
    assert observed(operator) is None


async def test_declaring_what_is_seen_ends_the_finding(
    operator: Operator, engines: Engines
) -> None:
    engines.rate = 10_000.0
    await engines.minutes(2)
    operator.apply(tier(prefillRate=[{"tokensPerSecond": 10_000}]))
    await operator.settle()
    assert observed(operator) is None
    assert "PrefillRateOff" not in placement(operator)
    assert operator.status()["verdict"] == "NeverPays"


async def test_it_is_held_against_the_declared_rate_of_such_prompts(
    operator: Operator, engines: Engines
) -> None:
    """15,000 is declared at the 4,000 tokens that prompts have, 5,000 at 100,000."""
    operator.apply(
        tier(
            prefillRate=[
                {"tokens": 4000, "tokensPerSecond": 15_000},
                {"tokens": 100_000, "tokensPerSecond": 5000},
            ]
        )
    )
    await operator.settle()
    engines.rate = 15_000.0
    await engines.minutes(3)
    assert observed(operator) is None
    engines.rate = 45_000.0
    await engines.minutes(40)
    found = observed(operator)
    assert found is not None
    assert 13_500 <= found <= 15_000, "a third of what they do, as at 100,000 tokens"


async def test_an_engine_that_started_again_is_read_anew(
    operator: Operator, engines: Engines
) -> None:
    await engines.minutes(2)
    for name in engines._text:
        engines._text[name] = 0.0
    await engines.minutes(3)
    assert observed(operator) is None


async def test_a_hanging_engine_costs_no_reconcile_and_no_other_tier(
    operator: Operator, engines: Engines
) -> None:
    engines.hang = {"10.9.0.1"}
    looking = asyncio.create_task(engines.watcher.look())
    await operator.clock.settle()
    assert not looking.done()
    operator.apply(tier(prefillRate=[{"tokensPerSecond": 6000}]))
    await operator.settle()
    assert operator.status()["breakEven"]["bytesPerSecond"] == 6_144_000
    looking.cancel()
    await asyncio.gather(looking, return_exceptions=True)


async def test_an_engine_without_figures_is_asked_less_and_less(
    operator: Operator, engines: Engines
) -> None:
    engines._text = {"something_else": 1.0}
    for _ in range(40):
        await engines.watcher.look()
    assert len(engines.asked) == 6


async def test_nothing_comes_back_of_a_tier_that_was_deleted_meanwhile(
    operator: Operator, engines: Engines
) -> None:
    await engines.minutes(2)
    engines.hang = {"10.9.0.1"}
    looking = asyncio.create_task(engines.watcher.look())
    await operator.clock.settle()
    operator.reconciler.memory.forget(KEY)
    operator.metrics.forget_tier(*KEY)
    engines.released.set()
    await looking
    await engines.watcher.look()
    shown = generate_latest(operator.metrics.registry).decode().splitlines()
    assert not [line for line in shown if line.startswith(("kvtier_observed", "kvtier_engine_s"))]


async def test_tokens_and_failed_loads_are_counted_since_the_first_look(
    operator: Operator, engines: Engines
) -> None:
    def value(name: str) -> float | None:
        labels = {"namespace": KEY[0], "tier": KEY[1]}
        return operator.metrics.registry.get_sample_value(f"kvtier_engine_{name}_total", labels)

    engines.hit_share = 0.25
    await engines.minutes(1)
    assert value("failed_loads") is None, "vLLM does not tell"
    engines.failed = 7
    await engines.minutes(2)
    assert value("failed_loads") == 0, "what failed before the first look is of the past"
    engines.failed = 9
    await engines.minutes(1)
    assert value("failed_loads") == 2
    engines.failed = 1
    await engines.minutes(1)
    assert value("failed_loads") == 3, "a counter that shrank began anew"
    before = (value("prompt_tokens"), value("recomputed_tokens"))
    await engines.minutes(1)
    assert value("prompt_tokens") == (before[0] or 0) + 60 * 4000
    assert value("recomputed_tokens") == (before[1] or 0) + 60 * 3000


async def test_it_looks_once_a_minute_until_it_is_told_to_stop(
    operator: Operator, engines: Engines
) -> None:
    stop = asyncio.Event()
    running = asyncio.create_task(engines.watcher.run(stop))
    await operator.clock.advance(10 * INTERVAL + 1)
    assert len(engines.asked) == 10
    stop.set()
    await running


async def test_only_ready_engines_are_asked(operator: Operator, engines: Engines) -> None:
    add_engine(operator, "engine-1", "n1", ready=False)
    operator.cluster.edit(POD, KEY[0], "engine-1", {"status": {"podIP": "10.9.0.2"}})
    await operator.settle()
    await engines.watcher.look()
    assert {each.host for each in engines.asked} == {"10.9.0.1"}


def test_of_many_engines_a_few_are_asked_and_always_the_same() -> None:
    many = [Engine(name=f"e{number:03}", node="n") for number in range(100)]
    chosen = evenly(many, most=MOST_ENGINES)
    assert [each.name for each in chosen] == [
        "e000", "e014", "e028", "e042", "e056", "e070", "e084", "e099",
    ]  # fmt: skip
    assert evenly(many, most=MOST_ENGINES) == chosen
    assert evenly(many[:3], most=MOST_ENGINES) == many[:3]
