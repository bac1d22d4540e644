"""Bytes of KV of a prompt's first n tokens, for any layout: what a hit on n tokens moves.

Full attention adds the same bytes for every token. A sliding window adds them up to its size, and
linear attention has a state of one size, so that a hybrid's bytes are a slope and a constant:

    bytes(n) = slope n + sum over windows of (bytes per token x min(n, window)) + states

Every chunk's end can be where a hit ends, so every chunk is stored with what a hit that ends there
needs of windows and states: a chunk is bytes(chunk tokens), while a hit on many chunks needs those
once.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

from kvtier.api.types import (
    Attention,
    AttentionGroup,
    Connector,
    KVCacheTierSpec,
    Layout,
    Striping,
)
from kvtier.breakeven import sizes
from kvtier.breakeven.checks import not_negative


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of KV by length. ``windows`` are (tokens, bytes per token); all but tokens exact."""

    slope: Fraction
    windows: tuple[tuple[int, Fraction], ...] = ()
    states: int = 0

    def of(self, tokens: float) -> int:
        """Bytes of ``tokens``, rounded up. Raises ValueError for a negative or infinite count."""
        not_negative(tokens=tokens)
        count = Fraction(tokens)
        kept = sum(
            (size * min(count, Fraction(window)) for window, size in self.windows), Fraction(0)
        )
        return math.ceil(self.slope * count + kept + self.states)

    @property
    def constant(self) -> int:
        """Bytes beside the slope once every window is full."""
        return math.ceil(sum(window * size for window, size in self.windows)) + self.states


def logical(spec: KVCacheTierSpec) -> Footprint:
    """Every byte once."""
    return of_layout(spec.model.layout, sizes.ELEMENT_BYTES[spec.model.kv_cache_dtype.value])


def wire(spec: KVCacheTierSpec) -> Footprint:
    """As stored and moved, all ranks together: with the copies that tensor-parallel ranks make."""
    layout, pool = spec.model.layout, spec.pool
    tensor = pool.parallelism.tensor or pool.ranks
    one = logical(spec)
    if layout.gqa is not None:
        copies = sizes.gqa_replication(kv_heads=layout.gqa.kv_heads, tensor=tensor)
        return Footprint(slope=one.slope * copies)
    if layout.mla is not None and pool.striping is Striping.SHARD:
        # Every engine rank keeps the whole latent and stores it in its own Valkey.
        return Footprint(slope=one.slope * pool.ranks)
    if layout.groups is not None:
        element_bytes = sizes.ELEMENT_BYTES[spec.model.kv_cache_dtype.value]
        return _of_groups(layout.groups, element_bytes=element_bytes, tensor=tensor)
    return one


def of_layout(layout: Layout, element_bytes: int) -> Footprint:
    """Logical bytes of ``layout`` with KV elements of so many bytes. Raises ValueError if empty."""
    if layout.gqa is not None:
        return Footprint(
            slope=Fraction(
                sizes.gqa_bytes_per_token(
                    layers=layout.gqa.layers,
                    kv_heads=layout.gqa.kv_heads,
                    head_dim=layout.gqa.head_dim,
                    element_bytes=element_bytes,
                )
            )
        )
    if layout.mla is not None:
        return Footprint(
            slope=Fraction(
                sizes.mla_bytes_per_token(
                    layers=layout.mla.layers,
                    kv_lora_rank=layout.mla.kv_lora_rank,
                    qk_rope_head_dim=layout.mla.qk_rope_head_dim,
                    element_bytes=element_bytes,
                )
            )
        )
    if layout.groups is not None:
        return _of_groups(layout.groups, element_bytes=element_bytes, tensor=1)
    if layout.bytes_per_token is None:
        raise ValueError("layout: empty; set exactly one of gqa, mla, groups, bytesPerToken")
    return Footprint(slope=Fraction(layout.bytes_per_token))


def stored_by_every_rank(groups: list[AttentionGroup]) -> bool:
    """Whether each tensor-parallel rank stores what it holds, copies of another's too.

    LMCache stores KV once, from rank 0, only for a model of which every rank holds the same:
    latents and index keys alone. KV heads or a linear state beside them, and every rank stores.
    """
    return any(group.kv_lora_rank is None and group.index_head_dim is None for group in groups)


