"""A tier that loses its cache under load, behind real limiters and a real Envoy."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from livecluster.fixtures import NewTier
from livecluster.gateway import gateway
from livecluster.installation import Installation
from livecluster.storm_load import traffic
from livecluster.storms import TRAFFIC, Pool, limited, limiter_addresses, look, warm
from livecluster.waiting import eventually

SLACK = 3.0
"""By how much a busy machine may be slower than what is promised."""
SHED_SECONDS = 3.0 * SLACK
"""From the loss of a rank to the first 429."""
ASKED_SECONDS = 30.0
"""For so long planned work waits for limiters at most."""
HITS = 0.8

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module", autouse=True)
def limiters(kvtier: Installation) -> Iterator[None]:
    with limited(kvtier):
        yield


@pytest.fixture(scope="module")
def pool(module_tiers: NewTier, limiters: None) -> Iterator[Pool]:
    with warm(module_tiers("storm")) as found:
        yield found


def test_a_lost_rank_sheds_what_engines_cannot_take_and_nothing_else_fails(
    pool: Pool, tmp_path: Path
) -> None:
    tier = pool.tier
    with (
        gateway(
            tmp_path,
            tier=f"{tier.namespace}/{tier.name}",
            engines=pool.addresses(),
            limiters=limiter_addresses(tier.cluster),
        ) as envoy,
        traffic(f"{envoy.url}/v1/completions", TRAFFIC, seed=3) as load,
    ):
        time.sleep(10)
        before = load.between(0, time.time() - 2)
        assert {sent.status for sent in before} == {200}
        hit = sum(sent.hit for sent in before) / (len(before) * TRAFFIC.tokens)
        assert hit > HITS, hit
        lost = time.time()
        tier.kubectl("delete", "pod", f"{tier.name}-r0-0", "--wait=false")
        eventually(
            lambda: any(sent.status == 429 for sent in load.sent),
            seconds=SHED_SECONDS,
            what="something is refused",
            detail=lambda: look(tier, pool.addresses()).states,
        )
        time.sleep(15)
    after = load.between(lost, time.time())
    assert {sent.status for sent in after} == {200, 429}
    assert all(sent.retry_after for sent in after if sent.status == 429)
    seen = look(tier, pool.addresses())
    assert not seen.wrong
    assert {state["cause"] for state in seen.states.values()} == {"RankRestarted"}
    eventually(
        lambda: tier.body()["status"]["admission"]["state"] != "Open",
        seconds=10 * SLACK,
        what="the status tells of the storm",
    )
    assert tier.events("StormBegan")


def test_a_planned_roll_waits_until_all_limiters_hold_and_restarts_all_ranks_together(
    pool: Pool,
) -> None:
    tier = pool.tier
    tier.wait_ready()
    before = tier.containers()
    tier.kvtier("roll", tier.name, "--no-wait")
    planned_at = None
    deadline = time.monotonic() + ASKED_SECONDS + 10 * SLACK
    while True:
        now = tier.containers()
        if set(now.values()) != set(before.values()):
            break
        states = look(tier, pool.addresses()).states
        if len(states) == 2 and {each["cause"] for each in states.values()} == {"Planned"}:
            planned_at = planned_at or time.monotonic()
        assert time.monotonic() < deadline, f"no rank restarts: {states}"
    assert planned_at is not None, "ranks restarted before all limiters held"
    eventually(
        lambda: not set(tier.containers().values()) & set(before.values()),
        seconds=5 * SLACK,
        what="all ranks restart together",
    )
    tier.wait_ready()
    assert tier.containers().keys() == before.keys()
    eventually(
        lambda: all(
            state["state"] != "Open" and state["cause"] != "Planned"
            for state in look(tier, pool.addresses()).states.values()
        ),
        seconds=10 * SLACK,
        what="limiters hold on, by what they see",
    )
