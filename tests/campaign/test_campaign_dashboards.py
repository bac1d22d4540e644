"""Every query of the dashboards, in a real Prometheus beside a tier that serves traffic."""

from pathlib import Path

import pytest

from dashboards import dashboard_queries
from livecluster.cluster import LiveCluster
from livecluster.fixtures import NewTier
from livecluster.gateway import gateway
from livecluster.installation import Installation
from livecluster.monitoring import monitoring
from livecluster.probing import probed
from livecluster.storm_load import traffic
from livecluster.storms import TRAFFIC, limited, limiter_addresses, warm
from livecluster.waiting import eventually

SECONDS = 300.0
"""Until Prometheus has everything: engines are read twice in two minutes, ranks every 15 s."""


@pytest.mark.timeout(900)
def test_every_query_of_the_dashboards_returns_something_of_a_tier_that_serves(
    new_tier: NewTier, kvtier: Installation, live: LiveCluster, tmp_path: Path
) -> None:
    with (
        limited(kvtier),
        warm(new_tier("boards")) as pool,
        gateway(
            tmp_path,
            tier=f"{pool.tier.namespace}/{pool.tier.name}",
            engines=pool.addresses(),
            limiters=limiter_addresses(live),
        ) as envoy,
        traffic(f"{envoy.url}/v1/completions", TRAFFIC, seed=3),
        monitoring(live, tmp_path, settings=["limiter.enabled=true"]) as watched,
    ):
        tier = pool.tier
        probed(tier)
        left = [
            query
            for query in dashboard_queries(namespace=tier.namespace, tier=tier.name, window="10s")
            if not query.may_be_empty
        ]
        assert len(left) > 90

        def all_there() -> bool:
            left[:] = [query for query in left if not watched.query(query.expr)]
            return not left

        eventually(
            all_there,
            seconds=SECONDS,
            what="every query returns something",
            detail=lambda: [str(query) for query in left],
        )
