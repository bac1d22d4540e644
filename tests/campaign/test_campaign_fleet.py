"""The fleet of engines that judges rollouts, itself judged: it carries load, and it can fail."""

import time
from dataclasses import replace

from livecluster.fixtures import NewTier
from livecluster.fleet import TIER_SPEC, Runs, fleet
from livecluster.fleet_told import STALLED_SECONDS, Told
from livecluster.waiting import eventually

READS = 20_000
MISS_SECONDS = 1.0
SLACK = 3.0
"""By how much a busy machine may be slower than what is asserted is meant for."""


def test_a_fleet_reads_what_it_stored_through_a_rolling_restart(new_tier: NewTier) -> None:
    tier = new_tier("chat")
    tier.apply(TIER_SPEC)
    tier.wait_ready()
    with fleet(tier, replicas=2) as engines:
        engines.deploy()
        engines.wait_rolled()
        first = {pod["metadata"]["name"] for pod in engines.pods()}
        engines.wait("hit")
        # The same weights under another template: what the old pods stored is right for the new.
        begun = time.time()
        tier.kubectl("rollout", "restart", f"deployment/{engines.name}")
        engines.wait_rolled()
        engines.wait("hit", since=begun)
        eventually(
            lambda: engines.counts().reads >= READS,
            seconds=90,
            what=f"{READS} values are read",
            detail=engines.detail,
        )
        last = {pod["metadata"]["name"] for pod in engines.pods()}
        engines.delete()
        counts, told = engines.counts(), engines.timeline()
    assert not first & last
    assert {each.pod for each in told} >= first | last
    assert all(each.final for each in told), "a pod ended without its totals"
    assert counts.wrong == 0
    assert counts.hits == counts.reads >= READS
    assert counts.writes > 0
    assert counts.denied == counts.refused == 0
    assert counts.errors == 0
    assert counts.longest < SLACK * STALLED_SECONDS, counts


def test_other_weights_under_the_same_secret_are_seen_by_both_sides(new_tier: NewTier) -> None:
    tier = new_tier("chat")
    tier.apply(TIER_SPEC)
    tier.wait_ready()
    # Its pod is outside of the pool and says what the tier declares: nothing that kvtier could see.
    with (
        fleet(tier, replicas=1) as engines,
        fleet(tier, replicas=1, name="stray", in_pool=False) as strays,
    ):
        engines.deploy()
        engines.wait("hit")
        assert engines.counts().wrong == 0
        right = Runs.as_declared(tier)
        strays.deploy(replace(right, seed="changed in place"))
        strays.wait("wrong")
        written = strays.wait("write").moments["write"][0]
        met = engines.wait("wrong").moments["wrong"][0]
        assert met >= written, "a wrong value was read before one was written"
        for side in (engines, strays):
            assert side.counts().stale > 0
            assert side.counts().foreign == side.counts().corrupt == 0


def test_a_fleet_rolls_forth_and_back(new_tier: NewTier) -> None:
    tier = new_tier("chat")
    tier.apply(TIER_SPEC)
    tier.wait_ready()
    with fleet(tier, replicas=1) as engines:
        engines.deploy()
        engines.wait_rolled()
        engines.roll(seed="changed in place")
        engines.wait_rolled()
        engines.roll_back()
        assert engines.runs.seed == ""
        engines.wait_rolled()
        engines.delete()
        stamps = [told.weights for told in engines.timeline()]
    first, second, third = stamps
    assert first == third != second


def test_an_engine_takes_up_what_changes_in_its_secret(new_tier: NewTier) -> None:
    tier = new_tier("chat")
    tier.apply(TIER_SPEC)
    tier.wait_ready()
    with fleet(tier, replicas=1) as engines:
        engines.deploy()
        engines.wait_rolled()
        engines.wait("hit")
        tier.patch({"pool": {"prefillRate": [{"tokensPerSecond": 10_000}]}})
        tier.wait_ready()

        def second() -> list[Told]:
            engines.hand_on()
            return [told for told in engines.timeline() if told.stretch and told.counts.hits]

        eventually(second, seconds=60, what="another stretch with hits", detail=engines.detail)
        before, after = engines.timeline()
    assert before.pod == after.pod
    assert before.final
    assert before.counts.wrong == after.counts.wrong == 0


def test_engines_that_lose_their_keys_miss_at_once_and_none_of_them_waits(
    new_tier: NewTier,
) -> None:
    tier = new_tier("chat")
    tier.apply(TIER_SPEC)
    tier.wait_ready()
    client = tier.engine()
    operator = tier.secret(f"{tier.name}-operator")["token"]
    with fleet(tier, replicas=2) as engines:
        engines.deploy()
        engines.wait_rolled()
        engines.wait("hit")
        taken = time.time()
        for rank in client.ranks:
            with client.connect(rank, username="operator", password=operator) as session:
                session.execute_command("ACL", "SETUSER", client.token, "resetkeys")
        denied = engines.wait("denied", since=taken).moments["denied"][0]
        for rank in client.ranks:
            with client.connect(rank, username="operator", password=operator) as session:
                keys = f"~{client.prefix(rank)}@*"
                session.execute_command("ACL", "SETUSER", client.token, keys)
        engines.wait("hit", since=time.time())
        counts = engines.counts()
    assert 0 < denied - taken < SLACK * MISS_SECONDS
    assert counts.refused > 0
    assert counts.errors == counts.wrong == 0
    assert counts.longest < SLACK * STALLED_SECONDS, counts
