"""Editing a tier that serves: what is taken live, and what restarts ranks and how."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from livecluster.fixtures import NewTier
from livecluster.installation import RESYNC
from livecluster.tier import Tier
from livecluster.waiting import eventually, never

CHUNKS = 8
RESTART_SECONDS = 30.0


def served(new_tier: NewTier, *, ranks: int = 2) -> Tier:
    tier = new_tier("chat")
    tier.apply({"pool": {"ranks": ranks}})
    tier.wait_ready()
    tier.engine().store(chunks=CHUNKS)
    return tier


def settings(tier: Tier, *names: str) -> list[dict[str, str]]:
    """What every rank's server says, asked as the operator."""
    token = tier.secret(f"{tier.name}-operator")["token"]
    engine = tier.engine()
    found = []
    for rank in engine.ranks:
        with engine.connect(rank, username="operator", password=token) as client:
            shown: Any = client.config_get(*names)
        found.append({name: str(value) for name, value in shown.items()})
    return found


def configured(tier: Tier, name: str) -> str:
    """The value in the ConfigMap that the next start reads."""
    found = tier.child("configmaps", f"{tier.name}-valkey")
    assert found is not None
    pairs: Iterator[list[str]] = (
        line.split(maxsplit=1) for line in found["data"]["valkey.conf"].splitlines()
    )
    return next(value for key, value in pairs if key == name)


def wait_restarted(tier: Tier, before: dict[int, str]) -> None:
    """Every rank runs in another container than before, and the tier is ready."""

    def restarted() -> bool:
        now = tier.containers()
        return now.keys() == before.keys() and not set(now.values()) & set(before.values())

    eventually(
        restarted, seconds=RESTART_SECONDS, what="all ranks restarted", detail=tier.containers
    )
    tier.wait_ready()


def test_another_eviction_policy_is_taken_live_by_every_rank(new_tier: NewTier) -> None:
    tier = served(new_tier)
    before = tier.containers()
    assert settings(tier, "maxmemory-policy") == [{"maxmemory-policy": "allkeys-lru"}] * 2
    tier.patch({"store": {"eviction": "LFU"}})
    tier.wait_ready()
    assert settings(tier, "maxmemory-policy") == [{"maxmemory-policy": "allkeys-lfu"}] * 2
    assert configured(tier, "maxmemory-policy") == "allkeys-lfu"
    assert tier.containers() == before
    assert tier.engine().hits(chunks=CHUNKS) == {0: CHUNKS, 1: CHUNKS}


def test_room_for_more_engines_is_made_live_on_every_rank(new_tier: NewTier) -> None:
    tier = served(new_tier)
    before, token = tier.containers(), tier.engine().token
    # Twice 8 connections of each engine, and 32 for others.
    assert settings(tier, "maxclients") == [{"maxclients": str(2 * 8 * 2 + 32)}] * 2
    tier.patch({"pool": {"maxEngines": 25}})
    tier.wait_ready()
    # The buffers of 200 connections of two chunks of 64 KiB are more than what is kept otherwise.
    maxmemory = (64 << 20) - 2 * 200 * (64 << 10)
    expected = {"maxclients": str(2 * 8 * 25 + 32), "maxmemory": str(maxmemory)}
    assert settings(tier, "maxclients", "maxmemory") == [expected] * 2
    assert {name: configured(tier, name) for name in expected} == expected
    assert tier.containers() == before
    engine = tier.engine()
    assert engine.connection["maxEngines"] == 25
    assert engine.token == token
    assert engine.hits(chunks=CHUNKS) == {0: CHUNKS, 1: CHUNKS}


def test_more_memory_restarts_all_ranks_in_one_storm_and_says_what_it_costs(
    new_tier: NewTier,
) -> None:
    tier = served(new_tier, ranks=4)
    before, token = tier.containers(), tier.engine().token
    tier.patch({"store": {"memoryPerRank": "80Mi"}})
    wait_restarted(tier, before)
    created = [
        datetime.fromisoformat(pod["metadata"]["creationTimestamp"]) for pod in tier.pods().values()
    ]
    assert (max(created) - min(created)).total_seconds() <= 5, "not in one storm"
    told = tier.warning("RestartingAllRanks")
    assert "all 4 ranks at once" in told
    assert "recomputed" in told
    assert "memory" in told, "which field asked for it?"
    (limit,) = {
        pod["spec"]["containers"][0]["resources"]["limits"]["memory"]
        for pod in tier.pods().values()
    }
    assert limit == "80Mi"
    assert tier.engine().token == token
    assert tier.engine().hits(chunks=CHUNKS) == dict.fromkeys(range(4), 0)
    settled = tier.containers()
    never(lambda: tier.containers() != settled, seconds=2 * RESYNC, what="ranks restarted again")


def test_pausing_holds_a_restart_until_it_is_lifted(new_tier: NewTier) -> None:
    tier = served(new_tier)
    before = tier.containers()
    tier.patch({"paused": True, "store": {"memoryPerRank": "80Mi", "eviction": "LFU"}})
    shown = tier.wait("StoreReady", "True", reason="Paused")
    assert "resources" in shown["message"], shown["message"]
    never(lambda: tier.containers() != before, seconds=2 * RESYNC, what="a rank restarted")
    assert settings(tier, "maxmemory-policy") == [{"maxmemory-policy": "allkeys-lru"}] * 2
    assert tier.condition("Ready")["status"] == "True"
    assert tier.engine().hits(chunks=CHUNKS) == {0: CHUNKS, 1: CHUNKS}
    tier.patch({"paused": False})
    wait_restarted(tier, before)
    assert settings(tier, "maxmemory-policy") == [{"maxmemory-policy": "allkeys-lfu"}] * 2


def test_a_rollout_restart_of_one_rank_restarts_that_rank_only_and_warns(
    new_tier: NewTier,
) -> None:
    tier = served(new_tier)
    before = tier.containers()
    tier.kubectl("rollout", "restart", "statefulset/chat-r1")
    eventually(
        lambda: tier.containers().get(1, before[1]) != before[1],
        seconds=RESTART_SECONDS,
        what="rank 1 restarted",
    )
    tier.wait_ready()
    after = tier.containers()
    assert after[0] == before[0]
    told = tier.warning("RestartingRanks")
    assert "rank 1 of 2" in told
    assert "losing one rank loses the tier" in told
    never(lambda: tier.containers() != after, seconds=2 * RESYNC, what="a rank restarted again")
    assert tier.engine().hits(chunks=CHUNKS) == {0: CHUNKS, 1: 0}
