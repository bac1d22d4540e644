"""Engines' figures from a Prometheus, and from whatever else answers at its address."""

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from kvtier.limiter import prometheus
from kvtier.limiter.prometheus import PrometheusReader, query, readings

METRICS = Path(__file__).parents[1] / "engines" / "metrics"
POD = {"namespace": "prefill", "pod": "engine-0"}


def matrix(*series: dict) -> bytes:
    data = {"resultType": "matrix", "result": list(series)}
    return json.dumps({"status": "success", "data": data}).encode()


def scraped(name: str, *, at: float, pod: dict[str, str] = POD) -> list[dict]:
    """A real engine's text as Prometheus has it: what the query asks for of it, newest last."""
    wanted = re.compile(re.search(r'__name__=~"([^"]+)"', query())[1])
    return [
        {
            "metric": {"__name__": sample.name, **sample.labels, **pod},
            "values": [[at - 15, "0"], [at, str(sample.value)]],
        }
        for family in text_string_to_metric_families((METRICS / f"{name}.prom").read_text())
        for sample in family.samples
        if wanted.fullmatch(sample.name)
    ]


def test_a_pod_s_newest_samples_are_one_reading_of_it() -> None:
    found = readings(matrix(*scraped("vllm-0.32.0-hits", at=1000.5)))
    (reading,) = found.values()
    assert found.keys() == {("prefill", "engine-0")}
    assert reading.at == 1000.5
    assert (reading.counters.prompt, reading.counters.computed) == (197_784, 174_744)
    assert reading.counters.waiting == 0
    assert reading.counters.started > 1e9


def test_pods_are_told_apart_and_a_pod_s_other_metrics_count_with_it() -> None:
    other = {"namespace": "prefill", "pod": "engine-1"}
    found = readings(
        matrix(
            *scraped("vllm-0.32.0-hits", at=10),
            *scraped("lmcache-0.5.6-mp-after", at=12),
            *scraped("vllm-0.32.0-idle", at=11, pod=other),
        )
    )
    first, second = found["prefill", "engine-0"], found["prefill", "engine-1"]
    assert (first.counters.source, first.counters.hit, first.at) == (
        "lmcache_mp_lookup_hit_l2_tokens_total",
        18_432,
        12,
    )
    assert (second.counters.hit, second.counters.prompt) == (0, 2064)


def test_series_that_make_no_sense_are_left_out() -> None:
    good = scraped("vllm-0.32.0-idle", at=10)
    bad = [
        {},
        {"metric": {"__name__": "vllm:prompt_tokens_total"}, "values": [[1, "5"]]},
        {"metric": {"__name__": "vllm:prompt_tokens_total", **POD}, "values": []},
        {"metric": {"__name__": "vllm:prompt_tokens_total", **POD}, "values": [[1, "NaN"]]},
        {"metric": {"__name__": "vllm:prompt_tokens_total", **POD}, "values": [[1, "-1"]]},
        {
            "metric": {"__name__": "vllm:prompt_tokens_total", **POD, "x": "y" * 999},
            "values": [[1, "1"]],
        },
        {"metric": [], "values": [[1, "1"]]},
    ]
    assert readings(matrix(*good, *bad)) == readings(matrix(*good))


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"data": {"result": 5}}', b"\xff"])
def test_what_is_no_matrix_is_an_error(body: bytes) -> None:
    with pytest.raises(ValueError):
        readings(body)


def test_the_query_asks_for_raw_samples_of_half_a_minute_and_of_the_namespaces_alone() -> None:
    assert query().endswith(',pod!=""}[30s]')
    assert ',namespace=~"a|b"}[30s]' in query(("a", "b"))
    assert "vllm:prompt_tokens_by_source_total|" in query()


@asynccontextmanager
async def asking(
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> AsyncIterator[PrometheusReader]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/prom/"
    async with aiohttp.ClientSession() as session:
        yield PrometheusReader(url, session=session, namespaces=("prefill",))
    await runner.cleanup()


async def test_one_query_a_look_is_asked_below_the_address_that_was_given():
    asked = []

    async def handler(request: web.Request) -> web.Response:
        asked.append((request.path, (await request.post())["query"]))
        return web.Response(body=matrix(*scraped("vllm-0.32.0-idle", at=10)))

    async with asking(handler) as reader:
        assert len(await reader.read()) == 1
    assert asked == [("/prom/api/v1/query", query(("prefill",)))]


@pytest.mark.parametrize("answer", ["status", "size", "rubbish", "redirect"])
async def test_an_answer_that_is_none_gives_no_readings_and_is_said_once(
    answer: str, caplog, monkeypatch
):
    monkeypatch.setattr(prometheus, "MOST_BYTES", 1000)

    async def handler(request: web.Request) -> web.StreamResponse:
        if answer == "redirect":
            raise web.HTTPFound("/elsewhere")
        if answer == "status":
            return web.Response(status=503, text="overloaded")
        return web.Response(text="x" * (2000 if answer == "size" else 10))

    async with asking(handler) as reader:
        assert await reader.read() == {}
        assert await reader.read() == {}
    assert len([each for each in caplog.records if "--prometheus" in each.getMessage()]) == 1


async def test_nobody_waits_for_a_prometheus_that_does_not_answer(monkeypatch):
    import asyncio

    monkeypatch.setattr(prometheus, "TIMEOUT", 0.1)

    async def handler(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(30)
        return web.Response()

    async with asking(handler) as reader:
        assert await reader.read() == {}
