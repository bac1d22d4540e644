"""The reconciler on fakes: what a tier's status, events and metrics say of admission."""

import asyncio
from typing import Any

import pytest
from admission_harness import ENFORCE, Admitted, FakeLimiters, serving
from pool_harness import add_engine
from prometheus_client import generate_latest
from tier_harness import KEY, Operator, spec

from kvtier.admission.signals import TokenSignal
from kvtier.breakeven.observed import SeenRate
from kvtier.cluster.protocol import POD
from kvtier.plan.limiters import Limiters

STORM = {
    "state": "Storm",
    "cause": "RankLost",
    "limitTokensPerSecond": 8000.0,
    "hitLow": 0.0,
    "offeredTokensPerSecond": 20_000.0,
}


def tokens(*, hit: float, prompt: float = 600_000.0) -> TokenSignal:
    """A minute of two engines: 10,000 prompt tokens/s."""
    computed = (1 - hit) * prompt
    return TokenSignal(prompt=prompt, hit=hit * prompt, computed=computed, seconds=60, engines=2)


async def admitted(operator: Operator, tier_spec: dict[str, Any], *limiters: str) -> Admitted:
    await serving(operator, tier_spec)
    found = Admitted(operator, FakeLimiters(operator, *limiters) if limiters else None)
    await found.looks()
    return found


async def test_a_tier_says_what_its_engines_take_while_nothing_hits(operator: Operator) -> None:
    workload = {"targetTTFT": "2s", "hitRate": "0.9"}
    found = await admitted(operator, {**spec(), "workload": workload})
    assert found.admission() == {
        "state": "Open",
        "since": found.admission()["since"],
        "engineTokensPerSecond": 5000,
        "meanPromptTokens": 8200,
        "zeroHitTokensPerSecond": 8000,
        "stormFactor": 10.0,
        "maxQueuedTokens": 20_000,
    }
    warm, enforced = operator.condition("Warm"), operator.condition("AdmissionEnforced")
    assert (warm["status"], warm["reason"]) == ("Unknown", "HitsNotKnown")
    assert (enforced["status"], enforced["reason"]) == ("False", "ObserveOnly")
    assert operator.condition("Ready")["status"] == "True"


async def test_a_tier_at_steady_state_writes_nothing(operator: Operator) -> None:
    found = await admitted(operator, ENFORCE, "10.0.0.1", "10.0.0.2")
    assert found.limiters is not None
    found.limiters.says = {each: {"offeredTokensPerSecond": 9100.0} for each in found.limiters.says}
    await found.looks(2, tokens(hit=0.888))
    writes, requests = len(operator.cluster.writes), len(operator.cluster.requests)
    for number in range(60):
        said = {"state": "Open", "offeredTokensPerSecond": 9000.0 + 30 * (number % 7)}
        found.limiters.says = {"10.0.0.1": said, "10.0.0.2": said}
        await found.looks(1, tokens(hit=0.88 + 0.004 * (number % 5)))
    assert len(operator.cluster.writes) == writes
    asked = [each.verb for each in operator.cluster.requests[requests:]]
    assert "list" not in asked
    await found.restart()
    await operator.settle()
    await found.looks(3, tokens(hit=0.9))
    assert len(operator.cluster.writes) == writes, "a new process goes on from the status"


async def test_what_limiters_see_is_told_once_for_each_change(operator: Operator) -> None:
    found = await admitted(operator, ENFORCE, "10.0.0.1", "10.0.0.2")
    assert found.limiters is not None
    found.limiters.says["10.0.0.2"] = STORM
    await found.looks(4)
    assert (found.admission()["state"], found.admission()["reason"]) == ("Storm", "RankLost")
    assert operator.condition("Warm")["reason"] == "Storm"
    assert operator.condition("Ready")["status"] == "True", "a storm is no broken tier"
    (began,) = found.events("StormBegan")
    assert began == (
        "A storm began: a rank is lost. Limiters let in 8,000 tokens/s of the 20,000 that come "
        "(engines take 8,000 while nothing hits)."
    )
    text = generate_latest(operator.metrics.registry).decode()
    labels = '{namespace="serving",tier="demo"}'
    assert 'kvtier_admission_state{namespace="serving",state="Storm",tier="demo"} 1.0' in text
    assert f"kvtier_admission_limit_tokens_per_second{labels} 8000.0" in text
    assert f"kvtier_admission_limiters{labels} 2.0" in text
    for each in found.limiters.says:
        found.limiters.says[each] = {**STORM, "state": "Recovering", "hitLow": 0.4}
    await found.looks(3)
    assert operator.condition("Warm")["reason"] == "Recovering"
    for each in found.limiters.says:
        found.limiters.says[each] = {"offeredTokensPerSecond": 10_000.0}
    await found.looks(3)
    assert found.admission()["state"] == "Open"
    assert "reason" not in found.admission()
    reasons = [each for each in operator.recorder.reasons() if each.startswith("Storm")]
    assert reasons == ["StormBegan", "StormRecovering", "StormOver"]
    assert "kvtier_admission_limit_tokens_per_second{" not in (
        generate_latest(operator.metrics.registry).decode()
    )


async def test_in_observe_the_event_says_what_would_have_been_let_in(operator: Operator) -> None:
    found = await admitted(operator, spec(), "10.0.0.1")
    assert found.limiters is not None
    found.limiters.says["10.0.0.1"] = STORM
    await found.looks()
    (began,) = found.events("StormBegan")
    assert "In mode Enforce limiters would let in 8,000 tokens/s of the 20,000" in began


