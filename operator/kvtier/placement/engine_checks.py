"""What engines of this release can do with a tier."""

import re
from typing import Final

from kvtier.api import reasons
from kvtier.api.combinations import attention
from kvtier.api.scalars import shown
from kvtier.api.types import KVCacheTierSpec, Striping
from kvtier.placement.case import Case
from kvtier.placement.findings import Finding

_MOVES: Final = re.compile(
    r"((refs/heads|origin)/.+|main|master|head|latest|trunk|dev|develop|nightly)"
)
_PLACEHOLDER: Final = re.compile(
    r"<.*>|\$.*|\{.*\}|\.{3}|x{3,}|(replace|change|your|fill|insert)\W?(me|with|in|the|this)?(\W.*)?"
    r"|.*placeholder.*|todo|tbd|fixme|none|null|unknown|n/a"
)
_COMMIT: Final = "1605565b47bb9346c5515c34102e054115b4f98b"


def striping_without_engine(case: Case) -> Finding | None:
    """``Hash`` needs the plugin; only ``kvtier try`` and ``kvtier loadtest`` do without it."""
    if case.spec.pool.striping is not Striping.HASH:
        return None
    return Finding(
        reason=reasons.STRIPING_WITHOUT_ENGINE,
        message="No engine can use striping Hash yet, since it needs kvtier's LMCache plugin, which"
        f" is not part of this release: {_what_works(case.spec)}.",
    )


def copy_on_every_rank(case: Case) -> Finding | None:
    """``Shard`` has nothing to divide in a latent: every rank stores all of it.

    LMCache 0.5.6 makes the first worker of each of its servers the writer of a pure MLA model
    (``ParallelStrategy.is_kv_writer``), and ``Shard`` has one server per rank.
    """
    pool = case.spec.pool
    if pool.striping is not Striping.SHARD or attention(case.spec) != "mla" or pool.ranks == 1:
        return None
    held = "" if case.held_tokens is None else f" ({case.held_tokens:,} tokens)"
    return Finding(
        reason=reasons.COPY_ON_EVERY_RANK,
        message=f"With layout mla and striping Shard each of {pool.ranks} ranks stores and sends"
        f" the whole KV, so that the store holds what one rank does{held} and a hit moves"
        f" {pool.ranks} times the bytes; all figures count this, and no striping that engines of"
        " this release can use avoids it: raise store.memoryPerRank if the store is too small.",
    )


def revision_moves(case: Case) -> Finding | None:
    """A revision that is no fixed name does not tell old weights from new ones.

    ``model.salt`` does, for whoever changes it with the weights.
    """
    model = case.spec.model
    if model.salt is not None:
        return None
    for field, revision in (
        ("revision", model.revision),
        ("tokenizerRevision", model.tokenizer_revision or ""),
    ):
        text = revision.strip().lower()
        moves = _MOVES.fullmatch(text) is not None
        if not moves and _PLACEHOLDER.fullmatch(text) is None:
            continue
        return Finding(
            reason=reasons.REVISION_MOVES,
            message=f"model.{field} is {shown(revision)},"
            f" {'a name that moves' if moves else 'a placeholder'}: when engines load other weights"
            " or another tokenizer under it, the generation stays and they read KV of the old ones;"
            f" write the commit, 40 hexadecimal digits such as {_COMMIT} (another generation, so"
            " for a new tier).",
        )
    return None


def _what_works(spec: KVCacheTierSpec) -> str:
    """Which striping of this release serves an engine of this model (docs/engines.md)."""
    pool, kind = spec.pool, attention(spec)
    if kind == "groups":
        return (
            "no striping serves engines of a model with layout groups until then, and the tier is"
            " of use to kvtier try and kvtier loadtest only"
        )
    needs = ""
    if pool.parallelism.pipeline > 1 or pool.parallelism.decode_context > 1:
        needs = ", for engines with pure tensor parallelism"
    if kind == "mla" and pool.ranks > 1:
        needs += f", with a copy of all KV on each of {pool.ranks} ranks"
    if kind == "bytesPerToken":
        needs += ", if the model has grouped-query attention"
    return f"striping Shard works with stock LMCache 0.5{needs} (for a new tier)"
