"""From one generation to the next on real ranks, with engines that check every byte they get."""

import time
from dataclasses import replace

import pytest
import valkey

from livecluster.fence_time import EIGHT_RANKS, seconds_to_gone
from livecluster.fixtures import NewTier
from livecluster.fleet import Runs, fleet
from livecluster.generations import FENCED_SECONDS, Generations, rolled
from livecluster.tier import Tier
from livecluster.waiting import eventually

SLACK = 3.0
"""By how much a busy machine may be slower than what is promised."""
GONE_SECONDS = 2.0 * SLACK
"""From a change that fences at once to the last answer with a value of the fenced generation."""
MISS_SECONDS = 1.0 * SLACK
"""From the fence on a rank to the first miss of an engine that reads all the time."""
OLD, NEW = {"model": {"revision": "1"}}, {"model": {"revision": "2"}}
RANKS = 2

pytestmark = pytest.mark.timeout(900)


def served(new_tier: NewTier, **rollout: object) -> tuple[Tier, Generations, str, str]:
    """A Ready tier, and the ids of its generation and of the next."""
    tier = new_tier("chat")
    tier.apply(rolled(OLD, **rollout))
    tier.wait_ready()
    generations = Generations(tier)
    old, new = (generations.id_of(rolled(each, **rollout)) for each in (OLD, NEW))
    assert generations.state(old) == "Live"
    return tier, generations, old, new


def test_a_rolling_update_reads_no_stale_byte_and_leaves_nothing_of_the_old_generation(
    new_tier: NewTier,
) -> None:
    tier, generations, old, new = served(new_tier)
    token = tier.engine().token
    with fleet(tier, replicas=2) as engines:
        engines.deploy()
        engines.wait_rolled()
        engines.wait("hit")
        tier.apply(rolled(NEW))
        generations.wait(new, "Live", seconds=5 * SLACK)
        assert generations.state(old) == "Draining"
        time.sleep(12)
        assert generations.state(old) == "Draining", "no engine uses its successor"
        engines.roll(revision="2", generation=new)
        engines.wait_rolled()
        begun = time.time()
        generations.wait(old, "Fenced", "Purged", "gone", seconds=10 + 15 * SLACK)
        assert set(generations.reaches(old, token).values()) == {False}
        generations.hand_on()
        generations.wait(old, "Purged", "gone", seconds=FENCED_SECONDS * SLACK)
        assert generations.keys(old) == dict.fromkeys(range(RANKS), 0)
        generations.wait(old, "gone", seconds=60 * SLACK)
        engines.wait("hit", since=begun)
        engines.delete()
        counts = engines.counts()
    assert tier.child("secrets", f"{tier.name}-engine-{old}") is None
    assert generations.rows().keys() == {new}
    assert counts.wrong == 0
    assert counts.hits == counts.reads > 0
    assert counts.denied == counts.stalls == 0, counts
    told = [len(tier.events(f"Generation{what}")) for what in ("Fenced", "Purged", "Gone")]
    assert told == [1, 1, 1]


def test_a_rollback_midway_finds_the_cache_as_it_was(new_tier: NewTier) -> None:
    tier, generations, old, new = served(new_tier, drain="10m")
    with fleet(tier, replicas=2) as engines:
        engines.deploy()
        engines.wait_rolled()
        engines.wait("hit")
        stored = generations.keys(old)
        tier.apply(rolled(NEW, drain="10m"))
        generations.wait(new, "Live", seconds=5 * SLACK)
        engines.roll(revision="2", generation=new)
        eventually(
            lambda: engines.timeline(generation=new), seconds=90, what="an engine uses the new"
        )
        tier.apply(rolled(OLD, drain="10m"))
        generations.wait(old, "Live", seconds=5 * SLACK)
        engines.roll_back()
        engines.wait_rolled()
        kept = generations.keys(old)
        begun = time.time()
        engines.wait("hit", since=begun)
        engines.delete()
        counts, before = engines.counts(), engines.counts(generation=old)
    assert generations.state(new) == "Draining"
    assert all(kept[rank] >= stored[rank] > 0 for rank in stored)
    assert counts.wrong == counts.denied == counts.stalls == 0, counts
    # Users that a rank's file lacks until the kubelet brings it lose their sessions at each load.
    assert before.errors == 0, engines.detail()


