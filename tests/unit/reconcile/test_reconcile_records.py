"""The reconciler on fakes: tokens and the record, and what is left when they are lost."""

import base64
import json

import pytest
from tier_harness import KEY, Operator

from kvtier.cluster.fake import Request
from kvtier.cluster.protocol import SECRET, TIER, Object, Unavailable
from kvtier.reconcile.clock import FakeClock

NAMESPACE = KEY[0]


@pytest.mark.parametrize("name", ["demo-acl", "demo-operator", "engine"])
async def test_a_deleted_secret_comes_back_with_its_token_at_the_resync(
    ready: Operator, name: str
) -> None:
    name = ready.status()["engineSecret"] if name == "engine" else name
    before = ready.cluster.peek(SECRET, NAMESPACE, name)
    ready.cluster.remove(SECRET, NAMESPACE, name)
    await ready.resync()
    after = ready.cluster.peek(SECRET, NAMESPACE, name)
    assert before is not None
    assert after is not None
    assert after["data"] == before["data"]


@pytest.mark.parametrize("key", ["token", "connection.json", "kvtier_lmcache.zip"])
async def test_an_engine_secret_that_was_edited_is_as_before_at_the_resync(
    ready: Operator, key: str
) -> None:
    name = ready.status()["engineSecret"]
    before = ready.cluster.peek(SECRET, NAMESPACE, name)
    ready.cluster.edit(SECRET, NAMESPACE, name, {"data": {key: "c29tZW9uZSBlbHNl"}})
    await ready.resync()
    after = ready.cluster.peek(SECRET, NAMESPACE, name)
    assert before is not None
    assert after is not None
    assert after["data"] == before["data"]


@pytest.mark.parametrize("lost", [["demo-acl"], ["demo-operator"], ["demo-acl", "engine"]])
async def test_a_lost_secret_is_adopted_from_what_is_left_by_another_process(
    ready: Operator, lost: list[str]
) -> None:
    names = [ready.status()["engineSecret"] if name == "engine" else name for name in lost]
    before = {name: ready.cluster.peek(SECRET, NAMESPACE, name) for name in names}
    for name in names:
        ready.cluster.remove(SECRET, NAMESPACE, name)
    ready.restart()
    ready.queue.add(KEY)
    await ready.settle()
    for name, secret in before.items():
        after = ready.cluster.peek(SECRET, NAMESPACE, name)
        assert secret is not None
        assert after is not None
        assert after["data"] == secret["data"]
    assert not ready.recorder.reasons() or "RestartingAllRanks" not in ready.recorder.reasons()


async def test_a_record_that_nobody_can_name_is_reported_and_no_token_is_made(
    ready: Operator,
) -> None:
    for name in ("demo-acl", "demo-operator"):
        ready.cluster.remove(SECRET, NAMESPACE, name)
    ready.restart()
    ready.queue.add(KEY)
    await ready.settle()
    assert ready.condition("SpecValid")["reason"] == "RecordUnreadable"
    assert ready.cluster.peek(SECRET, NAMESPACE, "demo-acl") is None


async def test_an_unanswered_create_of_the_record_makes_no_second_token(
    operator: Operator,
) -> None:
    lost = Unavailable(status=0, reason="Timeout", message="no answer")
    operator.cluster.fail(lost, verb="create", kind=SECRET, name="demo-acl", when="after")
    operator.apply()
    with pytest.raises(Unavailable):
        await operator.settle()
    stored = operator.cluster.peek(SECRET, NAMESPACE, "demo-acl")
    operator.queue.add(KEY)
    await operator.settle()
    after = operator.cluster.peek(SECRET, NAMESPACE, "demo-acl")
    assert stored is not None
    assert after is not None
    assert stored["data"] == after["data"]
    assert operator.condition("Ready")["status"] == "True"


@pytest.mark.parametrize(
    "made",
    [["demo-operator"], ["demo-acl"], ["demo-operator", "demo-acl"]],
    ids=["token", "record", "both"],
)
async def test_what_another_process_makes_in_between_is_taken_over_and_not_written_over(
    operator: Operator, clock: FakeClock, made: list[str]
) -> None:
    operator.apply()
    tier = operator.cluster.peek(TIER, *KEY)
    other = Operator(clock)
    other.apply()
    await other.settle()
    late: list[Object] = []
    for name in made:
        secret = other.cluster.peek(SECRET, NAMESPACE, name)
        assert secret is not None
        assert tier is not None
        secret["metadata"]["ownerReferences"][0]["uid"] = tier["metadata"]["uid"]
        late.append(secret)
    theirs = {secret["metadata"]["name"]: secret["data"] for secret in late}

    def land(request: Request, when: str) -> None:
        # What that process sent before it was stopped comes just before this one's first create.
        while late and (request.verb, when) == ("create", "before"):
            operator.cluster.seed(late.pop(), manager="kvtier")

    operator.cluster.faults.append(land)
    await operator.settle()
    for name, data in theirs.items():
        found = operator.cluster.peek(SECRET, NAMESPACE, name)
        assert found is not None
        assert found["data"] == data
        # Not even for a moment: a rank may have started with it.
        assert ("apply", name) not in [(each.verb, each.name) for each in operator.cluster.writes]
    assert operator.condition("Ready")["status"] == "True"


@pytest.mark.parametrize("which", [0, 1, 2])
async def test_nothing_is_made_that_mounts_a_secret_which_could_not_be_made(
    operator: Operator, which: int
) -> None:
    made = 0

    def refuse(request: Request, when: str) -> Exception | None:
        nonlocal made
        if (request.verb, request.kind, when) != ("create", SECRET, "before"):
            return None
        made += 1
        answer = Unavailable(status=503, reason="ServiceUnavailable", message="later")
        return answer if made == which + 1 else None

    operator.cluster.faults.append(refuse)
    operator.apply()
    with pytest.raises(Unavailable):
        await operator.settle()
    assert made == which + 1
    assert {each.kind for each in operator.cluster.writes if each.verb == "create"} == {SECRET}
    operator.queue.add(KEY)
    await operator.settle()
    assert operator.condition("Ready")["status"] == "True"


async def test_a_record_of_a_later_release_is_left_as_it_is(ready: Operator) -> None:
    secret = ready.cluster.peek(SECRET, NAMESPACE, "demo-acl")
    assert secret is not None
    record = json.loads(base64.b64decode(secret["data"]["record.json"]))
    record["generations"][0]["state"] = "Quarantined"
    edited = {"record.json": base64.b64encode(json.dumps(record).encode()).decode()}
    ready.cluster.edit(SECRET, NAMESPACE, "demo-acl", {"data": edited})
    for _ in range(2):
        await ready.resync()
        after = ready.cluster.peek(SECRET, NAMESPACE, "demo-acl")
        assert after is not None
        assert after["data"]["record.json"] == edited["record.json"]
        assert ready.condition("SpecValid")["reason"] == "RecordUnreadable"
        ready.restart()


async def test_a_stranger_s_secret_is_no_record(operator: Operator) -> None:
    operator.cluster.seed(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"namespace": NAMESPACE, "name": "demo-acl"},
            "data": {"record.json": "bm8="},
        }
    )
    operator.apply()
    await operator.settle()
    assert operator.condition("StoreReady")["reason"] == "NameConflict"
    assert {r.verb for r in operator.cluster.writes} == {"apply_status"}
    assert operator.statefulsets() == {}
