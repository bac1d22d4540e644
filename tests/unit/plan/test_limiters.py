"""What limiters tell, as one."""

import json
from typing import Any

import pytest

from kvtier.plan.limiters import Limiters, Replica, parse, together

KEY = ("prod", "glm")


def state(**tier: Any) -> str:
    told = {"namespace": KEY[0], "name": KEY[1], "mode": "Enforce", "state": "Open", **tier}
    return json.dumps({"replica": "limiter-0", "peers": 2, "tiers": [told], "more": 1})


def test_a_state_is_read_as_the_contract_has_it() -> None:
    text = state(
        state="Storm",
        cause="Planned",
        sinceSeconds=3.5,
        limitTokensPerSecond=None,
        hitLow=0.25,
        offeredTokensPerSecond=100.0,
        why="...",
    )
    found = parse("10.0.0.1", text)
    assert found.tiers is not None
    tier = found.tiers[KEY]
    assert (tier.state, tier.cause, tier.knows_plan) == ("Storm", "Planned", True)
    assert (tier.hits, tier.offered_tokens_per_second) == (0.25, 100.0)


@pytest.mark.parametrize(
    "text",
    [
        *("", "<html>", "[]", '{"tiers": 1}', b"\xff"),
        state(state="Closed"),
        state(hitLow=2),
        state(offeredTokensPerSecond="NaN"),
        state(name="x" * 300),
    ],
)
def test_anything_else_is_no_answer_and_is_not_repeated(text: str | bytes) -> None:
    found = parse("10.0.0.1", text)
    assert found.tiers is None
    assert found.trouble.startswith("no state of a limiter (")


def test_the_gravest_state_and_all_that_comes_in_count() -> None:
    texts = [
        state(offeredTokensPerSecond=10.0),
        state(state="Storm", cause="RankLost", limitTokensPerSecond=80.0, hitLow=0.0),
        state(
            state="Recovering", limitTokensPerSecond=90.0, hitLow=0.5, offeredTokensPerSecond=5.0
        ),
    ]
    limiters = Limiters(told=True, replicas=[parse(f"10.0.0.{n}", t) for n, t in enumerate(texts)])
    view = together(limiters.of(KEY))
    assert view is not None
    assert (view.state, view.cause, view.offered, view.limit, view.hit) == (
        *("Storm", "RankLost", 15.0, 80.0, 0.0),
    )
    assert together(limiters.of(("prod", "other"))) is None


def test_a_share_of_hits_that_is_told_counts_before_the_one_that_limits_count_with() -> None:
    view = together(Limiters(replicas=[parse("a", state(hitShare=0.9, hitLow=0.1))]).of(KEY))
    assert view is not None
    assert view.hit == 0.9


def test_each_replica_that_lacks_a_plan_is_named_with_what_it_lacks() -> None:
    limiters = Limiters(
        told=True,
        replicas=[
            parse("10.0.0.1", state(state="Storm", cause="Planned")),
            parse("10.0.0.2", state(state="Storm", cause="RankLost")),
            parse("10.0.0.3", json.dumps({"tiers": []})),
            Replica("10.0.0.4", trouble="HTTP 500"),
        ],
    )
    assert limiters.without_plan(KEY) == (
        "10.0.0.2 has Storm",
        "10.0.0.3 does not know the tier",
        "10.0.0.4 does not answer (HTTP 500)",
    )


def test_a_replica_is_silent_after_three_looks_without_an_answer() -> None:
    look = Limiters(told=True, replicas=[Replica("10.0.0.1", trouble="no answer within 2 s")])
    seen = Limiters(told=True)
    for _ in range(2):
        seen = look.after(seen)
        assert seen.enforcement(KEY).silent == ()
    seen = look.after(seen)
    assert seen.enforcement(KEY).silent == ("10.0.0.1",)
    back = Limiters(told=True, replicas=[parse("10.0.0.1", state())]).after(seen)
    assert back.enforcement(KEY).silent == ()
    assert look.after(back).enforcement(KEY).silent == (), "it is counted anew"
