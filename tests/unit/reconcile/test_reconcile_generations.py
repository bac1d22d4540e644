"""From one generation to the next: who may read what, and when."""

from generation_harness import (
    NAME,
    NAMESPACE,
    UNIT,
    A,
    B,
    engine,
    entry,
    id_of,
    later,
    may_read,
    record,
    remove,
    revised,
    servers,
    states,
)
from tier_harness import KEY, Operator

from kvtier.api import reasons
from kvtier.cluster.protocol import CONFIGMAP, SECRET
from kvtier.reconcile.clock import FakeClock


async def rolled(operator: Operator) -> None:
    """The spec names B, and a Ready engine uses it beside one that uses A."""
    engine(operator, "old", revision="r1", generation=A)
    await operator.settle()
    operator.apply(revised("r2"))
    await operator.settle()
    engine(operator, "new", revision="r2", generation=B)
    await operator.settle()


async def test_a_new_identity_is_published_at_once_and_the_old_keeps_its_access(
    ready: Operator,
) -> None:
    old = entry(ready, A).token
    ready.apply(revised("r2"))
    await ready.settle()
    assert states(ready) == {A: "Draining", B: "Live"}
    assert ready.cluster.peek(SECRET, NAMESPACE, f"{NAME}-engine-{B}") is not None
    assert may_read(ready, old, A) == may_read(ready, entry(ready, B).token, B) == [True, True]
    assert ready.condition("Ready")["status"] == "True"
    assert ready.status()["engineSecret"] == f"{NAME}-engine-{B}"
    assert "GenerationLive" in ready.recorder.reasons()


async def test_the_old_is_fenced_only_once_engines_have_used_the_new_for_the_drain_timeout(
    ready: Operator,
) -> None:
    await rolled(ready)
    await later(ready, 59 * UNIT)
    assert states(ready)[A] == "Draining"
    await later(ready, 12 * UNIT)
    assert states(ready)[A] in ("Fenced", "Purged")
    assert may_read(ready, entry(ready, A).token, A) == [False, False]
    assert may_read(ready, entry(ready, B).token, B) == [True, True]
    for server in servers(ready):
        assert server.users[entry(ready, A).token].enabled, "a session of it misses, at once"


async def test_without_an_engine_on_the_new_the_old_is_never_fenced(ready: Operator) -> None:
    engine(ready, "old", revision="r1", generation=A)
    ready.apply(revised("r2"))
    await later(ready, 180 * UNIT)
    assert states(ready)[A] == "Draining"


async def test_the_clock_stops_when_the_last_engine_on_the_new_goes(ready: Operator) -> None:
    await rolled(ready)
    await later(ready, 50 * UNIT)
    remove(ready, "new")
    await later(ready, 20 * UNIT)
    engine(ready, "new-again", revision="r2", generation=B)
    await later(ready, 50 * UNIT)
    assert states(ready)[A] == "Draining"
    await later(ready, 20 * UNIT)
    assert states(ready)[A] != "Draining"


async def test_a_rollback_keeps_token_and_cache(ready: Operator) -> None:
    await rolled(ready)
    token = entry(ready, A).token
    for rank, server in enumerate(servers(ready)):
        server.keys.add(f"kvt-{A}-r{rank}@x")
    await later(ready, 10 * UNIT)
    ready.apply(revised("r1"))
    await ready.settle()
    assert states(ready) == {A: "Live", B: "Draining"}
    assert entry(ready, A).token == token
    assert may_read(ready, token, A) == [True, True]
    assert all(server.keys for server in servers(ready))


