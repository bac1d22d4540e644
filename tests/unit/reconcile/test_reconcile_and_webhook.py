"""Without the webhook the reconciler says the same of the same documents."""

from typing import Any

import pytest
from pool_harness import placement_message
from tier_harness import KEY, Operator, spec

from kvtier.api import reasons
from kvtier.cluster.protocol import TIER
from kvtier.webhook.decision import decide, judge
from kvtier.webhook.review import Request

LINK = {"domain": "zone", "bitsPerSecond": "1M", "roundTrip": "50us"}
SPECS: dict[str, dict[str, Any]] = {
    "good": {},
    "too little memory": {"store": {"memoryPerRank": "64Mi"}, "pool": {"chunkTokens": 16384}},
    "an unknown field": {"pool": {"rank": 2}},
    "two problems": {"pool": {"ranks": 0}, "store": {"cpu": "x"}},
    "too slow a link": {
        "pool": {"hitLatency": "1s", "hitEngineTime": "0s"},
        "placement": {"links": [LINK]},
    },
    "hopeless on any link": {
        "pool": {"hitLatency": "1s", "hitEngineTime": "1s"},
        "workload": {"hitTokens": [{"quantile": "1", "tokens": 1000}]},
        "placement": {"links": [LINK], "onReject": "Block"},
    },
}


def document(case: str) -> dict[str, Any]:
    found = spec()
    for part, fields in SPECS[case].items():
        found.setdefault(part, {}).update(fields)
    return found


@pytest.mark.parametrize("case", SPECS)
async def test_webhook_and_reconciler_decide_the_same(operator: Operator, case: str) -> None:
    operator.apply(document(case))
    await operator.settle()
    stored = operator.cluster.peek(TIER, *KEY)
    assert stored is not None
    decision = judge(stored)
    condition = operator.condition("SpecValid")
    assert (operator.statefulsets() == {}) == bool(decision.refusals)
    if condition["status"] == "True" and decision.refusals:
        (refusal,) = decision.refusals
        rejected = operator.condition("StoreReady")
        assert rejected["reason"] == reasons.PLACEMENT_REJECTED
        assert (
            refusal.removeprefix("spec.placement.onReject: Block, and ").partition(": ")[2]
            in (rejected["message"])
        )
    elif decision.refusals:
        assert condition["reason"] == reasons.INVALID_SPEC
        assert condition["message"] == "; ".join(decision.refusals)
    for line in decision.warnings:
        _, _, message = line.partition(": ")
        assert message in (
            placement_message(operator) + operator.condition("EarningItsKeep")["message"]
        )


def test_the_cases_are_of_every_kind() -> None:
    decisions = [judge({"metadata": {"name": "demo"}, "spec": document(case)}) for case in SPECS]
    assert sum(bool(each.refusals) for each in decisions) == 4
    assert sum(bool(each.warnings) for each in decisions) == 2


async def test_a_tier_that_runs_is_left_running_by_both(ready: Operator) -> None:
    before = ready.cluster.peek(TIER, *KEY)
    ready.apply(document("hopeless on any link"))
    after = ready.cluster.peek(TIER, *KEY)
    assert before is not None
    assert after is not None
    request = Request(uid="u", operation="UPDATE", object=after, old_object=before)
    assert decide(request).refusals == ()
    await ready.settle()
    assert ready.condition("Ready")["status"] == "True"


async def test_a_tier_that_was_rejected_is_refused_again_by_both(operator: Operator) -> None:
    operator.apply(document("hopeless on any link"))
    await operator.settle()
    before = operator.cluster.peek(TIER, *KEY)
    worse = document("hopeless on any link")
    worse["pool"]["hitLatency"] = "2s"
    operator.apply(worse)
    after = operator.cluster.peek(TIER, *KEY)
    assert before is not None
    assert after is not None
    request = Request(uid="u", operation="UPDATE", object=after, old_object=before)
    assert len(decide(request).refusals) == 1
    await operator.settle()
    assert operator.condition("StoreReady")["reason"] == reasons.PLACEMENT_REJECTED
