"""What tiers and pods say, and for how long it counts."""

from datetime import UTC, datetime, timedelta

import pytest
from signals_kit import pod, tier

from kvtier.limiter.known import LAPSE, Known, TierFacts

KEY = ("prefill", "llama")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def admission(**fields) -> dict:
    return {"admission": {"state": "Open", **fields}}


def known(*tiers: dict, now: float = 0.0) -> Known:
    found = Known()
    found.list_tiers(tiers, namespace="", now=now)
    return found


def facts(found: Known) -> TierFacts:
    return found.tiers[KEY]


def test_only_ready_engines_of_the_tier_count() -> None:
    found = Known()
    pods = [pod("a"), pod("b", ready=False), pod("c", tier="other"), pod("d", labels={})]
    leaving = pod("e", deletionTimestamp="2026-01-01T00:00:00Z")
    found.list_pods([*pods, leaving], namespace="")
    assert set(found.engines(KEY)) == {"a"}
    assert found.engines(("elsewhere", "llama")) == {}


def test_pods_come_become_ready_change_their_tier_and_go() -> None:
    found = Known()
    found.see_pod(pod("a", ready=False))
    assert not found.engines(KEY)
    found.see_pod(pod("a"))
    assert set(found.engines(KEY)) == {"a"}
    found.see_pod(pod("a", tier="other"))
    assert not found.engines(KEY)
    assert set(found.engines(("prefill", "other"))) == {"a"}
    found.lose_pod(pod("a", tier="other"))
    assert not found.engines(("prefill", "other"))
    found.lose_pod(pod("a"))


def test_a_list_of_one_namespace_drops_what_is_gone_there_and_nowhere_else() -> None:
    found = Known()
    found.list_pods([pod("a"), pod("b"), pod("c", namespace="other")], namespace="")
    found.list_pods([pod("b")], namespace="prefill")
    assert set(found.engines(KEY)) == {"b"}
    assert set(found.engines(("other", "llama"))) == {"c"}


def test_a_spec_that_is_wrong_leaves_the_last_that_was_right() -> None:
    found = known(tier())
    wrong = tier()
    wrong["spec"]["pool"]["prefillRate"] = []
    found.see_tier(wrong, now=1.0)
    assert facts(found).spec.pool.prefill_rate[0].tokens_per_second == 5000
    assert not known(wrong).tiers


def test_a_tier_that_is_deleted_counts_for_15_minutes_more() -> None:
    found = known(tier())
    found.lose_tier(tier(), now=100.0)
    found.lapse(now=100.0 + LAPSE)
    assert KEY in found.tiers
    found.lapse(now=101.0 + LAPSE)
    assert KEY not in found.tiers


def test_so_does_a_tier_that_is_missing_in_a_list_of_its_namespace() -> None:
    found = known(tier())
    found.list_tiers([], namespace="other", now=50.0)
    assert facts(found).gone_at is None
    found.list_tiers([], namespace="prefill", now=100.0)
    found.list_tiers([], namespace="prefill", now=200.0)
    assert facts(found).gone_at == 100.0
    found.see_tier(tier(), now=300.0)
    assert facts(found).gone_at is None


def test_the_operator_s_rate_counts_for_15_minutes_after_it_is_told_no_more() -> None:
    found = known(tier(status=admission(engineTokensPerSecond=4000)), now=100.0)
    found.see_tier(tier(), now=500.0)
    found.see_tier(tier(), now=900.0)
    assert facts(found).engine_rate(500.0 + LAPSE) == 4000
    assert facts(found).engine_rate(501.0 + LAPSE) is None
    found.see_tier(tier(uid="u2"), now=500.0)
    assert facts(found).engine_rate(500.0) is None


def test_a_rate_that_is_still_told_counts_for_as_long() -> None:
    found = known(tier(status=admission(engineTokensPerSecond=4000)), now=100.0)
    assert facts(found).engine_rate(1e9) == 4000


@pytest.mark.parametrize(
    ("fields", "planned"),
    [
        ({"state": "Storm", "reason": "Planned", "since": "2025-12-31T23:50:00Z"}, True),
        ({"state": "Storm", "reason": "Planned", "since": "2025-12-31T23:44:59Z"}, False),
        ({"state": "Storm", "reason": "Planned", "since": "2026-01-01T00:00:09Z"}, True),
        ({"state": "Storm", "reason": "RankLost", "since": "2025-12-31T23:50:00Z"}, False),
        ({"state": "Recovering", "reason": "Planned", "since": "2025-12-31T23:50:00Z"}, False),
        ({"state": "Storm", "reason": "Planned", "since": "soon"}, False),
        ({"state": "Storm", "reason": "Planned", "since": "2025-12-31T23:50:00"}, False),
        ({"state": "Storm", "reason": "Planned"}, False),
    ],
)
def test_a_planned_storm_counts_for_15_minutes(fields: dict, planned: bool) -> None:
    found = known(tier(status={"admission": fields}))
    assert facts(found).planned(NOW) is planned
    assert not facts(found).planned(NOW + timedelta(hours=1))


def test_a_status_that_makes_no_sense_says_nothing() -> None:
    for status in ({"admission": []}, {"admission": {"engineTokensPerSecond": "x"}}, {}):
        found = facts(known(tier(status=status)))
        assert (found.rate, found.mean_prompt, found.storm_factor) == (None, None, None)
