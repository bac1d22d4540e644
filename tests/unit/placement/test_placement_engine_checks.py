"""What engines of this release can do with a tier, and what tells them apart."""

from typing import Any

import pytest
from paper_tier import expect, finding, spec, tokens

from kvtier.api import reasons
from kvtier.breakeven.tier import assess
from kvtier.placement.case import Case
from kvtier.placement.findings import Severity

WARNING = Severity.WARNING
GQA = {"model.layout": {"gqa": {"layers": 80, "kvHeads": 8, "headDim": 128}}}
MLA = {"model.layout": {"mla": {"layers": 61, "kvLoraRank": 512, "qkRopeHeadDim": 64}}}
HASH = {"pool.striping": "Hash"}


@pytest.mark.parametrize(
    ("changes", "each", "held", "least"),
    [
        # 40 MiB a chunk: an eighth of it in each of the servers of Shard, or all of it in one.
        ({"pool.striping": "Shard"}, "LMCache server", "8,192", "320Mi"),
        (HASH, "LMCache server", "1,024", "2560Mi"),
        (HASH | {"pool.engine.connector": "LMCacheInProcess"}, "worker", "8,192", "320Mi"),
    ],
)
def test_a_prompt_that_lmcaches_own_memory_cannot_hold(
    changes: dict[str, Any], each: str, held: str, least: str
) -> None:
    prompts = {"workload.promptTokens": tokens(16_384)}
    small = {"pool.engine.l1Size": "160Mi"}
    found = finding(reasons.L1_TOO_SMALL, GQA, changes, prompts, small)
    expect(found, WARNING, "l1Size is 160Mi", each, f"{held} tokens", "16,384", f"least {least}.")
    enough = {"pool.engine.l1Size": least}
    assert finding(reasons.L1_TOO_SMALL, GQA, changes, prompts, small, enough) is None
    other = {"pool.engine.connector": "Generic"}
    assert finding(reasons.L1_TOO_SMALL, GQA, changes, prompts, small, other) is None


def test_without_a_length_the_shortest_hit_that_pays_must_fit_lmcaches_own_memory() -> None:
    found = finding(reasons.L1_TOO_SMALL, GQA, HASH, {"pool.engine.l1Size": "160Mi"})
    expect(found, WARNING, "1,024 tokens", "no hit of fewer than 196,333 pays")
    assert finding(reasons.L1_TOO_SMALL, GQA, HASH, {"pool.engine.l1Size": "100Gi"}) is None


def test_copies_of_latents_on_every_rank() -> None:
    reason = reasons.COPY_ON_EVERY_RANK
    found = finding(reason, MLA)
    case = Case(spec=spec(MLA), assessment=assess(spec(MLA)), engines=1)
    expect(
        found,
        WARNING,
        "each of 8 ranks",
        f"({case.held_tokens:,} tokens)",
        "8 times the bytes",
        "Hash",
    )
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
