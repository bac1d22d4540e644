"""What becomes of generations: timelines of one tier, each step followed by a look."""

from collections.abc import Callable

import pytest
from lifecycle_world import RANKS, TIMEOUT, Tier, named

from kvtier.api.rollout import OnPoolDrift, Revocation
from kvtier.generation.acl import users
from kvtier.generation.entry import Cause, GenerationState, Retirement
from kvtier.generation.lifecycle import MOST_GENERATIONS

State = GenerationState
A, B, C = named("r1"), named("r2"), named("r3")
A2 = named("r1", "2")
Act = Callable[[Tier], object]


def spec(revision: str, salt: str = "1") -> Act:
    return lambda tier: setattr(tier, "wanted", (revision, salt))


def pod(name: str, revision: str, mounts: str | None, *, ready: bool = True) -> Act:
    return lambda tier: tier.run(name, revision=revision, mounts=mounts, ready=ready)


def gone(name: str) -> Act:
    return lambda tier: tier.pods.pop(name)


def stored(name: str) -> Act:
    return lambda tier: tier.write(name)


def policy(**changes: object) -> Act:
    return lambda tier: tier.set_policy(**changes)


def passes(seconds: float) -> Act:
    return lambda tier: tier.settle(seconds)


def restarted(tier: Tier) -> None:
    tier.start()


USED = TIMEOUT + 5
ROLLED = (pod("old", "r1", A), spec("r2"), passes(0), pod("new", "r2", B))

TIMELINES: dict[str, tuple[tuple[Act, ...], dict[str, str]]] = {
    "published at once": ((spec("r2"),), {A: "Draining", B: "Live"}),
    "nobody uses the new one": (
        (pod("old", "r1", A), spec("r2"), passes(10 * TIMEOUT)),
        {A: "Draining", B: "Live"},
    ),
    "the new one is not Ready": (
        (spec("r2"), passes(0), pod("new", "r2", B, ready=False), passes(10 * TIMEOUT)),
        {A: "Draining", B: "Live"},
    ),
    "not yet": ((*ROLLED, passes(TIMEOUT - 5)), {A: "Draining", B: "Live"}),
    "drained and mounted still": ((*ROLLED, passes(USED)), {A: "Purged", B: "Live"}),
    "drained, and a pod without sessions mounts it still": (
        (*ROLLED, pod("old", "r1", A, ready=False), passes(USED)),
        {A: "Purged", B: "Live"},
    ),
    "drained and left": ((*ROLLED, passes(USED), gone("old"), passes(0)), {B: "Live"}),
    "the last engine goes and comes": (
        (*ROLLED, passes(50), gone("new"), passes(0), pod("new", "r2", B), passes(50)),
        {A: "Draining", B: "Live"},
    ),
    "rolled back": ((*ROLLED, passes(50), spec("r1")), {A: "Live", B: "Draining"}),
    "rolled back after the fence": (
        (*ROLLED, passes(USED), spec("r1")),
        {A: "Live", B: "Draining"},
    ),
    "rolled back and on again": (
        (*ROLLED, passes(50), spec("r1"), passes(0), spec("r2"), passes(50)),
        {A: "Draining", B: "Live"},
    ),
    "three at once": (
        (*ROLLED, spec("r3"), passes(0), pod("newer", "r3", C), passes(USED), gone("new")),
        {A: "Purged", B: "Purged", C: "Live"},
    ),
    "another salt": ((pod("old", "r1", A), spec("r1", "2")), {A: "Fenced", A2: "Live"}),
    "poisoned": ((pod("bad", "r2", A), passes(USED)), {A: "Purged"}),
    "poisoned and clean again": (
        (pod("bad", "r2", A), passes(0), gone("bad"), passes(0)),
        {A: "Live"},
    ),
    "poisoned while it drains": (
        (*ROLLED, pod("bad", "r3", A)),
        {A: "Contaminated", B: "Live"},
    ),
    "the successor is poisoned: its engines count for nothing": (
        (*ROLLED, passes(50), pod("bad", "r1", B), passes(USED)),
        {A: "Draining", B: "Purged"},
    ),
    "paused": ((policy(paused=True), spec("r2"), passes(USED)), {A: "Live"}),
    "paused and poisoned": ((policy(paused=True), pod("bad", "r2", A)), {A: "Contaminated"}),
    "ahead, told only": ((pod("ahead", "r2", None), passes(10 * TIMEOUT)), {A: "Live"}),
    "ahead, a generation of their own": (
        (policy(on_pool_drift=OnPoolDrift.NEW_GENERATION), pod("ahead", "r2", None)),
        {A: "Live", B: "Pending"},
    ),
    "fenced by a salt, and asked for by pods when it is gone": (
        (
            *(spec("r1", "2"), policy(on_pool_drift=OnPoolDrift.NEW_GENERATION)),
            *(spec("r2"), pod("ahead", "r1", None), passes(0)),
        ),
        {A: "Pending", B: "Live"},
    ),
    "fenced by a salt, and asked for by pods long after it was emptied": (
        (
            *(
                pod("old", "r1", A),
                spec("r1", "2"),
                policy(on_pool_drift=OnPoolDrift.NEW_GENERATION),
            ),
            *(spec("r2"), passes(0), pod("ahead", "r1", None), gone("old"), passes(0)),
        ),
        {A: "Pending", B: "Live"},
    ),
    "a generation that nobody came for": (
        (
            policy(on_pool_drift=OnPoolDrift.NEW_GENERATION),
            *(pod("ahead", "r2", None), passes(0), gone("ahead"), passes(USED)),
        ),
        {A: "Live"},
    ),
    "ahead, fenced": (
        (policy(on_pool_drift=OnPoolDrift.FENCE), pod("ahead", "r2", None), passes(USED)),
        {A: "Purged"},
    ),
    "ahead and back": (
        (
            policy(on_pool_drift=OnPoolDrift.FENCE),
            *(pod("ahead", "r2", None), passes(USED), gone("ahead"), passes(0)),
        ),
        {A: "Live"},
    ),
    "a restart costs a drain an eighth": (
        (*ROLLED, passes(50), restarted, passes(5)),
        {A: "Draining", B: "Live"},
    ),
    "a restart costs a drain no more": (
        (*ROLLED, passes(50), restarted, passes(25)),
        {A: "Purged", B: "Live"},
    ),
}


