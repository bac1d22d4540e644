"""What a tier asks for, and how it was judged, as metrics, on fakes."""

from datetime import datetime

import pytest
from admission_harness import Admitted, FakeLimiters, serving
from generation_harness import A, B, revised
from pool_harness import add_engine, add_node
from prometheus_client import generate_latest
from tier_harness import KEY, Operator, spec

from kvtier.admission.signals import TokenSignal
from kvtier.breakeven.assessment import Evidence, LinkFigures
from kvtier.cluster.protocol import TIER

NEEDED = 1024.0 * 5000
"""B* of the small tier: it keeps 1,024 bytes a token."""


def value(operator: Operator, name: str, **more: str) -> float | None:
    labels = {"namespace": KEY[0], "tier": KEY[1], **more}
    return operator.metrics.registry.get_sample_value(f"kvtier_{name}", labels)


async def test_what_the_spec_asks_for_is_shown(operator: Operator) -> None:
    body = spec()
    body["workload"] = {"targetTTFT": "1500ms"}
    body["placement"] = {"probe": {"interval": "12h"}}
    body["rollout"] = {"drainTimeout": "10m"}
    operator.apply(body)
    await operator.settle()
    assert value(operator, "tier_target_ttft_seconds") == 1.5
    assert value(operator, "probe_interval_seconds") == 12 * 3600
    assert value(operator, "generation_drain_seconds") == 600
    assert value(operator, "tier_paused") == 0
    operator.apply({**body, "paused": True})
    await operator.settle()
    assert value(operator, "tier_paused") == 1
    operator.apply({"workload": {"targetTTFT": None}})
    await operator.settle()
    assert value(operator, "tier_target_ttft_seconds") is None


async def test_before_a_probe_only_what_is_needed_is_known(ready: Operator) -> None:
    assert value(ready, "break_even_required_bytes_per_second") == NEEDED
    assert value(ready, "break_even_ratio") is None
    assert value(ready, "break_even_minimum_hit_tokens") is None
    assert value(ready, "tier_verdict", verdict="Unknown") == 1
    assert value(ready, "tier_verdict", verdict="Pays") == 0


async def test_a_declared_link_is_no_measurement(operator: Operator) -> None:
    body = spec()
    body["pool"] |= {"hitLatency": "1ms", "hitEngineTime": "1ms"}
    body["placement"] = {"links": [{"domain": "zone", "bitsPerSecond": "25G", "roundTrip": "50us"}]}
    operator.apply(body)
    await operator.settle()
    assert operator.status()["breakEven"]["minimumHitTokens"] > 0
    assert value(operator, "break_even_ratio") is None
    assert value(operator, "break_even_minimum_hit_tokens") is not None


@pytest.mark.parametrize(("rate", "verdict"), [(8e6, "Pays"), (1e6, "NeverPays")])
async def test_a_measured_link_is_shown_beside_what_is_needed(
    operator: Operator, rate: float, verdict: str
) -> None:
    operator.links = {"n1": None}
    add_node(operator, "n1", "leaf-a")
    add_engine(operator, "engine-0", "n1")
    body = spec()
    body["pool"] |= {"hitLatency": "1ms", "hitEngineTime": "1ms"}
    body["workload"] = {"hitTokens": [{"quantile": "1", "tokens": 8192}]}
    operator.apply(body)
    await operator.settle()
    operator.reconciler.memory.of(KEY).link = LinkFigures(
        domain="",
        bytes_per_second=rate,
        round_trip_seconds=50e-6,
        evidence=Evidence.PROBED,
        at="2026-01-01T00:00:00Z",
        node="n1",
        slowest_rank_bytes_per_second=rate / 2,
    )
    operator.queue.add(KEY)
    await operator.settle()
    assert operator.status()["verdict"] == verdict
    assert value(operator, "break_even_ratio") == pytest.approx(rate / NEEDED)
    assert value(operator, "tier_verdict", verdict=verdict) == 1
    assert value(operator, "tier_verdict", verdict="Unknown") == 0
    least = operator.status()["breakEven"].get("minimumHitTokens")
    assert value(operator, "break_even_minimum_hit_tokens") == least
    assert (least is None) == (verdict == "NeverPays")


async def test_a_drain_is_shown_while_it_goes_on(ready: Operator) -> None:
    began = ready.clock.now()
    ready.apply(revised("r2"))
    await ready.settle()
    assert value(ready, "generation_state", generation=A, state="Draining") == 1
    shown = value(ready, "generation_drain_started_timestamp_seconds", generation=A)
    assert shown is not None
    assert datetime.fromtimestamp(shown, tz=began.tzinfo) == began.replace(microsecond=0)
    assert value(ready, "generation_drain_started_timestamp_seconds", generation=B) is None


async def test_the_share_of_hits_is_shown_while_engines_tell(operator: Operator) -> None:
    await serving(operator, spec())
    found = Admitted(operator, FakeLimiters(operator))
    await found.looks(1)
    assert value(operator, "tier_hit_ratio") is None
    tokens = TokenSignal(prompt=1000, hit=800, computed=200, seconds=5, engines=2, source="made up")
    await found.looks(3, tokens)
    assert value(operator, "tier_hit_ratio") == pytest.approx(0.8)
    await found.looks(130)
    assert value(operator, "tier_hit_ratio") is None


async def test_nothing_is_left_of_a_deleted_tier(operator: Operator) -> None:
    await serving(operator, spec())
    found = Admitted(operator, FakeLimiters(operator))
    await found.looks(2)
    assert 'tier="demo"' in generate_latest(operator.metrics.registry).decode()
    operator.cluster.remove(TIER, *KEY)
    await operator.settle()
    await found.watcher.look()
    assert 'tier="demo"' not in generate_latest(operator.metrics.registry).decode()
