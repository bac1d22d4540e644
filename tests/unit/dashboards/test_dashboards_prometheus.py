"""Every query of every dashboard, run by a real Prometheus that scrapes kvtier's real exposition.

The limiter is a real process that is asked; the controller's and the webhook's metrics are those of
tests/shown_tiers.py. tests/cluster has the same of a tier on a cluster.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from local_prometheus import Prometheus, prometheus

import shown_tiers
from dashboards import Query, dashboard_queries
from limiter_process import limiter, until
from webhook_process import free_port

WINDOW = "5s"
SECONDS = 60.0
"""Within which everything must have returned something; it takes some three, on a machine that
has little else to do."""
TIERS = {
    "prod/llama": {"mode": "Enforce", "limit": 2000.0, "max_queued": 4000.0},
    "calm/llama": {"mode": "Observe"},
}
PROMPT = {"x-prompt-tokens": "500"}


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    tiers = folder / "tiers.json"
    tiers.write_text(json.dumps(TIERS))
    ports = {job: free_port() for job in ("controller", "webhook", "limiter")}
    command = [sys.executable, shown_tiers.__file__]
    command += [f"--{job}={ports[job]}" for job in ("controller", "webhook")]
    shown = subprocess.Popen(command)
    done = threading.Event()
    try:
        with (
            limiter(ports["limiter"], tiers=tiers) as asked,
            prometheus(folder, targets=ports) as found,
        ):

            def ask() -> None:
                while not done.wait(0.05):
                    for tier in TIERS:
                        asked.get(f"/v1/admit/{tier}", **PROMPT)

            asking = threading.Thread(target=ask)
            asking.start()
            try:
                yield found
            finally:
                done.set()
                asking.join()
    finally:
        shown.kill()
        shown.wait()


def empty(scraped: Prometheus, queries: list[Query]) -> list[Query]:
    return [query for query in queries if not scraped.query(query.expr)]


def always_empty(scraped: Prometheus, queries: list[Query]) -> list[Query]:
    """Those that return nothing for so long."""
    left, end = empty(scraped, queries), time.monotonic() + SECONDS
    while left and time.monotonic() < end:
        time.sleep(0.2)
        left = empty(scraped, left)
    return left


def test_every_query_returns_something_of_a_tier_in_a_storm(scraped: Prometheus) -> None:
    namespace, tier = shown_tiers.STORM
    queries = dashboard_queries(namespace=namespace, tier=tier, window=WINDOW)
    assert len(queries) > 100
    # Its link is below B*, where no hit is long enough.
    no_least_hit = {"kvtier_break_even_minimum_hit_tokens"}
    queries = [query for query in queries if query.metrics != no_least_hit]
    assert [str(query) for query in always_empty(scraped, queries)] == []


def test_of_a_healthy_tier_only_those_are_empty_that_may_be(scraped: Prometheus) -> None:
    namespace, tier = shown_tiers.CALM
    queries = dashboard_queries(namespace=namespace, tier=tier, window=WINDOW)
    must = [query for query in queries if not query.may_be_empty]
    assert [str(query) for query in always_empty(scraped, must)] == []
    none = {query.panel for query in empty(scraped, queries)}
    assert {"Limit", "Each limiter's share", "Certificate", "Drain", "Loads that failed"} <= none


def test_of_a_tier_that_is_not_there_no_panel_shows_another_ones_figures(
    scraped: Prometheus,
) -> None:
    queries = dashboard_queries(namespace="prod", tier="no-such-tier", window=WINDOW)
    of_a_tier = [query for query in queries if 'tier="no-such-tier"' in query.expr]
    assert len(of_a_tier) > 60
    shown = {query.panel for query in of_a_tier} - {
        query.panel for query in empty(scraped, of_a_tier)
    }
    # The one that says 0 where nothing fires.
    assert shown == {"Alerts firing"}


def test_a_query_with_a_wrong_label_or_word_would_be_empty(scraped: Prometheus) -> None:
    """That the tests above can fail."""
    for wrong in ('kvtier_admission_state{state="Strom"}', "kvtier_tier_condition{status='maybe'}"):
        assert scraped.query(wrong) == []
    with pytest.raises(AssertionError, match="parse error"):
        scraped.query("sum by (")


def test_the_storms_figures_come_out_as_they_went_in(scraped: Prometheus) -> None:
    """A panel that adds where it should take the most would show something, too."""

    def figure(board: str, panel: str) -> float:
        (query,) = [
            query
            for query in dashboard_queries(namespace="prod", tier="llama", window=WINDOW)
            if (query.dashboard, query.panel) == (f"kvtier-{board}", panel)
        ]
        rows: list[dict[str, Any]] = []

        def returned() -> bool:
            rows[:] = scraped.query(query.expr)
            return bool(rows)

        # Prometheus forgets a target's figures while a scrape of it fails, as one in a busy
        # moment does.
        until(returned, seconds=SECONDS)
        (row,) = rows
        return float(row["value"][1])

    assert figure("fleet", "Ranks missing") == 1
    assert figure("fleet", "In a storm") == figure("fleet", "Not Ready") == 1
    assert figure("tier", "B / B*") == pytest.approx(1.1e9 / (327_680 * 5000))
    assert figure("tier", "Fetching a token over computing it") > 1
    assert figure("storm", "Limit") == 14e3
    assert 0 < figure("storm", "Share that is shed") < 1


def test_the_rules_see_the_same_storm_and_nothing_wrong_with_the_healthy_tier(
    scraped: Prometheus,
) -> None:
    """The chart's alerts without a ``for:``, over figures that nobody made for them."""
    storm = {"KVCacheTierNotReady", "KVTierFetchSlowerThanRecompute", "KVTierRankDown"}
    storm |= {"KVTierStorm", "KVTierUndersizedForZeroHit"}

    def firing(namespace: str) -> set[str]:
        rows = scraped.query(f'ALERTS{{alertstate="firing", namespace="{namespace}"}}')
        return {row["metric"]["alertname"] for row in rows}

    until(lambda: storm <= firing("prod"), seconds=SECONDS)
    assert firing("calm") == set()