def played(*acts: Act) -> Tier:
    tier = Tier()
    for act in acts:
        act(tier)
        tier.look()
    return tier


@pytest.mark.parametrize("name", TIMELINES)
def test_a_timeline_ends_as_it_must(name: str) -> None:
    acts, ends = TIMELINES[name]
    tier = played(*acts)
    assert {entry.id: entry.state.value for entry in tier.record.generations} == ends


def test_a_drain_of_another_state_is_not_counted() -> None:
    """Engines that had left what A is count for nothing once something follows A."""
    fence = policy(on_pool_drift=OnPoolDrift.FENCE)
    tier = played(fence, pod("ahead", "r3", None), passes(50))
    tier.pods.clear()
    tier.run("ahead", revision="r3", mounts=None)
    tier.wanted = ("r2", "1")
    tier.look(15)
    tier.look(15)
    assert tier.record.find(A).state is State.DRAINING  # type: ignore[union-attr]


def test_the_salt_of_before_brings_no_fenced_token_back() -> None:
    tier = played(pod("old", "r1", A))
    before = tier.record.current.token
    for act in (spec("r1", "2"), passes(0), spec("r1", "1"), passes(0)):
        act(tier)
        tier.look()
    assert tier.record.current.state is State.LIVE
    assert tier.record.current_id == A
    assert tier.record.current.token != before


def test_no_earlier_token_of_a_poisoned_generation_comes_back_with_it() -> None:
    tier = played(pod("bad", "r1", A), policy(credential_epoch=1))
    (retired,) = tier.record.current.retired
    assert retired.state is Retirement.VALID
    for act in (pod("bad", "r2", A), passes(0), gone("bad"), passes(0)):
        act(tier)
        tier.look()
    assert tier.record.current.state is State.LIVE
    for rank in RANKS:
        assert not tier.reads(rank, retired.token, A)


