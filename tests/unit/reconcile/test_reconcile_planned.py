"""The reconciler on fakes: planned work is announced, waits its turn, and holds nothing up that is
broken already."""

from typing import Any

import pytest
from admission_harness import ENFORCE, Admitted, FakeLimiters, roll, serving, uids
from tier_harness import KEY, Operator, spec

from kvtier.cluster.protocol import POD, TIER, ApiError
from kvtier.plan.planned import ROLL_REQUESTED

LARGER = {**ENFORCE, "store": {**ENFORCE["store"], "memoryPerRank": "512Mi"}}
OTHER = (KEY[0], "other")


async def admitted(operator: Operator, tier_spec: dict[str, Any], *limiters: str) -> Admitted:
    await serving(operator, tier_spec)
    found = Admitted(operator, FakeLimiters(operator, *limiters) if limiters else None)
    await found.looks()
    return found


@pytest.fixture
async def two(operator: Operator) -> Admitted:
    """A tier that enforces, beside two limiters that do not take up what is announced."""
    found = await admitted(operator, ENFORCE, "10.0.0.1", "10.0.0.2")
    assert found.limiters is not None
    found.limiters.follow = set()
    return found


def limiters(found: Admitted) -> FakeLimiters:
    assert found.limiters is not None
    return found.limiters


async def test_all_ranks_restart_once_all_limiters_hold_the_limit(
    two: Admitted, operator: Operator
) -> None:
    before = uids(operator)
    operator.apply(LARGER)
    await operator.settle()
    assert (two.admission()["state"], two.admission()["reason"]) == ("Storm", "Planned")
    store = operator.condition("StoreReady")
    assert store["reason"] == "Rolling"
    assert "2 limiters are told first" in store["message"]
    await two.seconds(3)
    limiters(two).follow = {"10.0.0.1"}
    await two.seconds(3)
    assert uids(operator) == before, "one of two does not hold it yet"
    limiters(two).follow = {"10.0.0.1", "10.0.0.2"}
    await two.seconds(1)
    assert not uids(operator) & before
    (told,) = two.events("RestartingAllRanks")
    assert "because spec.store.memoryPerRank changed" in told
    assert told.endswith("The limit is held by 2 limiters.")
    assert operator.condition("Ready")["status"] == "True"
    assert two.admission()["reason"] == "RankRestarted", "the ranks are back"
    assert two.events("StormNotConfirmed") == []
    (began,) = two.events("StormBegan")
    assert began.startswith("A planned storm began: kvtier restarts ranks. Limiters let in")
    for each in limiters(two).says:
        limiters(two).says[each] = {"state": "Recovering", "cause": "RankRestarted"}
    await two.looks(1)
    assert two.admission()["state"] == "Recovering"
    limiters(two).says = {each: {} for each in limiters(two).says}
    await two.looks(1)
    assert two.admission()["state"] == "Open"


async def test_planned_stays_until_all_ranks_are_back(two: Admitted, operator: Operator) -> None:
    limiters(two).follow = {"10.0.0.1", "10.0.0.2"}
    roll(operator)
    await operator.settle()
    await operator.clock.advance(1)
    operator.queue.add(KEY)
    await operator.settle(kubelets=False)
    for _ in range(3):
        operator.queue.add(KEY, dirty=frozenset({"StatefulSet"}))
        await operator.settle(kubelets=False)
        assert two.admission()["reason"] == "Planned"
    await operator.settle()
    await two.seconds(2)
    assert two.admission()["reason"] == "RankRestarted"


async def test_after_thirty_seconds_they_restart_all_the_same_and_it_is_told_who_does_not_know(
    two: Admitted, operator: Operator
) -> None:
    before = uids(operator)
    limiters(two).says["10.0.0.2"] = None
    limiters(two).follow = {"10.0.0.1"}
    operator.apply(LARGER)
    await operator.settle()
    await two.seconds(29)
    assert uids(operator) == before
    await two.seconds(2)
    assert not uids(operator) & before
    (told,) = two.events("StormNotConfirmed")
    assert "10.0.0.2 does not answer (no answer within 2 s)" in told
    assert "10.0.0.1" not in told


@pytest.mark.parametrize(
    ("tier_spec", "addresses", "why"),
    [
        (spec(), ["10.0.0.1"], "spec.admission.mode is Observe"),
        (ENFORCE, [], "no limiter is known"),
    ],
    ids=["Observe", "no limiter"],
)
async def test_where_nobody_holds_a_limit_they_restart_at_once_and_say_so(
    tier_spec: dict[str, Any], addresses: list[str], why: str, operator: Operator
) -> None:
    found = await admitted(operator, tier_spec, *addresses)
    before = uids(operator)
    larger = {**tier_spec, "store": LARGER["store"]}
    operator.apply(larger)
    await operator.settle()
    assert not uids(operator) & before
    (told,) = found.events("RestartingAllRanks")
    assert told.endswith(f"Nothing is held back meanwhile: {why}.")