def test_another_salt_takes_access_at_once_and_no_request_waits(new_tier: NewTier) -> None:
    tier, generations, old, _ = served(new_tier)
    token = tier.engine().token
    with fleet(tier, replicas=2) as engines:
        engines.deploy()
        engines.wait_rolled()
        engines.wait("hit")
        begun = time.time()
        tier.apply(rolled({"model": {"salt": "weights of today"}}))
        denied = engines.wait("denied", since=begun).moments["denied"][0]
        time.sleep(5)
        engines.delete()
        counts = engines.counts(generation=old)
        last = max(told.moments["hit"][1] for told in engines.timeline(generation=old))
    assert 0 < denied - begun < GONE_SECONDS + MISS_SECONDS
    assert last - begun < GONE_SECONDS
    assert set(generations.reaches(old, token).values()) == {False}
    assert generations.rows()[old]["cause"] == "SaltChanged"
    assert counts.denied > 0
    assert counts.wrong == counts.errors == counts.stalls == 0, counts


def test_a_pod_of_other_weights_poisons_nobody_after_the_fence_and_the_tier_heals(
    new_tier: NewTier,
) -> None:
    tier, generations, old, _ = served(new_tier)
    token = tier.engine().token
    with (
        fleet(tier, replicas=2) as engines,
        fleet(tier, replicas=1, name="poison") as strays,
    ):
        engines.deploy()
        engines.wait_rolled()
        engines.wait("hit")
        # The rollout that somebody forgot to give the new Secret.
        strays.deploy(replace(Runs.as_declared(tier), revision="2"))
        tier.wait("GenerationCurrent", "False", reason="GenerationContaminated", seconds=60)
        fenced = time.time()
        assert set(generations.reaches(old, token).values()) == {False}
        time.sleep(5)
        after = [
            told.moments["wrong"][1]
            for told in (*engines.timeline(), *strays.timeline())
            if "wrong" in told.moments
        ]
        assert not after or max(after) < fenced
        assert "revision" in tier.condition("GenerationCurrent")["message"]
        strays.delete()
        generations.hand_on()
        generations.wait(old, "Live", seconds=FENCED_SECONDS * SLACK)
        fresh = tier.engine().token
        assert fresh != token
        assert set(generations.reaches(old, token).values()) == {False}
        healed = time.time()
        engines.hand_on()
        engines.wait("hit", since=healed, seconds=FENCED_SECONDS * SLACK)
        engines.delete()
        late = [told.moments.get("wrong", [0, 0])[1] for told in engines.timeline()]
        assert max(late, default=0) < fenced
        assert engines.counts().stalls == 0
    assert len(tier.events("GenerationContaminated")) == 1


def test_a_leaked_token_is_worth_nothing_at_once_and_its_sessions_end(new_tier: NewTier) -> None:
    tier, generations, old, _ = served(new_tier)
    leaked = tier.engine()
    with leaked.session(0) as session:
        session.ping()
        tier.patch({"rollout": {"credentialEpoch": 1, "revocation": "Immediate"}})
        eventually(lambda: not _answers(session), seconds=GONE_SECONDS, what="the session is ended")
    assert tier.engine().token != leaked.token
    assert set(generations.reaches(old, leaked.token).values()) == {False}
    assert set(generations.reaches(old, tier.engine().token).values()) == {True}


def _answers(session: valkey.Valkey) -> bool:
    try:
        return bool(session.ping())
    except valkey.ValkeyError:
        return False


def test_access_is_gone_on_eight_ranks_within_two_seconds(new_tier: NewTier) -> None:
    tier = new_tier("chat")
    tier.apply(EIGHT_RANKS)
    tier.wait_ready()
    (generation,) = Generations(tier).rows()
    token = tier.engine().token

    def salted() -> None:
        tier.patch({"model": {"salt": "2"}})

    assert seconds_to_gone(tier, generation, token, salted, most=GONE_SECONDS) < GONE_SECONDS
