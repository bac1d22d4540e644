"""What engines of this release can do with a tier."""

import math
import re
from typing import Final

from kvtier.api import reasons
from kvtier.api.combinations import attention
from kvtier.api.scalars import shown
from kvtier.api.types import Connector, Striping
from kvtier.breakeven.tier import minimum_hit
from kvtier.placement.case import Case
from kvtier.placement.findings import Finding
from kvtier.render.l1 import l1_chunk_bytes, l1_hit_bytes
from kvtier.render.quantities import memory_quantity

_MOVES: Final = re.compile(
    r"((refs/heads|origin)/.+|main|master|head|latest|trunk|dev|develop|nightly)"
)
_PLACEHOLDER: Final = re.compile(
    r"<.*>|\$.*|\{.*\}|\.{3}|x{3,}|(replace|change|your|fill|insert)\W?(me|with|in|the|this)?(\W.*)?"
    r"|.*placeholder.*|todo|tbd|fixme|none|null|unknown|n/a"
)
_COMMIT: Final = "1605565b47bb9346c5515c34102e054115b4f98b"


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
        f" {pool.ranks} times the bytes; all figures count this. Striping Hash stores it once (for"
        " a new tier).",
    )


def l1_too_small(case: Case) -> Finding | None:
    """A hit passes through LMCache's own memory: what does not fit there is computed again.

    Where no length is declared, the shortest hit that pays must fit at least.
    """
    spec = case.spec
    engine, longest = spec.pool.engine, case.longest_prompt
    if engine.connector is Connector.GENERIC:
        return None
    least = minimum_hit(spec)
    pays = 0 if least is None or math.isinf(least) else math.ceil(least)
    wanted = pays if longest is None else longest
    needed = l1_hit_bytes(spec, wanted)
    if needed <= engine.l1_bytes:
        return None
    held = engine.l1_bytes // l1_chunk_bytes(spec) * spec.pool.chunk_tokens
    of = "LMCache server"
    if engine.connector is Connector.LMCACHE_IN_PROCESS:
        of = "worker of an engine"
    why = f"the longest length declared has {wanted:,}"
    if held < pays <= wanted:
        why = f"no hit of fewer than {pays:,} pays"
    return Finding(
        reason=reasons.L1_TOO_SMALL,
        message=f"pool.engine.l1Size is {engine.l1_size}, in which each {of} has room for"
        f" {held:,} tokens, and {why}: set it to at least {memory_quantity(needed)}.",
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
