"""The verdict, and what LMCache's own bench takes for the same hit over the same narrowed link."""

import json
import os
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import lmcache_bench as bench
import pytest

from kvtier.api.load import parse_tier
from kvtier.breakeven.tier import chunk_bytes_per_rank
from kvtier.breakeven.words import seconds
from livecluster.cluster import LiveCluster
from livecluster.figures import write_row
from livecluster.fixtures import NewTier
from livecluster.probing import ask, engine_on, probed
from livecluster.shaping import Links
from livecluster.tier import Tier
from livecluster.truth import ENGINE_NODE, ON_OTHER_NODES, PAYLOAD, TOKENS, break_even

PAYING = ("Pays", "PaysWhenLong")
TURNS = 3
ROUNDS = 6
"""Hits that count; each has chunks of its own, and all of them have room in a rank."""
SPEC = {
    "pool": {"engine": {"adapter": "Stock"}},
    "placement": {"links": [{"domain": "zone", "bitsPerSecond": "100M", "roundTrip": "1ms"}]},
    "store": {**ON_OTHER_NODES["store"], "memoryPerRank": "128Mi"},
}
"""The link is declared near B*, so that engines keep all their workers; no verdict goes by it."""
WORKERS = 8
PATIENCE = 120.0
"""Seconds for a connection or a request: how a timeout ends a hit is another test's matter."""
LEAST, MOST = 0.85, 1.2
"""Of LMCache's time the model's may be."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A probe and LMCache's bench, one after the other: bytes/s of all ranks, and seconds that the
    model gives a hit of TOKENS and that LMCache takes for one. T0 is in both as declared."""

    probe: float
    client: float
    predicted: float
    fetch: float


@pytest.mark.parametrize("share", [0.5, 0.9, 1.1, 2.0])
def test_a_narrowed_link_is_judged_as_lmcache_finds_it(
    new_tier: NewTier, live: LiveCluster, program: list[str], share: float
) -> None:
    tier = new_tier("chat")
    tier.apply(SPEC)
    tier.wait_ready()
    needed, links = break_even(tier), Links(live)
    load, asked, turns = os.getloadavg()[0], "", []
    with links.into(ENGINE_NODE, rate=share * needed / PAYLOAD):
        engine_on(tier, ENGINE_NODE)
        for _ in range(TURNS):
            measured = probed(tier, after=asked, node=ENGINE_NODE)["bytesPerSecond"]
            inside = [*links.inside(ENGINE_NODE), *program]
            turns.append(turn(tier, measured, bench.load(inside, adapters(tier), work(tier))))
            asked = ask(tier)
    says = tier.body()["status"]["verdict"]
    recompute = TOKENS / parse_tier(tier.body()).spec.pool.prefill_rate[0].tokens_per_second
    predicted = median(each.predicted for each in turns)
    fetch = median(each.fetch for each in turns)
    cells = (
        f"{share:g} x B* into the engine's node",
        spread([each.probe / needed for each in turns]),
        spread([each.client / needed for each in turns]),
        says,
        seconds(predicted),
        seconds(fetch),
        seconds(recompute),
        f"{load:.1f}",
    )
    write_row("verdict.md", place="lmcache", row=cells)
    assert (says in PAYING) == (fetch < recompute) == (share > 1), cells
    assert LEAST * fetch < predicted < MOST * fetch, cells


def turn(tier: Tier, measured: float, loads: list[bench.Loaded]) -> Turn:
    rows = {row["tokens"]: row for row in tier.body()["status"]["breakEven"]["perLength"]}
    # They began together, and a hit waits for its slower rank. The mean of several: what a rank
    # gets less of the link in one round it gets more of in another.
    moved = max(fmean(each.seconds) for each in loads)
    return Turn(
        probe=measured,
        client=sum(each.work.round_bytes for each in loads) / moved,
        predicted=rows[TOKENS]["fetchSeconds"],
        fetch=moved + waited(tier),
    )


def spread(shares: list[float]) -> str:
    return f"{median(shares):.2f} x B* ({min(shares):.2f}-{max(shares):.2f})"


def adapters(tier: Tier) -> list[dict[str, Any]]:
    """What each rank's LMCache server is given, with addresses: this machine does not ask the
    cluster's DNS."""
    files = tier.secret(tier.body()["status"]["engineSecret"])
    engine = tier.engine()
    found = []
    for rank in engine.ranks:
        host, port = engine.address(rank)
        adapter: dict[str, Any] = json.loads(files[f"l2-adapter-r{rank}.json"])
        assert adapter["num_workers"] == WORKERS
        times = {"connection_timeout": PATIENCE, "request_timeout": PATIENCE}
        found.append(adapter | times | {"startup_nodes": f"{host}:{port}"})
    return found


def work(tier: Tier) -> bench.Work:
    """A rank's part of a hit of TOKENS in each round."""
    spec = parse_tier(tier.body()).spec
    return bench.Work(
        chunks=TOKENS // spec.pool.chunk_tokens,
        chunk_bytes=chunk_bytes_per_rank(spec),
        rounds=ROUNDS,
    )


def waited(tier: Tier) -> float:
    """Seconds of a hit that are no transfer, as declared."""
    connection = json.loads(tier.secret(tier.body()["status"]["engineSecret"])["connection.json"])
    return float(connection["hitLatencySeconds"] + connection["hitEngineTimeSeconds"])
