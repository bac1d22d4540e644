"""What engines can run, and what is said of what they cannot."""

import itertools
import re
from collections.abc import Iterator
from typing import Any

import pytest
from tiers import changed

from kvtier.api.combinations import Row, Stored, row_of, rows
from kvtier.api.load import InvalidTier, parse_tier
from kvtier.api.types import KVCacheTierSpec
from kvtier.breakeven import footprint, sizes

LAYOUTS: dict[str, dict[str, Any]] = {
    "gqa": {"gqa": {"layers": 2, "kvHeads": 2, "headDim": 64}},
    "mla": {"mla": {"layers": 2, "kvLoraRank": 64, "qkRopeHeadDim": 8}},
    "groups": {
        "groups": [
            {"attention": "Full", "layers": 2, "kvHeads": 2, "headDim": 64},
            {"attention": "Full", "layers": 3, "kvLoraRank": 64, "qkRopeHeadDim": 8},
        ]
    },
    "bytesPerToken": {"bytesPerToken": 1000},
}
LMCACHE = ("LMCacheMP", "LMCacheInProcess")
ADVICE = re.compile(r"(spec\.[A-Za-z.]+): (\w+)")


def document(
    layout: str,
    *,
    ranks: int,
    striping: str,
    engine: dict[str, Any],
    parallelism: dict[str, Any] | None = None,
) -> dict[str, Any]:
    made = changed("spec.model.layout", LAYOUTS[layout])
    made["spec"]["pool"] |= {"ranks": ranks, "striping": striping, "engine": engine}
    made["spec"]["pool"]["parallelism"] = parallelism or {}
    return made


def combinations() -> Iterator[dict[str, Any]]:
    for layout, ranks, striping, connector, adapter, sizes_of in itertools.product(
        LAYOUTS,
        (1, 4),
        ("Hash", "Shard"),
        ("LMCacheMP", "LMCacheInProcess", "Generic"),
        ("Plugin", "Stock"),
        itertools.product((1, 2), (1, 2), (1, 2)),
    ):
        pipeline, decode, prefill = sizes_of
        tensor = ranks // pipeline // prefill
        if tensor * pipeline * prefill != ranks or tensor % decode:
            continue
        yield document(
            layout,
            ranks=ranks,
            striping=striping,
            engine={"connector": connector, "adapter": adapter},
            parallelism={
                "tensor": tensor,
                "pipeline": pipeline,
                "decodeContext": decode,
                "prefillContext": prefill,
            },
        )


def refusal(of: dict[str, Any]) -> str | None:
    try:
        parse_tier(of)
    except InvalidTier as error:
        (line,) = error.errors
        return line
    return None


def followed(of: dict[str, Any], line: str) -> list[str]:
    """Does to a tier what a refusal says; the fields that it named."""
    fields = ADVICE.findall(line.partition("; set ")[2])
    for path, value in fields:
        *above, last = path.split(".")
        here = of
        for name in above:
            here = here[name]
        here[last] = int(value) if value.isdigit() else value
    return [path for path, _ in fields]


def test_each_refusal_says_what_to_set_and_that_is_accepted() -> None:
    refused = 0
    for tier in combinations():
        line = refusal(tier)
        if line is None:
            continue
        refused += 1
        assert len(line) < 400
        fields = followed(tier, line)
        assert line.startswith(f"{fields[0]}: no engine runs ")
        assert refusal(tier) is None, line
    assert refused > 100


def test_striping_changes_only_where_nothing_else_helps() -> None:
    told = 0
    for tier in combinations():
        line = refusal(tier)
        if line is None or "spec.pool.striping: " not in line.partition("; set ")[2]:
            continue
        told += 1
        layout = next(iter(tier["spec"]["model"]["layout"]))
        striping, ranks = tier["spec"]["pool"]["striping"], tier["spec"]["pool"]["ranks"]
        for connector, adapter in itertools.product(LMCACHE, ("Plugin", "Stock")):
            engine = {"connector": connector, "adapter": adapter}
            assert refusal(document(layout, ranks=ranks, striping=striping, engine=engine))
    assert told


def test_nobody_with_lmcache_is_told_to_take_another_client() -> None:
    for tier in combinations():
        of = tier["spec"]["pool"]["engine"]["connector"]
        assert of == "Generic" or "connector: Generic" not in (refusal(tier) or "")


@pytest.mark.parametrize(
    ("tier", "says"),
    [
        (
            document("groups", ranks=4, striping="Shard", engine={}),
            "spec.pool.striping: no engine runs LMCacheMP 0.5 with adapter Plugin, striping Shard,"
            " layout groups on 4 ranks; set spec.pool.striping: Hash",
        ),
        (
            document("gqa", ranks=4, striping="Hash", engine={"adapter": "Stock"}),
            "spec.pool.engine.adapter: no engine runs LMCacheMP 0.5 with adapter Stock, striping"
            " Hash, layout gqa on 4 ranks; set spec.pool.engine.adapter: Plugin",
        ),
        (
            document(
                "gqa",
                ranks=4,
                striping="Shard",
                engine={},
                parallelism={"tensor": 2, "pipeline": 2},
            ),
            "spec.pool.parallelism.pipeline: no engine runs LMCacheMP 0.5 with adapter Plugin,"
            " striping Shard, layout gqa, pipeline 2 on 4 ranks; set"
            " spec.pool.parallelism.pipeline: 1 and spec.pool.parallelism.tensor: 4",
        ),
        (
            document("mla", ranks=1, striping="Shard", engine={"connector": "LMCacheInProcess"}),
            "spec.pool.engine.connector: no engine runs LMCacheInProcess 0.5 with adapter Plugin,"
            " striping Shard, layout mla on 1 rank; set spec.pool.engine.connector: LMCacheMP",
        ),
    ],
)
def test_what_a_refusal_says(tier: dict[str, Any], says: str) -> None:
    assert refusal(tier) == says


def of_row(row: Row, *, ranks: int = 4) -> KVCacheTierSpec:
    spec = parse_tier(
        document(
            row.attention,
            ranks=1 if row.one_rank else ranks,
            striping=row.striping.value,
            engine={"connector": row.connector.value, "adapter": row.adapter.value},
        )
    ).spec
    assert row_of(spec) == row
    return spec


def test_rows_are_distinct() -> None:
    keys = [(r.connector, r.series, r.adapter, r.striping, r.attention) for r in rows()]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("row", rows(), ids=lambda r: f"{r.connector}-{r.adapter}-{r.striping}")
def test_a_row_says_how_often_kv_is_stored_as_the_arithmetic_has_it(row: Row) -> None:
    spec = of_row(row)
    ranks = spec.pool.ranks
    once = footprint.logical(spec).slope
    copies = sizes.gqa_replication(kv_heads=2, tensor=ranks)
    latents = 3 * (64 + 8) * 2
    expected = {
        Stored.HEADS: once * copies,
        Stored.ONCE: once,
        Stored.EVERY_RANK: once * ranks,
        # By each rank, since there are KV heads beside them.
        Stored.GROUPS: (once - latents) * copies + latents * ranks,
        Stored.DECLARED: once,
    }[row.stored]
    assert footprint.wire(spec).slope == expected
    assert ranks == 1 or expected != once or row.stored in (Stored.ONCE, Stored.DECLARED)