async def test_a_limiter_that_is_silent_for_three_looks_is_told_of(operator: Operator) -> None:
    found = await admitted(operator, ENFORCE, "10.0.0.1", "10.0.0.2")
    assert operator.condition("AdmissionEnforced")["reason"] == "Enforced"
    assert found.limiters is not None
    found.limiters.says = {"10.0.0.1": None, "10.0.0.2": {}}
    writes = len(operator.cluster.writes)
    await found.looks(1)
    assert "2 limiters" not in operator.condition("AdmissionEnforced")["message"]
    await found.looks(2)
    enforced = operator.condition("AdmissionEnforced")
    assert enforced["status"] == "True"
    assert "10.0.0.1" in enforced["message"]
    assert len(operator.cluster.writes) == writes + 2
    found.limiters.says = {"10.0.0.1": None, "10.0.0.2": None}
    await found.looks(3)
    enforced = operator.condition("AdmissionEnforced")
    assert (enforced["status"], enforced["reason"]) == ("False", "LimiterUnreachable")
    found.limiters.says = {}
    await found.looks(1)
    assert operator.condition("AdmissionEnforced")["reason"] == "NoLimiter"


async def test_without_limiters_the_operator_notices_a_lost_rank_itself(
    operator: Operator,
) -> None:
    found = await admitted(operator, ENFORCE)
    await found.looks(6, tokens(hit=0.9))
    warm = operator.condition("Warm")
    assert (warm["status"], warm["reason"]) == ("True", "ServingHits")
    assert operator.condition("AdmissionEnforced")["reason"] == "NoLimiter"
    operator.cluster.edit(
        POD, KEY[0], "demo-r1-0",
        {"status": {"conditions": [{"type": "Ready", "status": "False"}]}},
    )  # fmt: skip
    operator.queue.add(KEY, dirty=frozenset({"StatefulSet"}))
    await operator.settle(kubelets=False)
    await found.looks(2)
    assert (found.admission()["state"], found.admission()["reason"]) == ("Storm", "RankLost")
    (began,) = found.events("StormBegan")
    assert "Nobody is known to hold the limit" in began
    await found.restart()
    await operator.settle(kubelets=False)
    await found.looks(2)
    assert found.admission()["state"] != "Open", "a new process goes on from the status"
    assert found.events("StormBegan") == [], "it was told already"


async def test_hits_that_went_are_a_cold_tier_while_engines_can_do_the_work(
    operator: Operator,
) -> None:
    found = await admitted(operator, spec())
    await found.looks(6, tokens(hit=0.9, prompt=60_000))
    assert operator.condition("Warm")["status"] == "True"
    for _ in range(60):
        await operator.clock.advance(55)
        await found.looks(1, tokens(hit=0.0, prompt=60_000))
    warm = operator.condition("Warm")
    assert (warm["status"], warm["reason"]) == ("False", "Cold")
    assert found.admission()["state"] == "Open"


async def test_too_few_engines_for_zero_hits_are_found(operator: Operator) -> None:
    workload = {"requestsPerSecond": "2", "promptTokens": [{"quantile": "0.5", "tokens": 8000}]}
    found = await admitted(operator, {**spec(), "workload": workload})
    assert found.admission()["requiredEngines"] == 8
    (finding,) = [
        each for each in operator.status()["findings"] if each["reason"] == "UndersizedForZeroHit"
    ]
    assert finding["severity"] == "Warning"
    assert "8 engines are needed" in finding["message"]
    assert "2 are Ready: they take 8,000 tokens/s (0.8 x 2 x 5,000)" in finding["message"]
    assert len(found.events("UndersizedForZeroHit")) == 1


async def test_the_engines_needed_are_by_what_came_in_where_that_is_seen(
    operator: Operator,
) -> None:
    found = await admitted(operator, ENFORCE, "10.0.0.1", "10.0.0.2")
    assert found.limiters is not None
    for each in found.limiters.says:
        found.limiters.says[each] = {"offeredTokensPerSecond": 11_000.0}
    await found.looks(3)
    assert found.admission()["requiredEngines"] == 6, "22,000 tokens/s, 4,000 for each engine"
    found.limiters.says = {each: {} for each in found.limiters.says}
    await found.looks(12)
    assert found.admission()["requiredEngines"] == 6, "the peak of the last hour counts"
    for number in range(4):
        add_engine(operator, f"more-{number}", "n1")
    await operator.settle()
    assert "UndersizedForZeroHit" not in str(operator.status().get("findings"))


@pytest.mark.parametrize(
    ("seen", "rate"),
    [
        (SeenRate(at_least=1000.0, at_most=2000.0), 2000),
        (SeenRate(at_least=9000.0), 5000),
        (SeenRate(at_least=4500.0, at_most=5500.0), 5000),
    ],
    ids=["slower than declared", "quicker than declared", "as declared"],
)
async def test_of_two_rates_that_disagree_the_smaller_one_counts(
    seen: SeenRate, rate: int, operator: Operator
) -> None:
    found = await admitted(operator, spec())
    operator.reconciler.memory.of(KEY).seen = seen
    await found.looks()
    assert found.admission()["engineTokensPerSecond"] == rate


async def test_it_looks_every_five_seconds_whatever_becomes_of_one_look(
    operator: Operator,
) -> None:
    found = await admitted(operator, ENFORCE, "10.0.0.1")
    assert found.limiters is not None
    asked, read = 0, found.limiters.read

    async def fails_once() -> Limiters:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise RuntimeError("what nobody thought of")
        return await read()

    found.watcher._read = fails_once
    stop = asyncio.Event()
    running = asyncio.create_task(found.watcher.run(stop))
    await operator.clock.advance(26)
    assert asked == 5
    stop.set()
    await running
