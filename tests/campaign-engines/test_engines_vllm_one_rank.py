"""R and T0 as a real vLLM shows them, beside what kvtier's model makes of them.

It runs on the CPU, so no figure says anything of a GPU: what is compared is the model.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

import pytest
import vllm_engine as vllm
from engine_pod import NODE, Node
from vllm_tier import (
    CHUNK,
    CHUNKS,
    PROMPTS,
    REST,
    WARM,
    Row,
    Users,
    kept,
    prompt,
    published,
    started,
)

from kvtier.api.load import parse_tier
from kvtier.breakeven.footprint import wire_bytes_per_token
from kvtier.breakeven.model import fetch_seconds, minimum_hit_tokens, recompute_seconds
from kvtier.engines.exposition import Counters, parse
from kvtier.engines.rates import Bounds, between, bounds
from livecluster import figures
from livecluster.cluster import LiveCluster
from livecluster.fixtures import tiers
from livecluster.installation import Installation
from livecluster.shaping import Links
from livecluster.tier import Tier
from livecluster.truth import ON_OTHER_NODES, PAYLOAD
from livecluster.waiting import eventually

ROW = Row(
    "MP, one rank, stock",
    {"striping": "Hash", "engine": {"adapter": "Stock"}},
    tensor=1,
    servers=1,
    plugin=False,
)
LINK = 4e6
"""Bytes/s into the engine's node: about twice B*, so that a hit's bytes are most of it."""
SPEC = {
    # Slower than it is, for the timeout of a request: what all share two cores is slow to answer.
    "placement": {"links": [{"domain": "zone", "bitsPerSecond": "34M", "roundTrip": "1ms"}]},
    "store": {**ON_OTHER_NODES["store"], "memoryPerRank": "512Mi"},
}
LENGTHS = (2, 6, 12)
"""Chunks of a hit."""
TURNS = 3
REQUESTS = 50
AGREES = 0.25
STORED_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Stored:
    """A tier that an engine has filled. Seconds by chunks of a prompt, and R [tokens/s] for who
    waits and by the engine's own metrics."""

    tier: Tier
    users: Users
    files: dict[str, bytes]
    prompts: dict[int, list[list[int]]]
    recompute: dict[int, float]
    rate: float
    shown: Bounds


@pytest.fixture(scope="module")
def stored(
    live: LiveCluster,
    kvtier: Installation,
    node: Node,
    models: Callable[[int], Path],
    expected: list[tuple[int, ...]],
) -> Iterator[Stored]:
    prompts = {
        chunks: [prompt(1000 * chunks + turn, chunks=chunks) for turn in range(TURNS)]
        for chunks in LENGTHS
    }
    with tiers(live, label="one-rank") as new:
        tier = started(new, ROW, spec=SPEC)
        files, users = published(tier), Users(tier, ca=None)
        with vllm.running(node, model=models(1), name="first", files=files) as engine:
            engine.ask(WARM)
            before, begun = counters(engine), time.monotonic()
            waits = [engine.ask(prompt(5000 + each), tokens=1) for each in range(REQUESTS)]
            work = between(before, counters(engine), seconds=time.monotonic() - begun)
            assert work is not None
            shown = bounds(work)
            assert shown is not None
            recompute = {
                chunks: median(engine.ask(each, tokens=1).seconds for each in prompts[chunks])
                for chunks in LENGTHS
            }
            assert engine.ask(PROMPTS[0]).tokens == expected[0]
            wanted = CHUNKS * (2 + REQUESTS) + TURNS * sum(LENGTHS)
            eventually(lambda: kept(users) == wanted, seconds=STORED_SECONDS, what="all is stored")
        yield Stored(
            tier=tier,
            users=users,
            files=files,
            prompts=prompts,
            recompute=recompute,
            rate=work.computed / sum(each.seconds for each in waits),
            shown=shown,
        )


