"""The reconciler on fakes: what an upgrade from a release without probes or
limiters does to a tier."""

import base64
from dataclasses import replace

import pytest
from tier_harness import KEY, Operator

from kvtier.api.load import parse_tier
from kvtier.cluster.protocol import SECRET, TIER
from kvtier.generation.record import Record, from_json
from kvtier.render.secrets import acl_secret

NAMESPACE = KEY[0]


@pytest.mark.parametrize("user", ["probe", "limiter"])
async def test_a_tier_of_a_release_without_a_user_gets_it_and_restarts_nothing(
    user: str, ready: Operator
) -> None:
    as_before(ready, user)
    generation = record(ready).current.id
    pods = ready.uids()
    ready.restart()
    ready.queue.add(KEY, dirty=frozenset({"KVCacheTier"}))
    await ready.settle()
    ready.deliver_users()
    for _ in range(2):
        await ready.clock.advance(5)
        ready.queue.add(KEY)
        await ready.settle()
    assert ready.uids() == pods
    assert ready.condition("Ready")["status"] == "True", ready.condition("Ready")
    token = getattr(record(ready), f"{user}_token")
    assert token is not None
    secret = ready.cluster.peek(SECRET, NAMESPACE, f"demo-{user}")
    assert secret is not None
    assert base64.b64decode(secret["data"]["token"]).decode() == token
    for name in pods:
        assert user in ready.server(name).users
    assert record(ready).current.id == generation, "no generation is another one for it"


async def test_a_deleted_limiter_secret_comes_back_with_the_same_token(ready: Operator) -> None:
    token = record(ready).limiter_token
    ready.cluster.remove(SECRET, NAMESPACE, "demo-limiter")
    await ready.resync()
    secret = ready.cluster.peek(SECRET, NAMESPACE, "demo-limiter")
    assert secret is not None
    assert base64.b64decode(secret["data"]["token"]).decode() == token


def as_before(operator: Operator, user: str) -> None:
    """Take away what an earlier release did not make, in the API server and in the ranks."""
    before = replace(record(operator), **{f"{user}_token": None})
    tier = operator.cluster.peek(TIER, *KEY)
    assert tier is not None
    files = acl_secret(parse_tier(tier), before)["data"]
    operator.cluster.edit(SECRET, NAMESPACE, "demo-acl", {"data": files})
    operator.cluster.remove(SECRET, NAMESPACE, f"demo-{user}")
    operator.deliver_users()
    for name in operator.pods():
        server = operator.server(name)
        server.restart()
        assert user not in server.users


def record(operator: Operator) -> Record:
    found = operator.cluster.peek(SECRET, NAMESPACE, "demo-acl")
    assert found is not None
    return from_json(base64.b64decode(found["data"]["record.json"]))