async def test_an_operator_that_dies_after_the_announcement_goes_on_from_the_status(
    two: Admitted, operator: Operator
) -> None:
    before = uids(operator)
    operator.apply(LARGER)
    await operator.settle()
    await two.seconds(20)
    await two.restart()
    await operator.settle()
    assert two.admission()["reason"] == "Planned"
    await two.seconds(8)
    assert uids(operator) == before, "limiters have what is left of their 30 s"
    await two.seconds(4)
    assert not uids(operator) & before
    assert len(two.events("StormNotConfirmed")) == 1


async def test_an_operator_that_dies_after_the_roll_does_not_roll_again(
    two: Admitted, operator: Operator
) -> None:
    limiters(two).follow = {"10.0.0.1", "10.0.0.2"}
    roll(operator)
    await operator.settle()
    await two.seconds(2)
    after = uids(operator)
    await two.restart()
    await operator.settle()
    await two.seconds(3)
    assert uids(operator) == after
    assert two.admission()["reason"] == "RankRestarted"


async def test_a_tier_without_engines_waits_for_nobody(operator: Operator) -> None:
    operator.apply(ENFORCE)
    await operator.settle()
    found = Admitted(operator, FakeLimiters(operator, "10.0.0.1"))
    before = uids(operator)
    operator.apply(LARGER)
    await operator.settle()
    assert not uids(operator) & before
    assert found.admission()["state"] == "Open"


async def test_a_requested_roll_restarts_each_pod_that_is_older_once(
    operator: Operator,
) -> None:
    found = await admitted(operator, spec())
    before = uids(operator)
    roll(operator)
    await operator.settle()
    after = uids(operator)
    assert not after & before
    (told,) = found.events("RestartingAllRanks")
    assert "as somebody asked for (kvtier roll)" in told
    await operator.resync()
    assert uids(operator) == after
    await found.restart()
    await operator.settle()
    assert uids(operator) == after


async def test_a_request_of_a_clock_that_is_ahead_waits_for_its_time(operator: Operator) -> None:
    await admitted(operator, spec())
    before = uids(operator)
    ahead = {"metadata": {"annotations": {ROLL_REQUESTED: "2026-01-01T00:10:00Z"}}}
    operator.cluster.edit(TIER, *KEY, ahead)
    await operator.settle()
    assert uids(operator) == before
    await operator.clock.advance(600)
    operator.queue.add(KEY)
    await operator.settle()
    assert not uids(operator) & before


async def test_a_request_that_is_no_time_is_nothing(operator: Operator) -> None:
    await admitted(operator, spec())
    before = uids(operator)
    operator.cluster.edit(TIER, *KEY, {"metadata": {"annotations": {ROLL_REQUESTED: "now"}}})
    await operator.settle()
    assert uids(operator) == before


async def test_a_paused_tier_does_not_roll(operator: Operator) -> None:
    await admitted(operator, spec())
    operator.apply({**spec(), "paused": True})
    before = uids(operator)
    roll(operator)
    await operator.settle()
    assert uids(operator) == before
    assert "restart 2 ranks" in operator.condition("StoreReady")["message"]


async def test_pausing_a_tier_takes_an_announcement_back(two: Admitted, operator: Operator) -> None:
    before = uids(operator)
    operator.apply(LARGER)
    await operator.settle()
    assert two.admission()["reason"] == "Planned"
    operator.apply({**LARGER, "paused": True})
    await operator.settle()
    await two.seconds(40)
    assert uids(operator) == before
    assert two.admission().get("reason") != "Planned"


@pytest.fixture
async def pair(operator: Operator) -> Admitted:
    """Two tiers that enforce, with engines, beside one limiter; both are to roll."""
    found = await admitted(operator, ENFORCE, "10.0.0.1")
    tier = operator.cluster.peek(TIER, *KEY)
    assert tier is not None
    body = {each: tier[each] for each in ("apiVersion", "kind")} | {"spec": ENFORCE}
    operator.cluster.seed(body | {"metadata": {"namespace": OTHER[0], "name": OTHER[1]}})
    engine = operator.cluster.peek(POD, KEY[0], "engine-0")
    assert engine is not None
    labels = {"kvtier.dev/tier": OTHER[1]}
    metadata = {"namespace": OTHER[0], "name": "engine-of-other", "labels": labels}
    status, pod = engine["status"], {each: engine[each] for each in ("apiVersion", "kind", "spec")}
    operator.cluster.seed(pod | {"metadata": metadata, "status": status})
    await operator.settle()
    limiters(found).says["10.0.0.1"] = {"offeredTokensPerSecond": 5000.0}
    await found.looks(2)
    return found