def test_r_and_t0_are_what_the_model_makes_of_them(
    live: LiveCluster,
    node: Node,
    models: Callable[[int], Path],
    expected: list[tuple[int, ...]],
    stored: Stored,
) -> None:
    links = Links(live)
    with vllm.running(node, model=models(1), name="fresh", files=stored.files) as fresh:
        fresh.ask(WARM)
        hits = fresh.hit_tokens()
        found = fresh.ask(PROMPTS[0])
        assert found.tokens == expected[0]
        with links.into(NODE, rate=LINK / PAYLOAD):
            fetch = {
                chunks: median(fresh.ask(each, tokens=1).seconds for each in prompts)
                for chunks, prompts in stored.prompts.items()
            }
        assert fresh.hit_tokens() - hits == CHUNK * (CHUNKS + TURNS * sum(LENGTHS)), fresh.said()
        assert fresh.tier_tokens()[0] >= fresh.hit_tokens() - hits
    bytes_per_token = wire_bytes_per_token(parse_tier(stored.tier.body()).spec)

    def modelled(chunks: int, *, fixed: float) -> float:
        return fetch_seconds(
            tokens=chunks * CHUNK, bytes_per_token=bytes_per_token, bandwidth=LINK, fixed=fixed
        ) + recompute_seconds(REST, stored.rate)

    # What is left of each hit when its bytes and the rest of its prompt are taken off.
    left = {chunks: fetch[chunks] - modelled(chunks, fixed=0.0) for chunks in LENGTHS}
    fixed = max(0.0, fmean(left.values()))
    least = minimum_hit_tokens(
        bytes_per_token=bytes_per_token, rate=stored.rate, bandwidth=LINK, fixed=fixed
    )
    rows = [("hit of", "recomputed", "n / R", "fetched", "T0 + n s / B, and the rest computed")]
    rows += [
        (
            f"{chunks * CHUNK} tokens",
            f"{stored.recompute[chunks]:.2f} s",
            f"{recompute_seconds(chunks * CHUNK + REST, stored.rate):.2f} s",
            f"{fetch[chunks]:.2f} s",
            f"{modelled(chunks, fixed=fixed):.2f} s",
        )
        for chunks in LENGTHS
    ]
    shown = stored.shown
    assert shown.at_most is not None
    text = (
        f"R: {stored.rate:.0f} tokens/s for who waits; from vLLM's own metrics, as the controller "
        f"reads them, {shown.at_least:.0f} to {shown.at_most:.0f}. T0: {1e3 * fixed:.0f} ms "
        f"({', '.join(f'{1e3 * each:.0f}' for each in left.values())} ms by length). "
        f"B: {LINK / 1e6:.0f} MB/s. By these a hit wins from {least:.0f} tokens on.\n\n"
        f"{figures.table(rows)}\n{figures.machine()}; vLLM, LMCache and the cluster share "
        "the cores."
    )
    figures.write("engines.md", place="vllm-rates", text=text)
    assert (1 - AGREES) * shown.at_least < stored.rate < (1 + AGREES) * shown.at_most
    for chunks in LENGTHS:
        assert abs(fetch[chunks] - modelled(chunks, fixed=fixed)) < 2 * AGREES * fetch[chunks]
        if chunks * CHUNK > 2 * least:
            assert fetch[chunks] < stored.recompute[chunks]


def test_kv_of_other_weights_would_be_seen(
    node: Node,
    models: Callable[[int], Path],
    expected: list[tuple[int, ...]],
    stored: Stored,
) -> None:
    """What equal tokens are worth: with the KV of another model there are others."""
    with vllm.running(node, model=models(2), name="other", files=stored.files) as engine:
        engine.ask(WARM)
        hits = engine.hit_tokens()
        stale = engine.ask(PROMPTS[0]).tokens
        assert engine.hit_tokens() - hits == CHUNKS * CHUNK, engine.said()
        own = engine.ask(PROMPTS[0], salt="own").tokens
    assert len({stale, own, expected[0]}) == 3


def counters(engine: vllm.Engine) -> Counters:
    found = parse(engine.metrics())
    assert found is not None
    return found
