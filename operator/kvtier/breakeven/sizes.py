"""Bytes of KV: per token, per chunk, for a working set.

The logical size is what the model's own attention needs, once. The wire size is what engines store
and move: more where tensor-parallel ranks hold copies of one KV head or of one latent.
"""

import math
from fractions import Fraction
from typing import Final

from kvtier.breakeven.checks import not_negative, positive

ELEMENT_BYTES: Final[dict[str, int]] = {
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
}
"""Bytes of one element by KV cache dtype. Scales of quantized caches are not counted."""


def gqa_bytes_per_token(*, layers: int, kv_heads: int, head_dim: int, element_bytes: int) -> int:
    """Logical bytes of one token under GQA, MHA or MQA: K and V of every layer.

    Source: 2 x layers x KV heads x head dimension x bytes per element; Llama-3.1-70B in FP16 has
    327,680. Raises ValueError for a figure that is not positive.
    """
    positive(layers=layers, kv_heads=kv_heads, head_dim=head_dim, element_bytes=element_bytes)
    return 2 * layers * kv_heads * head_dim * element_bytes


def mla_bytes_per_token(
    *, layers: int, kv_lora_rank: int, qk_rope_head_dim: int, element_bytes: int
) -> int:
    """Logical bytes of one token under MLA: one latent and one rotary key per layer.

    Source: layers x (latent rank + rotary dimension) x bytes per element; DeepSeek-V3 in FP16 has
    70,272. Raises ValueError for a figure that is not positive (the rotary part may be zero).
    """
    positive(layers=layers, kv_lora_rank=kv_lora_rank, element_bytes=element_bytes)
    not_negative(qk_rope_head_dim=qk_rope_head_dim)
    return layers * (kv_lora_rank + qk_rope_head_dim) * element_bytes


def gqa_replication(*, kv_heads: int, tensor: int) -> Fraction:
    """How many copies of one KV head the tensor-parallel ranks store: 1 if each has its own.

    Raises ValueError for a figure that is not positive.
    """
    positive(kv_heads=kv_heads, tensor=tensor)
    return max(Fraction(1), Fraction(tensor, kv_heads))


def wire_bytes_per_token(logical_bytes: int, replication: Fraction) -> int:
    """Bytes of one token as stored and moved, rounded up to whole bytes.

    Raises ValueError unless ``replication`` is at least 1.
    """
    positive(logical_bytes=logical_bytes)
    if replication < 1:
        raise ValueError(f"replication must be at least 1, not {replication}")
    return math.ceil(logical_bytes * replication)


def working_set_bytes(*, tokens: int, bytes_per_token: float, headroom: float = 0.0) -> float:
    """Bytes of store that keep ``tokens`` cached, with a share ``headroom`` for eviction to work.

    1,000,000 tokens of Llama-3.1-70B in FP16 are 305.2 GiB, 1,024,000 are 312.5 GiB. Raises
    ValueError for a negative count, a size that is not positive or a headroom below 0 or from 1.
    """
    not_negative(tokens=tokens)
    positive(bytes_per_token=bytes_per_token)
    _check_headroom(headroom)
    return tokens * bytes_per_token / (1 - headroom)


def tokens_held(*, store_bytes: float, bytes_per_token: float, headroom: float = 0.0) -> int:
    """Tokens that a store of ``store_bytes`` keeps cached: ``working_set_bytes`` turned round.

    Raises ValueError as that does.
    """
    not_negative(store_bytes=store_bytes)
    positive(bytes_per_token=bytes_per_token)
    _check_headroom(headroom)
    return int(store_bytes * (1 - headroom) / bytes_per_token)


def _check_headroom(headroom: float) -> None:
    if not 0 <= headroom < 1:
        raise ValueError(f"headroom must be at least zero and below one, not {headroom}")
