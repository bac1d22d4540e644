"""What is remembered of fences and purges, and two operators who both believe that they lead."""

import base64

from generation_harness import (
    NAME,
    NAMESPACE,
    UNIT,
    A,
    B,
    engine,
    entry,
    later,
    may_read,
    remove,
    revised,
    servers,
    states,
)
from tier_harness import KEY, Operator, spec

from kvtier.cluster.protocol import SECRET
from kvtier.render.names import TOKEN_KEY, acl_name

ACL = acl_name(NAME)
LFU = spec(eviction="LFU")["store"]


def fill(operator: Operator, generation: str) -> None:
    for rank, server in enumerate(servers(operator)):
        server.keys |= {f"kvt-{generation}-r{rank}@{n}" for n in range(20)}


async def poisoned_and_recovered(operator: Operator) -> None:
    engine(operator, "poison", revision="r2", generation=A)
    fill(operator, A)
    await operator.settle()
    assert not any(may_read(operator, entry(operator, A).token, A))
    remove(operator, "poison")
    await later(operator, 6 * UNIT)
    assert states(operator)[A] == "Live"


async def test_what_is_poisoned_twice_is_purged_twice(ready: Operator) -> None:
    for _ in range(2):
        await poisoned_and_recovered(ready)
        assert not any(server.keys for server in servers(ready))


async def test_what_is_fenced_again_after_a_rollback_is_purged_again(ready: Operator) -> None:
    for revision, other, generation in (("r2", "r1", B), ("r1", "r2", A)):
        ready.apply(revised(revision))
        await ready.settle()
        engine(ready, f"of-{revision}", revision=revision, generation=generation)
        await later(ready, 75 * UNIT)
        remove(ready, *(name for name in ready.pods() if name == f"of-{other}"))
        fill(ready, generation)
    ready.apply(revised("r2"))
    await later(ready, 75 * UNIT)
    assert states(ready) == {B: "Live", A: "Draining"}
    engine(ready, "again", revision="r2", generation=B)
    await later(ready, 75 * UNIT)
    assert states(ready)[A] in ("Fenced", "Purged")
    assert not [key for server in servers(ready) for key in server.keys if f"-{A}-" in key]


def beside(first: Operator) -> Operator:
    """Another operator on the same cluster and ranks, which also believes that it leads."""
    other = Operator(first.clock)
    other.cluster, other.stores = first.cluster, first.stores
    other._seen_pods = first._seen_pods
    other._watching = False
    other.restart()
    return other


async def fenced_by_the_first(first: Operator, other: Operator) -> str:
    """Poison that the first fences while the second has the record of before; the token."""
    other.queue.add(KEY)
    await other.settle()
    engine(first, "poison", revision="r2", generation=A)
    remove(first, "poison")
    other.queue.dirty.clear()
    engine(first, "poison", revision="r2", generation=A)
    other.queue.dirty.clear()
    await first.settle()
    token = entry(first, A).token
    assert states(first)[A] == "Contaminated"
    assert may_read(first, token, A) == [False, False]
    # Their files are there too: what the ranks have is not what the second would have them have.
    await later(first, 3 * UNIT)
    other.queue.dirty.clear()
    return token


def watch_reads(operator: Operator, token: str) -> list[str]:
    """Calls after which the token reached a key again."""
    lifted: list[str] = []

    def look(address: object, call: str, when: str) -> None:
        if when == "after" and any(may_read(operator, token, A)):
            lifted.append(call)

    operator.stores.strikes.append(look)
    return lifted


async def test_an_operator_with_an_old_record_tells_ranks_nothing_of_it(ready: Operator) -> None:
    other = beside(ready)
    token = await fenced_by_the_first(ready, other)
    lifted = watch_reads(ready, token)
    # What has it ask the ranks, and find users that its record does not have.
    ready.apply(revised("r1", rollout={"drainTimeout": "2h"}) | {"store": LFU})
    other.queue.add(KEY)
    await other.reconcile_all()
    assert may_read(ready, token, A) == [False, False]
    await other.settle()
    assert not lifted
    assert states(ready)[A] in ("Contaminated", "Purged")
    assert other.server("demo-r0-0").config["maxmemory-policy"] == "allkeys-lfu"


async def test_the_record_of_the_second_is_refused_and_it_reads_the_first_s(
    ready: Operator,
) -> None:
    other = beside(ready)
    token = await fenced_by_the_first(ready, other)
    lifted = watch_reads(ready, token)
    conflicts: list[str] = []
    ready.cluster.faults.append(
        lambda request, when: (
            conflicts.append(request.verb) if when == "before" and request.name == ACL else None
        )
    )
    ready.apply(revised("r2"))
    ready.queue.dirty.clear()
    await other.reconcile_all()
    assert conflicts[0] == "apply"
    assert states(ready) == {A: "Purged"}, "the second wrote over the first"
    await other.settle()
    assert states(ready) == {A: "Purged", B: "Live"}
    assert not lifted
    assert may_read(ready, token, A) == [False, False]


async def test_two_operators_at_once_make_one_new_token(ready: Operator) -> None:
    other = beside(ready)
    other.queue.add(KEY)
    await other.settle()
    old = entry(ready, A).token
    ready.apply(revised("r1", rollout={"credentialEpoch": 1, "revocation": "Immediate"}))
    for turn in range(8):
        await (ready, other)[turn % 2].reconcile_all()
        ready.queue.add(KEY)
        other.queue.add(KEY)
    token = entry(ready, A).token
    secret = ready.cluster.peek(SECRET, NAMESPACE, f"{NAME}-engine-{A}")
    assert secret is not None
    assert base64.b64decode(secret["data"][TOKEN_KEY]).decode() == token
    assert may_read(ready, token, A) == [True, True]
    assert may_read(ready, old, A) == [False, False]