def _of_groups(groups: list[AttentionGroup], *, element_bytes: int, tensor: int) -> Footprint:
    every_rank = stored_by_every_rank(groups)
    slope = Fraction(0)
    windows: dict[int, Fraction] = {}
    states = 0
    for group in groups:
        if group.attention is Attention.LINEAR:
            states += group.layers * (group.state_bytes or 0)
            continue
        copies = Fraction(1)
        if group.kv_heads is not None:
            copies = sizes.gqa_replication(kv_heads=group.kv_heads, tensor=tensor)
        elif every_rank:
            copies = Fraction(tensor)
        per_token = copies * group.layers * Fraction(_entry_bytes(group, element_bytes))
        per_token /= group.compression_stride or 1
        if group.attention is Attention.SLIDING_WINDOW and group.window is not None:
            windows[group.window] = windows.get(group.window, Fraction(0)) + per_token
        else:
            slope += per_token
    return Footprint(slope=slope, windows=tuple(sorted(windows.items())), states=states)


def _entry_bytes(group: AttentionGroup, element_bytes: int) -> int:
    """Bytes that one layer of the group keeps for one token (or one stride of them)."""
    if group.entry_bytes is not None:
        return group.entry_bytes
    if group.kv_heads is not None and group.head_dim is not None:
        elements = group.kv_heads * (group.head_dim + (group.value_head_dim or group.head_dim))
    elif group.kv_lora_rank is not None:
        elements = group.kv_lora_rank + (group.qk_rope_head_dim or 0)
    else:
        elements = group.index_head_dim or 0
    return elements * element_bytes


def logical_bytes_per_token(spec: KVCacheTierSpec) -> int:
    """The slope of the logical bytes, rounded up."""
    return math.ceil(logical(spec).slope)


def wire_bytes_per_token(spec: KVCacheTierSpec) -> int:
    """Bytes that one more token adds to what is stored and moved, all ranks together, rounded up.

    All of it, unless the layout is of groups.
    """
    return math.ceil(wire(spec).slope)


def chunk_bytes(spec: KVCacheTierSpec) -> int:
    """Bytes of one chunk as stored, all ranks together."""
    return wire(spec).of(spec.pool.chunk_tokens)


def chunk_bytes_per_rank(spec: KVCacheTierSpec) -> int:
    """Bytes that one chunk takes on a rank that holds it.

    ``Shard``: its W-th part of every chunk. ``Hash``: a whole chunk, on one of W ranks.
    """
    chunk = chunk_bytes(spec)
    return math.ceil(chunk / spec.pool.ranks) if spec.pool.striping is Striping.SHARD else chunk


def objects_per_chunk(spec: KVCacheTierSpec) -> int:
    """Values that LMCache makes of a chunk on a rank which holds it; of a hybrid's at least.

    ``Shard``: one, its part. ``Hash``: one of each worker whose KV is its own, that is every one
    under GQA, one per decode context rank under MLA, and of a hybrid every one unless all ranks
    hold the same. What another client makes of it (``Generic``) is not known: one.
    """
    pool, layout = spec.pool, spec.model.layout
    if pool.striping is Striping.SHARD or pool.engine.connector is Connector.GENERIC:
        return 1
    every_rank = layout.gqa or (layout.groups and stored_by_every_rank(layout.groups))
    return pool.ranks if every_rank else pool.parallelism.decode_context


def object_bytes(spec: KVCacheTierSpec) -> int:
    """Bytes of one value, as evenly as a hybrid's divide."""
    return math.ceil(chunk_bytes_per_rank(spec) / objects_per_chunk(spec))


def attention_layers(layout: Layout) -> int | None:
    """Layers that attend to all of the past; None when the layout does not say."""
    described = layout.gqa or layout.mla
    if described is not None:
        return described.layers
    if layout.groups is None:
        return None
    return sum(group.layers for group in layout.groups if group.attention is Attention.FULL)
