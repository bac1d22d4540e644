"""Which engines are asked, how often, and to whom what they say goes."""

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest
from signals_kit import pod, tier

from kvtier.engines.endpoint import Endpoint
from kvtier.limiter.engines import (
    INTERVAL,
    MOST_SKIPPED,
    EngineReader,
    most_engines,
    pause_between,
)
from kvtier.limiter.known import Known
from kvtier.limiter.sources import DirectSource, PrometheusSource
from kvtier.limiter.tokens import PoolTokens
from kvtier.reconcile.clock import FakeClock

TEXT = (Path(__file__).parents[1] / "engines/metrics/vllm-0.32.0-hits.prom").read_text()
KEY = ("prefill", "llama")


async def here(function, text):
    return function(text)


class Engines:
    """Engines by address; None: no answer."""

    def __init__(self, **texts: str | None) -> None:
        self.texts = texts
        self.asked: list[str] = []

    async def read(self, endpoint: Endpoint) -> str | None:
        self.asked.append(endpoint.host)
        return self.texts.get(endpoint.host, TEXT)


class Pools:
    def __init__(self) -> None:
        self.tiers = {KEY: PoolTokens()}
        self.complete: list[tuple[str, str]] = []

    def tokens(self, key):
        return self.tiers.get(key)

    def answered(self, key) -> None:
        self.complete.append(key)


def endpoints(count: int) -> dict[str, Endpoint]:
    return {f"e{each:03}": Endpoint(host=f"10.0.0.{each}", port=8000) for each in range(count)}


async def test_of_many_engines_the_same_few_are_asked_evenly():
    engines, clock = Engines(), FakeClock()
    reader = EngineReader(read=engines.read, clock=clock, apart=here)
    found = await reader.look(endpoints(100), most=32)
    assert len(found) == len(engines.asked) == 32
    assert {"e000", "e099"} <= found.keys()
    assert (await reader.look(endpoints(100), most=32)).keys() == found.keys()


async def test_an_engine_without_figures_is_asked_less_and_less_until_it_has_some():
    engines, clock = Engines(**{"10.0.0.0": None}), FakeClock()
    reader = EngineReader(read=engines.read, clock=clock, apart=here)
    looks = []
    for _ in range(40):
        before = len(engines.asked)
        assert await reader.look(endpoints(1), most=4) == {}
        looks.append(len(engines.asked) - before)
    asked = [place for place, each in enumerate(looks) if each]
    assert asked[:5] == [0, 2, 5, 10, 19]
    assert max(b - a for a, b in pairwise(asked)) == MOST_SKIPPED + 1
    engines.texts.clear()
    for _ in range(MOST_SKIPPED + 1):
        found = await reader.look(endpoints(1), most=4)
    assert found


async def test_an_engine_at_another_address_is_asked_at_once():
    engines, clock = Engines(**{"10.0.0.0": None}), FakeClock()
    reader = EngineReader(read=engines.read, clock=clock, apart=here)
    await reader.look(endpoints(1), most=4)
    assert await reader.look({"e000": Endpoint(host="10.0.0.9", port=8000)}, most=4)


@pytest.mark.parametrize(("tiers", "most"), [(0, 32), (1, 32), (10, 20), (50, 4), (1000, 4)])
def test_the_more_tiers_the_fewer_engines_of_each_are_asked(tiers: int, most: int) -> None:
    assert most_engines(tiers) == most


def test_the_more_engines_are_asked_the_longer_a_look_takes() -> None:
    assert pause_between(10) == INTERVAL
    assert pause_between(400) == 4.0


def known(*pods: dict) -> Known:
    found = Known()
    found.list_tiers([tier()], namespace="", now=0.0)
    found.list_pods(pods, namespace="")
    return found


async def test_readings_of_ready_engines_go_to_their_tier():
    engines, pools, clock = Engines(), Pools(), FakeClock()
    pods = [pod("a"), pod("b", address="10.0.0.2"), pod("c", ready=False), pod("d", tier="other")]
    source = DirectSource(
        known=known(*pods), pools=pools, read=engines.read, clock=clock, jitter=lambda: 0.5
    )
    assert await source.look(asyncio.Event()) == 2
    assert sorted(engines.asked) == ["10.0.0.1", "10.0.0.2"]
    assert pools.tiers[KEY].waiting == 0
    assert pools.tiers[KEY].tells(now=0.0)
    assert pools.complete == [KEY]


async def test_engines_that_do_not_all_answer_are_no_proof_of_their_number():
    pools = Pools()
    engines = Engines(**{"10.0.0.2": None})
    pods = [pod("a"), pod("b", address="10.0.0.2")]
    source = DirectSource(
        known=known(*pods), pools=pools, read=engines.read, clock=FakeClock(), jitter=lambda: 0.5
    )
    await source.look(asyncio.Event())
    assert pools.complete == []


async def test_one_tier_s_failure_keeps_no_other_from_its_figures(caplog):
    pools, found = Pools(), known(pod("a"), pod("z", namespace="other"))
    found.list_tiers([tier(), tier(namespace="other")], namespace="", now=0.0)
    pools.tiers["other", "llama"] = PoolTokens()
    pools.tiers["other", "llama"].take = None  # type: ignore[method-assign, assignment]
    clock = FakeClock()
    source = DirectSource(
        known=found, pools=pools, read=Engines().read, clock=clock, jitter=lambda: 0.5
    )
    look = asyncio.create_task(source.look(asyncio.Event()))
    for _ in range(50):
        await clock.advance(0.1)
        await asyncio.sleep(0.005)
    await look
    assert pools.tiers[KEY].tells(now=clock.monotonic())
    assert "other/llama: no look at its engines" in caplog.text


async def test_prometheus_readings_go_to_the_tiers_of_their_pods():
    from kvtier.engines.hits import read_tokens
    from kvtier.limiter.tokens import Reading

    counters = read_tokens(TEXT)
    assert counters is not None

    async def read():
        return {
            ("prefill", "a"): Reading(counters, 5.0),
            ("prefill", "unknown"): Reading(counters, 5.0),
        }

    pools = Pools()
    source = PrometheusSource(
        known=known(pod("a"), pod("b")), pools=pools, read=read, clock=FakeClock(), jitter=lambda: 0
    )
    await source.look()
    assert pools.tiers[KEY].waiting == 0
    assert list(pools.tiers[KEY]._engines) == ["a"]