async def test_what_is_fenced_is_purged_and_then_goes_with_its_secret(ready: Operator) -> None:
    await rolled(ready)
    for rank, server in enumerate(servers(ready)):
        server.keys |= {f"kvt-{A}-r{rank}@{n}" for n in range(50)}
        server.keys |= {f"kvt-{B}-r{rank}@{n}" for n in range(7)}
    await later(ready, 75 * UNIT)
    assert states(ready)[A] == "Purged"
    assert [len(server.keys) for server in servers(ready)] == [7, 7]
    await later(ready, 2 * UNIT)
    assert states(ready)[A] == "Purged", "an engine has it mounted still"
    remove(ready, "old")
    await later(ready, 2 * UNIT)
    assert states(ready) == {B: "Live"}
    assert ready.cluster.peek(SECRET, NAMESPACE, f"{NAME}-engine-{A}") is None
    told = [reason for reason in ready.recorder.reasons() if reason.startswith("Generation")]
    assert told == ["GenerationLive", "GenerationFenced", "GenerationPurged", "GenerationGone"]


async def test_what_the_record_goes_through_is_no_repair(ready: Operator) -> None:
    before = len(ready.recorder.events)
    await rolled(ready)
    await later(ready, 75 * UNIT)
    remove(ready, "old")
    await later(ready, 2 * UNIT)
    assert states(ready) == {B: "Live"}
    assert reasons.REPAIRED not in ready.recorder.reasons()[before:]


async def test_another_salt_fences_the_old_at_once_whoever_uses_it(ready: Operator) -> None:
    engine(ready, "old", revision="r1", generation=A)
    await ready.settle()
    token = entry(ready, A).token
    ready.apply(revised("r1", salt="2"))
    await ready.settle()
    assert may_read(ready, token, A) == [False, False]
    assert entry(ready, A).cause == "SaltChanged"


async def test_a_pod_of_other_weights_contaminates_what_it_mounts(ready: Operator) -> None:
    engine(ready, "right", revision="r1", generation=A)
    await ready.settle()
    token = entry(ready, A).token
    engine(ready, "poison", revision="r2", generation=A, ready=False)
    await ready.settle()
    assert states(ready)[A] == "Contaminated"
    assert may_read(ready, token, A) == [False, False]
    assert ready.condition("GenerationCurrent")["reason"] == "GenerationContaminated"
    assert "poison" in ready.condition("GenerationCurrent")["message"]
    await later(ready, 5 * UNIT)
    assert entry(ready, A).token == token, "no new token while the pod can read it"
    remove(ready, "poison")
    await later(ready, UNIT)
    assert states(ready)[A] == "Live"
    fresh = entry(ready, A).token
    assert fresh != token
    assert may_read(ready, fresh, A) == [True, True]
    assert may_read(ready, token, A) == [False, False]


async def test_a_new_token_reaches_ranks_whose_poison_was_deleted(ready: Operator) -> None:
    engine(ready, "poison", revision="r2", generation=A)
    for rank, server in enumerate(servers(ready)):
        server.keys |= {f"kvt-{A}-r{rank}@{n}" for n in range(50)}
    await ready.settle()
    remove(ready, "poison")
    await later(ready, 6 * UNIT)
    assert states(ready)[A] == "Live"
    assert not any(server.keys for server in servers(ready))


async def test_the_record_is_written_before_any_rank_is_told(ready: Operator) -> None:
    order: list[str] = []
    ready.cluster.faults.append(
        lambda request, when: (
            order.append(f"{request.verb} {request.name}") if when == "after" else None
        )
    )
    ready.stores.strikes.append(
        lambda address, call, when: order.append(call) if call == "acl_setusers" else None
    )
    engine(ready, "poison", revision="r2", generation=A)
    await ready.settle()
    assert order.index("apply demo-acl") < order.index("acl_setusers")


async def test_a_rank_that_restarts_with_an_old_file_is_fenced_again(ready: Operator) -> None:
    old_files = [server.acl_file for server in servers(ready)]
    engine(ready, "poison", revision="r2", generation=A)
    await ready.settle()
    token = entry(ready, A).token
    first = servers(ready)[0]
    first.acl_file = old_files[0]
    first.restart()
    assert may_read(ready, token, A)[0], "the old file brings the user back"
    await ready.clock.advance(1.0)
    ready.queue.add(KEY)
    await ready.settle()
    assert may_read(ready, token, A) == [False, False]
    assert states(ready)[A] == "Contaminated", "its file is not proven on all ranks"