def store(operator: Operator, key: tuple[str, str]) -> str:
    tier = operator.cluster.peek(TIER, *key)
    assert tier is not None
    conditions = tier["status"]["conditions"]
    return str(next(each for each in conditions if each["type"] == "StoreReady")["message"])


async def test_one_tier_at_a_time_is_rolled(pair: Admitted, operator: Operator) -> None:
    first, second = uids(operator), uids(operator, OTHER[1])
    roll(operator)
    await operator.settle()
    roll(operator, OTHER)
    await operator.settle()
    assert "one tier at a time: serving/demo has planned work" in store(operator, OTHER)
    assert pair.admission(OTHER)["state"] == "Open", "nobody is told yet"
    await pair.seconds(3, KEY, OTHER)
    assert not uids(operator) & first
    # The first recovers; its limiter says so of both, and only what is planned holds others up.
    limiters(pair).says["10.0.0.1"] = {"state": "Recovering", "offeredTokensPerSecond": 5000.0}
    await pair.looks(2)
    await pair.seconds(20, OTHER)
    assert uids(operator, OTHER[1]) == second
    limiters(pair).says["10.0.0.1"] = {"offeredTokensPerSecond": 5000.0}
    await pair.looks(2)
    await pair.seconds(6, KEY, OTHER)
    assert not uids(operator, OTHER[1]) & second


@pytest.mark.parametrize("why", ["no traffic", "half an hour"])
async def test_a_tier_without_traffic_or_after_half_an_hour_holds_nobody_up(
    why: str, pair: Admitted, operator: Operator
) -> None:
    second = uids(operator, OTHER[1])
    roll(operator)
    await operator.settle()
    await pair.seconds(3, KEY)
    limiters(pair).says["10.0.0.1"] = {"state": "Recovering", "offeredTokensPerSecond": 5000.0}
    await pair.looks(2)
    roll(operator, OTHER)
    await operator.settle()
    await pair.seconds(3, OTHER)
    assert uids(operator, OTHER[1]) == second
    if why == "no traffic":
        limiters(pair).says["10.0.0.1"] = {"state": "Recovering"}
        await pair.looks(1)
    else:
        await operator.clock.advance(1800)
    await pair.seconds(6, OTHER)
    assert not uids(operator, OTHER[1]) & second


async def test_a_new_process_keeps_the_turn_of_a_tier_that_recovers(
    pair: Admitted, operator: Operator
) -> None:
    second = uids(operator, OTHER[1])
    roll(operator)
    await operator.settle()
    await pair.seconds(3, KEY)
    limiters(pair).says["10.0.0.1"] = {
        "state": "Recovering",
        "cause": "Planned",
        "offeredTokensPerSecond": 5000.0,
    }
    await pair.looks(2)
    await pair.restart()
    await operator.settle()
    roll(operator, OTHER)
    await operator.settle()
    await pair.seconds(5, OTHER)
    assert uids(operator, OTHER[1]) == second
    assert "one tier at a time" in store(operator, OTHER)


async def test_a_tier_whose_pods_nobody_may_delete_holds_others_up_half_an_hour(
    pair: Admitted, operator: Operator
) -> None:
    second = uids(operator, OTHER[1])
    refused = ApiError(status=403, reason="Forbidden", message="a policy says no")
    for name in operator.pods():
        if name.startswith(f"{KEY[1]}-r"):
            operator.cluster.fail(refused, verb="delete", kind=POD, name=name, times=10**6)
    roll(operator)
    with pytest.raises(ApiError):
        await pair.seconds(3, KEY)
    roll(operator, OTHER)
    await pair.seconds(3, OTHER)
    assert uids(operator, OTHER[1]) == second
    for _ in range(3):
        await operator.clock.advance(595)
        # It is tried again all the time.
        with pytest.raises(ApiError):
            await pair.seconds(1, KEY)
    await operator.clock.advance(20)
    await pair.seconds(3, OTHER)
    assert not uids(operator, OTHER[1]) & second


async def test_a_new_process_asks_every_tier_it_knows_whose_turn_it_is(
    pair: Admitted, operator: Operator
) -> None:
    second = uids(operator, OTHER[1])
    roll(operator)
    await operator.settle()
    await pair.seconds(3, KEY)
    roll(operator, OTHER)
    operator.cluster.edit(TIER, *OTHER, {"spec": {"admission": {"mode": "Observe"}}})
    operator.restart()
    pair.start()
    for key in (OTHER, KEY):
        operator.queue.add(key, dirty=frozenset({"KVCacheTier"}))
    await operator.settle()
    assert pair.admission()["reason"] == "RankRestarted"
    assert uids(operator, OTHER[1]) == second
