"""Which architectures kvtier can read, and what each keeps in its KV cache.

The one table: what is not in it is refused by name. An architecture's own code decides what its
layers keep, so that a config of another one, with the same field names, may mean something else.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Family(StrEnum):
    """Architectures whose config describes KV with the same fields."""

    HEADS = "KV heads, in all layers or but for sliding windows"
    SPLIT_HEADS = "KV heads, others in sliding windows"
    GEMMA4 = "KV heads, others in global layers, some layers sharing"
    LATENT = "a latent, with or without a sparse index"
    COMPRESSED = "a compressed latent beside a sliding window"
    BLOCK_SPARSE = "KV heads and a sparse index"
    GATED_DELTA = "KV heads between linear layers (gated DeltaNet)"
    DELTA_LATENT = "a latent between linear layers (Kimi delta attention)"
    MAMBA2 = "KV heads between Mamba-2 layers"


@dataclass(frozen=True, slots=True)
class Architecture:
    """One architecture, as its modelling code in Transformers or vLLM reads the config.

    ``derives_head_dim``: head_dim may be absent and is then hidden_size / num_attention_heads.
    ``one_kv_head_each``: multi-head attention, a config without num_key_value_heads.
    ``windows_every``: without layer_types, each n-th layer is full and the others slide; a
    sliding_window_pattern in the config takes its place.
    """

    family: Family
    derives_head_dim: bool = False
    one_kv_head_each: bool = False
    windows_every: int | None = None


_PLAIN: Final = Architecture(Family.HEADS)
_DERIVED: Final = Architecture(Family.HEADS, derives_head_dim=True)
_LATENT: Final = Architecture(Family.LATENT)
_DELTA: Final = Architecture(Family.GATED_DELTA)
_GEMMA3: Final = Architecture(Family.HEADS, windows_every=6)

ARCHITECTURES: Final[dict[str, Architecture]] = {
    "Cohere2ForCausalLM": Architecture(Family.HEADS, derives_head_dim=True, windows_every=4),
    "CohereForCausalLM": _DERIVED,
    "DeepseekV2ForCausalLM": _LATENT,
    "DeepseekV32ForCausalLM": _LATENT,
    "DeepseekV3ForCausalLM": _LATENT,
    "DeepseekV4ForCausalLM": Architecture(Family.COMPRESSED),
    "GPTNeoXForCausalLM": Architecture(Family.HEADS, derives_head_dim=True, one_kv_head_each=True),
    "Gemma2ForCausalLM": Architecture(Family.HEADS, windows_every=2),
    "Gemma3ForCausalLM": _GEMMA3,
    "Gemma3ForConditionalGeneration": _GEMMA3,
    "Gemma4ForCausalLM": Architecture(Family.GEMMA4),
    "Gemma4ForConditionalGeneration": Architecture(Family.GEMMA4),
    "GemmaForCausalLM": _PLAIN,
    "Glm4MoeForCausalLM": _PLAIN,
    "GlmMoeDsaForCausalLM": _LATENT,
    "GptOssForCausalLM": _PLAIN,
    "KimiK25ForConditionalGeneration": _LATENT,
    "KimiK3ForConditionalGeneration": Architecture(Family.DELTA_LATENT),
    "KimiLinearForCausalLM": Architecture(Family.DELTA_LATENT),
    "LlamaForCausalLM": _DERIVED,
    "MiMoForCausalLM": _DERIVED,
    "MiMoV2FlashForCausalLM": Architecture(Family.SPLIT_HEADS),
    "MiMoV2ForCausalLM": Architecture(Family.SPLIT_HEADS),
    "MiniMaxM2ForCausalLM": _PLAIN,
    "MiniMaxM3ForCausalLM": Architecture(Family.BLOCK_SPARSE),
    "MiniMaxM3SparseForCausalLM": Architecture(Family.BLOCK_SPARSE),
    "MistralForCausalLM": _DERIVED,
    "MixtralForCausalLM": _DERIVED,
    "NemotronHForCausalLM": Architecture(Family.MAMBA2),
    "Phi3ForCausalLM": _DERIVED,
    "Qwen2ForCausalLM": _DERIVED,
    "Qwen2MoeForCausalLM": _DERIVED,
    "Qwen3ForCausalLM": _PLAIN,
    "Qwen3MoeForCausalLM": _PLAIN,
    "Qwen3NextForCausalLM": _DELTA,
    "Qwen3VLForConditionalGeneration": _PLAIN,
    "Qwen3VLMoeForConditionalGeneration": _PLAIN,
    "Qwen3_5ForCausalLM": _DELTA,
    "Qwen3_5ForConditionalGeneration": _DELTA,
    "Qwen3_5MoeForCausalLM": _DELTA,
    "Qwen3_5MoeForConditionalGeneration": _DELTA,
}
