"""Which connector, striping, attention and parallelism an engine can run.

The one table: what is not in it is refused. Every row was run, or its keys and geometry were,
against the connector's release named by its series; another release gets rows of its own.
"""

from dataclasses import dataclass

from kvtier.api.types import Connector, KVCacheTierSpec, Striping


@dataclass(frozen=True, slots=True)
class Row:
    """One combination that works, and what it leaves free."""

    connector: Connector
    series: str
    striping: Striping
    attention: str
    pipeline: bool
    decode_context: bool


# Shard is one LMCache server per rank, and its list of servers excludes pipelines. Hash is one
# server whose plugin spreads the chunks, for any model; of hybrids nobody has run more than that.
# No release can store under prefill context parallelism: its keys carry no chunk index.
ROWS = (
    Row(Connector.LMCACHE_MP, "0.5", Striping.SHARD, "gqa", pipeline=False, decode_context=False),
    Row(Connector.LMCACHE_MP, "0.5", Striping.SHARD, "mla", pipeline=False, decode_context=False),
    Row(
        Connector.LMCACHE_MP,
        "0.5",
        Striping.SHARD,
        "bytesPerToken",
        pipeline=False,
        decode_context=False,
    ),
    Row(Connector.LMCACHE_MP, "0.5", Striping.HASH, "gqa", pipeline=True, decode_context=False),
    Row(Connector.LMCACHE_MP, "0.5", Striping.HASH, "mla", pipeline=True, decode_context=True),
    Row(Connector.LMCACHE_MP, "0.5", Striping.HASH, "groups", pipeline=False, decode_context=False),
    Row(
        Connector.LMCACHE_MP,
        "0.5",
        Striping.HASH,
        "bytesPerToken",
        pipeline=True,
        decode_context=True,
    ),
)


def attention(spec: KVCacheTierSpec) -> str:
    """The layout member that is set, by its name on the wire."""
    layout = spec.model.layout
    if layout.gqa is not None:
        return "gqa"
    if layout.mla is not None:
        return "mla"
    return "groups" if layout.groups is not None else "bytesPerToken"


def problems(spec: KVCacheTierSpec) -> list[str]:
    """Why no engine can run this combination, one line per field; empty when one can."""
    pool = spec.pool
    kind = attention(spec)
    wanted = (pool.engine.connector, pool.engine.version, pool.striping, kind)
    row = next(
        (row for row in ROWS if (row.connector, row.series, row.striping, row.attention) == wanted),
        None,
    )
    if row is None:
        return [
            f"spec.pool.striping: no engine runs {pool.engine.connector.value}"
            f" {pool.engine.version} with striping {pool.striping.value} and layout {kind};"
            " striping Hash is for it, and serves kvtier try and kvtier loadtest only until"
            " kvtier's LMCache plugin exists"
        ]
    found = []
    if pool.parallelism.pipeline > 1 and not row.pipeline:
        by = "" if row.striping is Striping.SHARD else f" and layout {kind}"
        found.append(
            f"spec.pool.parallelism.pipeline: {pool.parallelism.pipeline} does not work with"
            f" striping {row.striping.value}{by}; write 1"
        )
    if pool.parallelism.decode_context > 1 and not row.decode_context:
        found.append(
            f"spec.pool.parallelism.decodeContext: {pool.parallelism.decode_context} does not work"
            f" with striping {row.striping.value} and layout {kind}; write 1"
        )
    if pool.parallelism.prefill_context > 1:
        found.append(
            f"spec.pool.parallelism.prefillContext: {pool.parallelism.prefill_context} does not"
            " work: no released engine stores its KV that way; write 1"
        )
    return found
