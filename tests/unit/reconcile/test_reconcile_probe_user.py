"""The reconciler on fakes: what an upgrade from a release without probes does to a tier."""

import base64
from dataclasses import replace

from tier_harness import KEY, Operator

from kvtier.api.load import parse_tier
from kvtier.cluster.protocol import SECRET, TIER
from kvtier.generation.record import Record, from_json
from kvtier.render.secrets import acl_secret

NAMESPACE = KEY[0]


async def test_a_tier_of_a_release_without_a_probe_gets_its_user_and_restarts_nothing(
    ready: Operator,
) -> None:
    as_before_the_probe(ready)
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
    token = record(ready).probe_token
    assert token is not None
    secret = ready.cluster.peek(SECRET, NAMESPACE, "demo-probe")
    assert secret is not None
    assert base64.b64decode(secret["data"]["token"]).decode() == token
    for name in pods:
        assert "probe" in ready.server(name).users


def as_before_the_probe(operator: Operator) -> None:
    """Take away what an earlier release did not make, in the API server and in the ranks."""
    before = replace(record(operator), probe_token=None)
    tier = operator.cluster.peek(TIER, *KEY)
    assert tier is not None
    files = acl_secret(parse_tier(tier), before)["data"]
    operator.cluster.edit(SECRET, NAMESPACE, "demo-acl", {"data": files})
    operator.cluster.remove(SECRET, NAMESPACE, "demo-probe")
    operator.deliver_users()
    for name in operator.pods():
        server = operator.server(name)
        server.restart()
        assert "probe" not in server.users


def record(operator: Operator) -> Record:
    found = operator.cluster.peek(SECRET, NAMESPACE, "demo-acl")
    assert found is not None
    return from_json(base64.b64decode(found["data"]["record.json"]))
