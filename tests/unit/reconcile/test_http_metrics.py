"""/metrics over HTTP: what it answers to those who ask for either format."""

from collections.abc import AsyncIterator

import aiohttp
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

from kvtier.metrics import Metrics
from kvtier.reconcile.http import serve
from webhook_process import free_port

PROMETHEUS = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.4"
TIERS = 2000


@pytest.fixture
def metrics() -> Metrics:
    found = Metrics()
    for number in range(TIERS):
        found.set_tier("serving", f"t{number}", ranks=8, ready=number % 9)
    return found


@pytest.fixture
async def url(metrics: Metrics) -> AsyncIterator[str]:
    port = free_port()
    async with serve(
        listen=f"127.0.0.1:{port}",
        registry=metrics.process,
        tiers=metrics.tiers,
        is_ready=lambda: True,
    ):
        yield f"http://127.0.0.1:{port}/metrics"


@pytest.mark.parametrize(
    ("accept", "kind", "parse"),
    [("", "text/plain", plain), (PROMETHEUS, "application/openmetrics-text", openmetrics)],
)
async def test_both_formats_have_every_series_once(
    url: str, metrics: Metrics, accept: str, kind: str, parse: object
) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, headers={"Accept": accept}) as r,
    ):
        assert (r.status, r.content_type) == (200, kind)
        text = await r.text()
    families = list(parse(text))  # type: ignore[operator]
    told = {family.name for family in families}
    assert {family.name for family in metrics.registry.collect()} - {"process"} <= told
    assert len(told) == len(families)
    ready = [s for f in families for s in f.samples if s.name == "kvtier_tier_ranks_ready"]
    assert [sample.value for sample in ready] == [number % 9 for number in range(TIERS)]
    assert text.count("# EOF") == (kind != "text/plain")