async def test_a_clock_that_jumps_fences_nothing(ready: Operator, clock: FakeClock) -> None:
    await rolled(ready)
    await later(ready, 5 * UNIT)
    await clock.advance(180 * UNIT)
    ready.queue.add(KEY)
    await ready.settle()
    assert states(ready)[A] == "Draining"


async def test_a_restart_of_the_operator_costs_a_drain_an_eighth_at_most(ready: Operator) -> None:
    await rolled(ready)
    await later(ready, 40 * UNIT)
    ready.restart()
    ready.queue.add(KEY)
    await later(ready, 19 * UNIT)
    assert states(ready)[A] == "Draining"
    await later(ready, 10 * UNIT)
    assert states(ready)[A] != "Draining"


async def test_a_drain_writes_the_record_a_few_times_only(ready: Operator) -> None:
    await rolled(ready)
    before = len([each for each in ready.cluster.writes if each.name == "demo-acl"])
    await later(ready, 58 * UNIT)
    writes = len([each for each in ready.cluster.writes if each.name == "demo-acl"]) - before
    assert writes <= 8


async def test_new_credentials_come_under_the_same_keys(ready: Operator) -> None:
    old = entry(ready, A).token
    ready.apply(revised("r1", rollout={"credentialEpoch": 1}))
    await ready.settle()
    new = entry(ready, A).token
    assert new != old
    assert may_read(ready, old, A) == may_read(ready, new, A) == [True, True]
    await later(ready, 75 * UNIT)
    assert may_read(ready, old, A) == [False, False]
    assert list(entry(ready, A).retired) == []


async def test_a_leaked_token_is_switched_off_at_once(ready: Operator) -> None:
    old = entry(ready, A).token
    ready.apply(revised("r1", rollout={"credentialEpoch": 1, "revocation": "Immediate"}))
    await ready.settle()
    for server in servers(ready):
        assert not server.users[old].enabled
        assert ("client_kill", (old,)) in [(call.name, call.arguments) for call in server.calls]
    assert may_read(ready, entry(ready, A).token, A) == [True, True]


async def test_a_lost_record_is_made_again_without_lifting_a_fence(ready: Operator) -> None:
    await rolled(ready)
    engine(ready, "poison", revision="r3", generation=A)
    await ready.settle()
    assert states(ready)[A] == "Contaminated"
    token = entry(ready, A).token
    ready.cluster.remove(SECRET, NAMESPACE, "demo-acl")
    ready.restart()
    await ready.resync()
    assert record(ready).current_id == B
    assert states(ready)[A] in ("Contaminated", "Purged")
    assert may_read(ready, token, A) == [False, False]
    assert may_read(ready, entry(ready, B).token, B) == [True, True]


async def test_a_paused_tier_makes_no_generation_but_fences(ready: Operator) -> None:
    engine(ready, "right", revision="r1", generation=A)
    ready.apply({**revised("r2"), "paused": True})
    await ready.settle()
    assert states(ready) == {A: "Live"}
    token = entry(ready, A).token
    engine(ready, "poison", revision="r2", generation=A)
    await ready.settle()
    assert states(ready) == {A: "Contaminated"}
    assert may_read(ready, token, A) == [False, False]


async def test_engines_that_left_the_spec_s_identity_get_a_generation_where_that_is_asked_for(
    ready: Operator,
) -> None:
    ready.apply(revised("r1", rollout={"onPoolDrift": "NewGeneration"}))
    engine(ready, "ahead", revision="r2", generation=None)
    await ready.settle()
    assert states(ready) == {A: "Live", B: "Pending"}
    assert ready.cluster.peek(SECRET, NAMESPACE, f"{NAME}-engine-{B}") is not None
    assert may_read(ready, entry(ready, B).token, B) == [True, True]


