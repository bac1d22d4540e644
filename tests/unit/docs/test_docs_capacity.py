"""The worked example of docs/capacity.md has the figures that the code has."""

import math
import re
from pathlib import Path

from kvtier.admission.capacity import required_engines, zero_hit_capacity
from kvtier.api.load import load_file, parse_tier
from kvtier.breakeven.fleet import availability, demand
from kvtier.breakeven.footprint import chunk_bytes_per_rank, wire_bytes_per_token
from kvtier.render.memory import allocated_bytes, held_tokens, memory

ROOT = Path(__file__).parents[3]
SAMPLE = ROOT / "deploy" / "samples" / "llama-3.1-70b.yaml"
TEXT = " ".join((ROOT / "docs" / "capacity.md").read_text("utf-8").split())
SPEC = load_file(str(SAMPLE)).spec
MIB, GIB = 1 << 20, 1 << 30

REQUESTS, PROMPT, HITS, WORKING_SET, UTILIZATION = 8, 8192, 0.9, 2_000_000, 0.8
RATE = 5000
LINK = 25e9 / 8


def with_memory(quantity: str) -> int:
    """Tokens that the sample holds with so much memory on each rank."""
    spec = SPEC.model_dump(by_alias=True, exclude_unset=True, mode="json")
    spec["store"]["memoryPerRank"] = quantity
    tier = {
        "apiVersion": "kvtier.dev/v1alpha1",
        "kind": "KVCacheTier",
        "metadata": {"name": "tier"},
        "spec": spec,
    }
    return held_tokens(parse_tier(tier).spec)


def says(*figures: str) -> None:
    for figure in figures:
        assert re.search(rf"(?<![\d.,]){re.escape(figure)}(?![\d]|[.,]\d)", TEXT), figure


def test_the_memory_of_the_example() -> None:
    rank = memory(SPEC)
    stored = allocated_bytes(rank.chunk_bytes)
    chunks = math.ceil(WORKING_SET / SPEC.pool.chunk_tokens)
    data = (chunks + rank.connections) * stored
    says(f"{chunks:,} chunks", f"{chunk_bytes_per_rank(SPEC) // MIB} MiB", f"{stored // MIB} MiB")
    says(f"{rank.connections} connections", f"{chunks + rank.connections:,} x {stored // MIB} MiB")
    says(f"{data / GIB:.1f} GiB", f"{data / 0.9 / GIB:.1f} GiB")
    limit = math.ceil(data / 0.9 / GIB)
    says(f"memoryPerRank: {limit}Gi")
    assert with_memory(f"{limit}Gi") >= WORKING_SET > with_memory(f"{limit - 1}Gi")


def test_the_engines_of_the_example() -> None:
    offered = REQUESTS * PROMPT
    computed = offered * (1 - HITS)
    one = zero_hit_capacity(engines=1, engine_rate=RATE, utilization=UTILIZATION)
    warm = required_engines(offered=computed, engine_rate=RATE, utilization=UTILIZATION)
    cold = required_engines(offered=offered, engine_rate=RATE, utilization=UTILIZATION)
    says(f"{offered:,} tokens come in", f"{computed:,.0f} are computed", f"{one:,.0f} at a")
    says(f"{warm} engines. **Engines, by their links", f"are computed: {cold} engines")

    hit_bytes = PROMPT * HITS * wire_bytes_per_token(SPEC)
    read = demand(engines=1, requests_per_second=REQUESTS, bytes_per_request=hit_bytes)
    usable = 0.8 * LINK
    engines = math.ceil(read / usable)
    says(f"{read / 1e9:.1f} GB/s", f"{LINK / 1e9} GB/s", f"{usable / 1e9} GB/s")
    says(f"{engines} engines, each of which reads {read / engines / 1e9:.2f} GB/s")
    says(f"sends an eighth of it: {read / SPEC.pool.ranks / 1e9:.2f} GB/s")
    assert 2 * read / SPEC.pool.ranks > LINK
    capacity = zero_hit_capacity(engines=engines, engine_rate=RATE, utilization=UTILIZATION)
    says(f"{capacity:,.0f} tokens/s can be taken")
    assert 0.45 < 1 - capacity / offered < 0.55


def test_the_availability_of_the_example() -> None:
    says(f"{availability(rank_availability=0.999, ranks=SPEC.pool.ranks):.1%}".replace("%", " %"))
