"""What ranks' servers say of themselves, as metrics, on fakes."""

import asyncio
from collections.abc import Iterator
from contextlib import asynccontextmanager

import pytest
from prometheus_client import generate_latest
from tier_harness import KEY, Operator

from kvtier.cluster.protocol import POD, TIER
from kvtier.reconcile.ranks import PERIOD, REST, RankWatcher
from kvtier.store.protocol import Address, Credentials

TOLD = {
    "uptime_in_seconds": "77",
    "used_memory": "1000",
    "maxmemory": "2000",
    "connected_clients": "5",
    "evicted_keys": "9",
    "keyspace_hits": "10",
    "keyspace_misses": "11",
    "total_net_input_bytes": "12",
    "total_net_output_bytes": "13",
    "acl_access_denied_auth": "1",
    "acl_access_denied_cmd": "2",
    "acl_access_denied_key": "3",
    "db0": "keys=4,expires=0,avg_ttl=0",
}
EXPECTED = {
    "kvtier_rank_up": 1,
    "kvtier_rank_uptime_seconds": 77,
    "kvtier_rank_used_bytes": 1000,
    "kvtier_rank_max_bytes": 2000,
    "kvtier_rank_keys": 4,
    "kvtier_rank_clients": 5,
    "kvtier_rank_evicted_keys_total": 9,
    "kvtier_rank_keyspace_hits_total": 10,
    "kvtier_rank_keyspace_misses_total": 11,
    "kvtier_rank_input_bytes_total": 12,
    "kvtier_rank_output_bytes_total": 13,
}


@pytest.fixture
def watcher(ready: Operator) -> RankWatcher:
    for pod in ("demo-r0-0", "demo-r1-0"):
        ready.server(pod).told = dict(TOLD)
    return RankWatcher(
        memory=ready.reconciler.memory,
        connect=ready.stores.connect,
        clock=ready.clock,
        metrics=ready.metrics,
    )


def value(operator: Operator, name: str, **more: str) -> float | None:
    labels = {"namespace": KEY[0], "tier": KEY[1], **more}
    return operator.metrics.registry.get_sample_value(name, labels)


async def test_each_figure_is_the_server_s(ready: Operator, watcher: RankWatcher) -> None:
    await watcher.look()
    assert {name: value(ready, name, rank="1") for name in EXPECTED} == EXPECTED
    denied = [
        value(ready, "kvtier_rank_denied_total", rank="0", reason=reason)
        for reason in ("auth", "command", "key")
    ]
    assert denied == [1, 2, 3]
    asked = value(ready, "kvtier_rank_asked_timestamp_seconds")
    assert asked == ready.clock.now().timestamp()


async def test_a_look_costs_one_info_of_each_rank_and_nothing_of_the_api_server(
    ready: Operator, watcher: RankWatcher
) -> None:
    servers = [ready.server(pod) for pod in ("demo-r0-0", "demo-r1-0")]
    before, requests = [len(each.calls) for each in servers], len(ready.cluster.requests)
    await watcher.look()
    asked = [each.calls[count:] for each, count in zip(servers, before, strict=True)]
    assert [[call.name for call in calls] for calls in asked] == [["connect", "info"]] * 2
    assert len(ready.cluster.requests) == requests


async def test_a_start_counts_when_it_is_seen_however_long_the_server_runs(
    ready: Operator, watcher: RankWatcher
) -> None:
    def restarts() -> list[float | None]:
        return [value(ready, "kvtier_rank_restarts_total", rank=rank) for rank in ("0", "1")]

    await watcher.look()
    assert restarts() == [0, 0]
    server = ready.server("demo-r1-0")
    server.restart()
    await watcher.look()
    assert restarts() == [0, 1]
    server.up = False
    await watcher.look()
    assert restarts() == [0, 1]
    server.up = True
    await watcher.look()
    assert restarts() == [0, 1]
    server.restart()
    await watcher.look()
    await watcher.look()
    assert restarts() == [0, 2]


async def test_a_rank_that_does_not_answer_is_down_and_has_no_figures(
    ready: Operator, watcher: RankWatcher
) -> None:
    await watcher.look()
    ready.server("demo-r1-0").up = False
    await watcher.look()
    assert [value(ready, "kvtier_rank_up", rank=rank) for rank in ("0", "1")] == [1, 0]
    assert value(ready, "kvtier_rank_keys", rank="1") is None
    assert value(ready, "kvtier_rank_denied_total", rank="1", reason="key") is None
    assert value(ready, "kvtier_rank_keys", rank="0") == 4
    ready.server("demo-r1-0").up = True
    await watcher.look()
    assert value(ready, "kvtier_rank_up", rank="1") == 1


async def test_a_rank_that_is_not_ready_is_down_and_is_not_asked(
    ready: Operator, watcher: RankWatcher
) -> None:
    ready.cluster.remove(POD, KEY[0], "demo-r1-0")
    ready.queue.add(KEY, dirty=frozenset({"StatefulSet"}))
    await ready.settle(kubelets=False)
    await watcher.look()
    assert [value(ready, "kvtier_rank_up", rank=rank) for rank in ("0", "1")] == [1, 0]


async def test_nothing_comes_back_of_a_tier_that_was_deleted_meanwhile(
    ready: Operator, watcher: RankWatcher
) -> None:
    held = asyncio.Event()

    @asynccontextmanager
    async def slow(address: Address, credentials: Credentials) -> Iterator[object]:
        await held.wait()
        async with ready.stores.connect(address, credentials) as store:
            yield store

    watcher._connect = slow  # type: ignore[assignment]
    looking = asyncio.create_task(watcher.look())
    await ready.clock.settle()
    ready.cluster.remove(TIER, *KEY)
    await ready.settle()
    held.set()
    await looking
    text = generate_latest(ready.metrics.registry).decode()
    assert 'tier="demo"' not in text


async def test_it_asks_over_tls_by_the_rank_s_name(served: Operator) -> None:
    watcher = RankWatcher(
        memory=served.reconciler.memory,
        connect=served.stores.connect,
        clock=served.clock,
        metrics=served.metrics,
    )
    await watcher.look()
    assert value(served, "kvtier_rank_up", rank="0") == 1


async def test_one_tier_s_trouble_is_not_another_s(ready: Operator, watcher: RankWatcher) -> None:
    broken = ready.reconciler.memory.of(("a", "broken"))
    broken.ranks = ready.reconciler.memory.of(KEY).ranks
    broken.record = object()  # type: ignore[assignment]
    await watcher.look()
    assert value(ready, "kvtier_rank_up", rank="0") == 1


async def test_rounds_that_take_long_leave_the_rest_of_the_time_to_others(
    ready: Operator, watcher: RankWatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[float] = []
    took = 0.0

    async def look() -> None:
        began.append(ready.clock.monotonic())
        await ready.clock.wait(asyncio.Event(), took)

    monkeypatch.setattr(watcher, "look", look)
    running = asyncio.create_task(watcher.run(asyncio.Event()))
    await ready.clock.advance(3 * PERIOD + 1)
    assert [at - began[0] for at in began] == [0, PERIOD, 2 * PERIOD]
    took = 20.0
    await ready.clock.advance(200)
    assert began[-1] - began[-2] == took + REST * took
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
