"""What Envoy Gateway is asked for: whole requests of each Envoy, never zero and never too many."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtier.api.load import parse_tier
from kvtier.render.gateway import (
    RATE_ANNOTATION,
    RequestLimit,
    admission_policy,
    limit_in,
    request_limit,
    rounded,
)
from small_tier import spec


def tier(**gateway: object):
    admission = {"mode": "Enforce", "envoyGateway": gateway} if gateway else {}
    return parse_tier(
        {
            "apiVersion": "kvtier.dev/v1alpha1",
            "kind": "KVCacheTier",
            "metadata": {"name": "demo", "namespace": "prod", "uid": "u-1"},
            "spec": spec() | {"admission": admission},
        }
    )


@pytest.mark.parametrize(
    ("tokens", "mean", "replicas", "requests", "unit"),
    [
        (8000, 1000, 1, 8, "Second"),
        (8000, 1000, 2, 4, "Second"),
        (8999, 1000, 1, 8, "Second"),
        (1000, 1000, 1, 1, "Second"),
        (900, 1000, 1, 1, "Second"),
        (890, 1000, 1, 53, "Minute"),
        (500, 1000, 3, 10, "Minute"),
        (1, 100_000, 1000, 1, "Minute"),
        (0, 1000, 1, 1, "Minute"),
        (1e15, 1, 1, 2**32 - 1, "Second"),
    ],
)
def test_a_limit_becomes_whole_requests(
    tokens: float, mean: float, replicas: int, requests: int, unit: str
) -> None:
    found = request_limit(tokens=tokens, mean_prompt=mean, replicas=replicas)
    assert (found.requests, found.unit) == (requests, unit)


@given(st.floats(min_value=1 / 60, max_value=1e6))
def test_never_zero_and_at_most_a_ninth_too_many(rate: float) -> None:
    found = rounded(rate)
    assert found.requests >= 1
    assert found.per_second <= rate / 0.9 * (1 + 1e-9)
    assert found.per_second >= rate / 2, "at 1.99 a second it is one"


@given(st.floats(min_value=0, max_value=1e15), st.integers(1, 1000))
def test_what_is_written_can_be_read_again(tokens: float, replicas: int) -> None:
    limit = request_limit(tokens=tokens, mean_prompt=1234.5, replicas=replicas)
    assert limit_in(admission_policy(tier(routes=["chat"], replicas=1), limit)) == limit


def test_one_policy_is_about_all_routes_and_goes_with_the_tier() -> None:
    limit = RequestLimit(4, "Second", 4.5)
    found = admission_policy(tier(routes=["chat", "batch"], replicas=2), limit)
    group = "gateway.networking.k8s.io"
    assert found == {
        "apiVersion": "gateway.envoyproxy.io/v1alpha1",
        "kind": "BackendTrafficPolicy",
        "metadata": {
            "name": "demo-admission",
            "namespace": "prod",
            "annotations": {RATE_ANNOTATION: "4.5"},
            "labels": {
                "app.kubernetes.io/name": "valkey",
                "app.kubernetes.io/instance": "demo",
                "app.kubernetes.io/component": "kv-cache-rank",
                "app.kubernetes.io/managed-by": "kvtier",
                "kvtier.dev/tier-name": "demo",
            },
            "ownerReferences": [
                {
                    "apiVersion": "kvtier.dev/v1alpha1",
                    "kind": "KVCacheTier",
                    "name": "demo",
                    "uid": "u-1",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": {
            "targetRefs": [
                {"group": group, "kind": "HTTPRoute", "name": "chat"},
                {"group": group, "kind": "HTTPRoute", "name": "batch"},
            ],
            "mergeType": "StrategicMerge",
            "rateLimit": {"local": {"rules": [{"limit": {"requests": 4, "unit": "Second"}}]}},
        },
    }


def test_a_tier_without_routes_has_no_policy() -> None:
    with pytest.raises(ValueError, match=r"spec\.admission\.envoyGateway"):
        admission_policy(tier(), rounded(1.0))


@pytest.mark.parametrize("rate", ["inf", "nan", "many", ""])
def test_an_annotation_that_says_no_rate_is_somebody_elses(rate: str) -> None:
    policy = admission_policy(tier(routes=["chat"], replicas=1), rounded(4.5))
    assert limit_in(policy) == rounded(4.5)
    policy["metadata"]["annotations"][RATE_ANNOTATION] = rate
    assert limit_in(policy) is None


def test_a_limit_that_is_not_of_its_annotation_is_somebody_elses() -> None:
    policy = admission_policy(tier(routes=["chat"], replicas=1), rounded(4.5))
    more = copy.deepcopy(policy)
    more["spec"]["rateLimit"]["global"] = {"rules": []}
    other = copy.deepcopy(policy)
    other["spec"]["rateLimit"]["local"]["rules"][0]["limit"]["requests"] = 0
    assert (limit_in(more), limit_in(other)) == (None, None)
    del policy["metadata"]["annotations"]
    assert limit_in(policy) is None