def test_a_token_is_not_forgotten_in_the_look_that_revokes_it() -> None:
    """Nobody has a session of it: that is no proof that nobody may open one."""
    tier = played(policy(credential_epoch=1), passes(USED))
    leaked = tier.record.current.token
    tier.pods.clear()
    tier.settle()
    tier.set_policy(credential_epoch=2, revocation=Revocation.IMMEDIATE)
    tier.look()
    assert tier.record.current.retired[-1].token == leaked
    for rank in RANKS:
        assert users(tier.record, rank=rank)[leaked] == ("reset",)
        tier.tell(rank)
        assert not tier.reads(rank, leaked, A)


def test_what_a_rank_got_after_the_purge_is_gone_before_anybody_reads_it() -> None:
    """A rank comes back with an old file while the pod of other weights is still there."""
    tier = Tier()
    old_file = tier.servers[0].acl_file
    tier.run("bad", revision="r2", mounts=A)
    tier.settle()
    assert tier.record.current.state is State.PURGED
    tier.servers[0].acl_file = old_file
    tier.servers[0].restart()
    tier.write("bad")
    assert tier.servers[0].keys
    tier.pods.clear()
    for _ in range(3):
        for rank in RANKS:
            tier.tell(rank)
            tier.deliver(rank)
            tier.tell(rank, load=True)
        tier.look()
    assert not tier.record.current.has_access
    tier.settle()
    assert tier.record.current.state is State.LIVE
    assert not tier.servers[0].keys


def test_credentials_that_end_do_not_come_back_with_what_was_fenced() -> None:
    tier = played(*ROLLED, passes(USED))
    old = tier.record.find(A)
    assert old is not None
    for act in (policy(credential_epoch=1), passes(USED), spec("r1"), passes(0)):
        act(tier)
        tier.look()
    assert tier.record.current_id == A
    assert tier.record.current.state is State.LIVE
    for rank in RANKS:
        assert not tier.reads(rank, old.token, A)


def test_a_paused_tier_brings_no_generation_back() -> None:
    """Its Secret is not written: engines would not get the new token."""
    tier = played(pod("bad", "r2", A), policy(paused=True), gone("bad"), passes(USED))
    assert tier.record.current.state is State.PURGED
    assert tier.record.current.cause is Cause.CONTAMINATED
    tier.set_policy(paused=False)
    tier.settle()
    assert tier.record.current.state is State.LIVE


def test_a_paused_tier_s_record_changes_by_fences_only() -> None:
    """Nothing else is written then, and what is not written holds back everything."""
    tier = played(*ROLLED, passes(5), policy(paused=True))
    before = tier.record
    for _ in range(10):
        tier.look(5)
    assert tier.record == before
    for _ in range(10):
        tier.look(5)
    assert tier.record.find(A).state is State.FENCED  # type: ignore[union-attr]


def test_a_flapping_spec_lengthens_no_record() -> None:
    tier = Tier()
    for turn in range(40):
        tier.wanted = (f"r{1 + turn % 2}", "1")
        tier.look(1)
    assert len(tier.record.generations) == 2
    assert sum(1 for entry in tier.record.generations for _ in entry.tokens()) == 2


def test_edits_that_no_engine_follows_leave_no_more_than_a_few_generations() -> None:
    tier = Tier()
    for number in range(30):
        tier.wanted = (f"edit-{number}", "1")
        tier.settle()
    kept = tier.record.generations
    assert len([each for each in kept if each.has_access]) == MOST_GENERATIONS
    assert len(kept) <= MOST_GENERATIONS + 1
    assert tier.record.current.state is State.LIVE


def test_of_many_generations_those_that_pods_use_stay() -> None:
    tier = Tier()
    tier.run("old", revision="r1", mounts=A)
    for number in range(30):
        tier.wanted = (f"edit-{number}", "1")
        tier.settle()
    assert tier.record.generations[0].id == A
    assert tier.record.generations[0].state is State.DRAINING
