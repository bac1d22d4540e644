"""Verdicts beside what a client takes: close to the break-even, far away, shared, in use."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kvtier.breakeven.words import seconds
from livecluster import loadtest
from livecluster.cluster import LiveCluster
from livecluster.figures import write_row
from livecluster.fixtures import NewTier
from livecluster.probing import engine_on, probed
from livecluster.shaping import Links
from livecluster.starving import starved
from livecluster.tier import Patch, Tier
from livecluster.truth import (
    ENGINE_NODE,
    ON_OTHER_NODES,
    PAYLOAD,
    SLOW,
    TOKENS,
    Judged,
    break_even,
    judge,
)

PAYING = ("Pays", "PaysWhenLong")
ON_ONE_NODE: Patch = {"store": {"nodeSelector": {"kubernetes.io/hostname": "node-1"}}}
DELAY = 0.020
"""Seconds more for a round trip."""
FAST: Patch = {
    "placement": {"links": [{"domain": "zone", "bitsPerSecond": "200M", "roundTrip": "20ms"}]}
}
"""Declared so fast that engines keep all their workers."""


def served(new_tier: NewTier, where: Patch, links: Patch = SLOW) -> Tier:
    tier = new_tier("chat")
    tier.apply({**where, **links})
    tier.wait_ready()
    return tier


def kept(link: str, tier: Tier, found: Judged) -> None:
    """A row of docs/verdict.md."""
    measured = found.measured["bytesPerSecond"] / break_even(tier)
    row = (
        link,
        f"{measured:.2f} x B*, {1e3 * found.measured['roundTripSeconds']:.2g} ms",
        found.says,
        seconds(found.predicted),
        seconds(found.fetch),
        seconds(found.recompute),
    )
    write_row("verdict.md", place="truth", row=row)


def agrees(found: Judged) -> None:
    assert (found.says in PAYING) == found.wins, found


@pytest.mark.parametrize("share", [0.5, 0.9, 1.1, 2.0])
def test_a_narrowed_link_is_judged_as_a_client_finds_it(
    new_tier: NewTier, live: LiveCluster, share: float
) -> None:
    tier = served(new_tier, ON_OTHER_NODES)
    with Links(live).into(ENGINE_NODE, rate=share * break_even(tier) / PAYLOAD):
        engine_on(tier, ENGINE_NODE)
        found = judge(tier, probed(tier))
    kept(f"{share:g} x B* into the engine's node", tier, found)
    agrees(found)
    assert found.wins == (share > 1)
    assert found.predicted == pytest.approx(found.fetch, rel=0.3)


def test_two_ranks_behind_one_link_share_it(new_tier: NewTier, live: LiveCluster) -> None:
    tier = served(new_tier, ON_ONE_NODE)
    # Twice this would be enough, and each rank alone gets all of it.
    with Links(live).out_of("node-1", rate=0.8 * break_even(tier) / PAYLOAD):
        engine_on(tier, ENGINE_NODE)
        found = judge(tier, probed(tier))
    kept("0.8 x B* out of the node of both ranks", tier, found)
    agrees(found)
    assert not found.wins
    assert found.predicted == pytest.approx(found.fetch, rel=0.3)


@pytest.mark.parametrize(("links", "workers"), [(FAST, 8), (SLOW, 1)], ids=["fast", "slow"])
def test_a_link_that_is_far_pays_if_enough_is_on_its_way(
    new_tier: NewTier, live: LiveCluster, links: Patch, workers: int
) -> None:
    tier = served(new_tier, ON_OTHER_NODES, links)
    secret = tier.secret(tier.body()["status"]["engineSecret"])
    assert json.loads(secret["connection.json"])["workers"] == workers
    shaped = Links(live)
    with (
        shaped.into(ENGINE_NODE, rate=2 * break_even(tier) / PAYLOAD),
        shaped.delayed(ENGINE_NODE, seconds=DELAY / 2),
    ):
        engine_on(tier, ENGINE_NODE)
        found = judge(tier, probed(tier))
    kept(f"2 x B*, {1e3 * DELAY:g} ms more for a round trip, workers: {workers}", tier, found)
    assert DELAY <= found.measured["roundTripSeconds"] < 2 * DELAY
    agrees(found)
    assert found.wins == (workers > 1)
    assert found.predicted == pytest.approx(found.fetch, rel=0.4)


def test_a_link_that_others_use_is_judged_by_what_is_left(
    new_tier: NewTier, live: LiveCluster
) -> None:
    tier, other = served(new_tier, ON_OTHER_NODES), new_tier("other")
    other.apply({**ON_OTHER_NODES, **SLOW})
    other.wait_ready()
    with (
        Links(live).into(ENGINE_NODE, rate=1.4 * break_even(tier) / PAYLOAD),
        busy(other),
    ):
        engine_on(tier, ENGINE_NODE)
        found = judge(tier, probed(tier))
    kept("1.4 x B*, another tier's engines read all they can", tier, found)
    agrees(found)
    assert not found.wins


@contextmanager
def busy(other: Tier) -> Iterator[None]:
    """More is asked for than the link has, all the time."""
    load = ("--engines", "2", "--rate", "4", "--prefixes", "1", "--prefill-rate", "1000000")
    tokens = ("--prompt-tokens", str(TOKENS + 256), "--prefix-tokens", str(TOKENS))
    run = loadtest.start(other, *load, *tokens, seconds=300, name="busy", node=ENGINE_NODE)
    run.wait_hits()
    try:
        yield
    finally:
        run.stop()


def test_a_probe_without_cpu_says_at_least_and_condemns_nothing(
    new_tier: NewTier, live: LiveCluster
) -> None:
    tier = new_tier("chat")
    # Break-even is 1 GB/s: more than the probe can read with the CPU that it is left.
    rate = {"ranks": 1, "prefillRate": [{"tokensPerSecond": 2_000_000}]}
    tier.apply({"pool": rate, "model": {"layout": {"gqa": {"kvHeads": 4}}}, **ON_OTHER_NODES})
    tier.wait_ready()
    with starved(live, "probe-worker", cores=0.15) as groups:
        engine_on(tier, ENGINE_NODE)
        measured = probed(tier)
    assert groups, "no probe was starved"
    body = tier.body()
    assert measured["bytesPerSecond"] < break_even(tier)
    assert measured["lowerBound"] is True
    assert body["status"]["verdict"] == "Unknown"
    assert tier.condition("EarningItsKeep")["reason"] == "LowerBoundOnly"
