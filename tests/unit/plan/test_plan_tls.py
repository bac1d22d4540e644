"""What waits for a certificate is told by its name, and a rank's server by its container's."""

from typing import Any

import pytest

from kvtier.api.load import parse_tier
from kvtier.api.types import API_VERSION, KIND, KVCacheTier
from kvtier.generation.identity import generation_id
from kvtier.plan.children import ChildPlan
from kvtier.plan.ranks import rank_states
from kvtier.plan.tls import held_back
from kvtier.render.names import acl_name, engine_secret_name, operator_name, rank_name

NAME = "a-engine-b"


@pytest.fixture
def tier() -> KVCacheTier:
    return parse_tier(
        {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"namespace": "serving", "name": NAME, "uid": "of-the-tier"},
            "spec": {
                "model": {
                    "name": "tiny",
                    "revision": "r1",
                    "kvCacheDtype": "bfloat16",
                    "layout": {"gqa": {"layers": 2, "kvHeads": 2, "headDim": 64}},
                },
                "pool": {"ranks": 1, "prefillRate": [{"tokensPerSecond": 5000}]},
                "store": {"memoryPerRank": "256Mi", "cpu": "100m"},
            },
        }
    )


def test_of_the_secrets_only_the_engines_waits_for_the_certificate(tier: KVCacheTier) -> None:
    engine = engine_secret_name(NAME, generation_id(tier.spec))
    names = (acl_name(NAME), operator_name(NAME), engine)
    plan = ChildPlan(
        creates=tuple({"kind": "Secret", "metadata": {"name": name}} for name in names),
        applies=(),
        conflicts=(),
        leftovers=(),
    )
    for published, left in ((None, names[:2]), ("a CA", names)):
        kept = held_back(plan, tier=tier, published=published).creates
        assert tuple(intent["metadata"]["name"] for intent in kept) == left


@pytest.mark.parametrize("first", [True, False])
def test_a_sidecar_is_not_taken_for_the_ranks_server(first: bool, tier: KVCacheTier) -> None:
    def owned(uid: str) -> list[dict[str, Any]]:
        return [{"controller": True, "uid": uid}]

    name = rank_name(NAME, 0)
    owner = {
        "kind": "StatefulSet",
        "metadata": {"name": name, "uid": "of-it", "ownerReferences": owned("of-the-tier")},
    }
    statuses = [
        {"name": "proxy", "state": {"waiting": {"reason": "ErrImagePull"}}},
        {"name": "valkey", "containerID": "cid", "state": {"running": {"startedAt": "then"}}},
    ]
    pod = {
        "metadata": {"name": f"{name}-0", "uid": "u", "ownerReferences": owned("of-it")},
        "status": {
            "podIP": "10.0.0.9",
            "containerStatuses": statuses if first else statuses[::-1],
        },
    }
    (state,) = rank_states(tier, children={("StatefulSet", name): owner}, pods=[pod])
    assert (state.address, state.container, state.started_at) == ("10.0.0.9", "cid", "then")