async def test_engines_that_left_are_only_told_of_by_default(ready: Operator) -> None:
    engine(ready, "ahead", revision="r2", generation=None)
    await later(ready, 120 * UNIT)
    assert states(ready) == {A: "Live"}


async def test_with_the_policy_fence_the_spec_s_generation_goes_when_the_pool_has_left_it(
    ready: Operator,
) -> None:
    ready.apply(revised("r1", rollout={"onPoolDrift": "Fence"}))
    engine(ready, "ahead", revision="r2", generation=None)
    await later(ready, 59 * UNIT)
    assert states(ready) == {A: "Live"}
    await later(ready, 12 * UNIT)
    assert may_read(ready, entry(ready, A).token, A) == [False, False]
    assert ready.condition("GenerationCurrent")["reason"] == "PoolDrifted"
    remove(ready, "ahead")
    await later(ready, UNIT)
    assert states(ready) == {A: "Live"}
    assert may_read(ready, entry(ready, A).token, A) == [True, True]


async def test_a_file_that_comes_late_is_loaded_however_often_everything_is_read_again(
    ready: Operator,
) -> None:
    await rolled(ready)
    ready.apply(revised("r1", salt="2"))
    for _ in range(8):
        await ready.clock.advance(3.0)
        ready.reconciler.memory.of(KEY).forget_full_read()
        ready.queue.add(KEY)
        await ready.settle()
    ready.deliver_users()
    for _ in range(8):
        await ready.clock.advance(3.0)
        ready.reconciler.memory.of(KEY).forget_full_read()
        ready.queue.add(KEY)
        await ready.settle()
    assert states(ready)[A] == "Purged"


async def test_a_pod_is_read_by_its_config_map_as_it_is_when_the_pod_starts(
    ready: Operator,
) -> None:
    for name, revision in (("first", "r1"), ("second", "r2")):
        if ready.cluster.peek(CONFIGMAP, NAMESPACE, "model") is not None:
            ready.cluster.remove(CONFIGMAP, NAMESPACE, "model")
        ready.cluster.seed(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"namespace": NAMESPACE, "name": "model"},
                "immutable": True,
                "data": {"REVISION": revision},
            }
        )
        await ready.clock.advance(60)
        engine(
            ready,
            name,
            revision="$(REVISION)",
            generation=A,
            config_map="model",
            started=ready.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ"),
        )
        await ready.settle()
        if name == "first":
            assert states(ready)[A] == "Live", entry(ready, A).note
    assert states(ready)[A] == "Contaminated", "what was there before is not what it runs"
    assert "second" in str(entry(ready, A).note)


async def test_a_taken_name_holds_up_the_next_generation_and_no_fence(ready: Operator) -> None:
    salted = revised("r1", salt="2")
    taken = f"{NAME}-engine-{id_of(salted)}"
    metadata = {"namespace": NAMESPACE, "name": taken}
    ready.cluster.seed({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {}})
    token = entry(ready, A).token
    await ready.resync()
    ready.apply(salted)
    await ready.resync()
    assert may_read(ready, token, A) == [False, False]
    assert ready.condition("StoreReady")["reason"] == "NameConflict"
    assert (ready.cluster.peek(SECRET, NAMESPACE, taken) or {})["data"] == {}


async def test_engines_that_have_their_own_generation_s_secret_have_not_drifted(
    ready: Operator,
) -> None:
    engine(ready, "old", revision="r1", generation=A)
    ready.apply(revised("r2", rollout={"onPoolDrift": "Fence"}))
    await later(ready, 75 * UNIT)
    assert states(ready) == {A: "Draining", B: "Live"}
    assert may_read(ready, entry(ready, B).token, B) == [True, True]
    assert "PoolDrifted" not in {each["reason"] for each in ready.status().get("findings", ())}
