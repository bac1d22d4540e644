"""What engines of this release can do with a tier, and what tells them apart."""

from typing import Any

import pytest
from paper_tier import QUICK, expect, finding, judged, spec

from kvtier.api import reasons
from kvtier.breakeven.tier import assess
from kvtier.placement.case import Case
from kvtier.placement.findings import Severity

WARNING = Severity.WARNING
GQA = {"model.layout": {"gqa": {"layers": 80, "kvHeads": 8, "headDim": 128}}}
MLA = {"model.layout": {"mla": {"layers": 61, "kvLoraRank": 512, "qkRopeHeadDim": 64}}}
GROUPS = {
    "model.layout": {"groups": [{"attention": "Full", "layers": 8, "kvHeads": 8, "headDim": 64}]}
}
HASH = {"pool.striping": "Hash"}


@pytest.mark.parametrize(
    ("changes", "works"),
    [
        (GQA, "striping Shard works with stock LMCache 0.5 (for a new tier)"),
        (
            MLA | {"pool.parallelism": {"decodeContext": 8}},
            "striping Shard works with stock LMCache 0.5, for engines with pure tensor parallelism,"
            " with a copy of all KV on each of 8 ranks (for a new tier)",
        ),
        (
            GQA | {"pool.parallelism": {"tensor": 4, "pipeline": 2}},
            "0.5, for engines with pure tensor parallelism (for a new tier)",
        ),
        ({}, "works with stock LMCache 0.5, if the model has grouped-query attention"),
        (GROUPS, "no striping serves engines of a model with layout groups until then"),
    ],
)
def test_a_striping_that_no_engine_can_use_yet(changes: dict[str, Any], works: str) -> None:
    found = finding(reasons.STRIPING_WITHOUT_ENGINE, HASH, changes)
    expect(found, WARNING, "No engine can use striping Hash yet", works)
    if changes is not GROUPS:
        shard = {"pool.striping": "Shard", "pool.parallelism": {}}
        assert finding(reasons.STRIPING_WITHOUT_ENGINE, changes, shard) is None
    assert judged(HASH, changes, QUICK).warnings[0] == found


def test_copies_of_latents_on_every_rank() -> None:
    reason = reasons.COPY_ON_EVERY_RANK
    found = finding(reason, MLA)
    case = Case(spec=spec(MLA), assessment=assess(spec(MLA)), engines=1)
    expect(found, WARNING, "each of 8 ranks", f"({case.held_tokens:,} tokens)", "8 times the bytes")
    one, many = assess(spec(MLA, HASH)), assess(spec(MLA))
    assert many.bytes_per_token == 8 * one.bytes_per_token, "and the figures count it"
    assert finding(reason, MLA, HASH) is None
    assert finding(reason, MLA, {"pool.ranks": 1}) is None
    assert finding(reason, GQA) is None


@pytest.mark.parametrize(
    "revision",
    [
        "main",
        "Master",
        " latest",
        "HEAD",
        "refs/heads/x",
        "origin/main",
        "<commit>",
        "TODO",
        "xxx",
        "${REVISION}",
        "changeme",
        "replace-with-the-commit-you-serve",
        "your-revision",
    ],
)
def test_a_revision_that_does_not_tell_weights_apart(revision: str) -> None:
    moves, commit = {"model.revision": revision}, "1605565b47bb9346c5515c34102e054115b4f98b"
    expect(
        finding(reasons.REVISION_MOVES, moves), WARNING, f"model.revision is {revision!r}", commit
    )
    tokenizer = {"model.revision": commit, "model.tokenizerRevision": revision}
    expect(finding(reasons.REVISION_MOVES, tokenizer), WARNING, "model.tokenizerRevision is")
    assert finding(reasons.REVISION_MOVES, moves, {"model.salt": "2026-11"}) is None


@pytest.mark.parametrize(
    "revision",
    [
        "1605565b47bb9346c5515c34102e054115b4f98b",
        "v1.0",
        "r1",
        "main-2026-11-29",
        "sha256:ab",
        "1",
        "replaced-head-3",
        "headless",
        "yourmodel-7",
        "changes-3",
        "maintenance",
    ],
)
def test_a_revision_that_stays_is_no_finding(revision: str) -> None:
    assert finding(reasons.REVISION_MOVES, {"model.revision": revision}) is None
