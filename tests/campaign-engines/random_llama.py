"""Writes a tiny Llama with random weights: DIRECTORY SEED. Run by the environment that has torch.

Not vLLM's own ``load_format=dummy``: that has one seed, and weights so small that attention does
not count, so that KV of another model would give the same output.
"""

import json
import sys
from pathlib import Path

import torch
from random_llama_shape import HEAD_DIM, HEADS, HIDDEN, INNER, KV_HEADS, LAYERS, POSITIONS, WORDS
from safetensors.torch import save_file

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "vocab_size": WORDS,
    "max_position_embeddings": POSITIONS,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}


def main(directory: Path, seed: int) -> None:
    torch.manual_seed(seed)
    shapes = {
        "self_attn.q_proj": (HIDDEN, HIDDEN),
        "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HIDDEN),
        "mlp.gate_proj": (INNER, HIDDEN),
        "mlp.up_proj": (INNER, HIDDEN),
        "mlp.down_proj": (HIDDEN, INNER),
    }
    # Of unit variance after each product, so that a few tokens have most of the attention.
    weights = {
        f"model.layers.{layer}.{name}.weight": torch.randn(shape) * 2 / shape[1] ** 0.5
        for layer in range(LAYERS)
        for name, shape in shapes.items()
    }
    for layer in range(LAYERS):
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"model.layers.{layer}.{name}.weight"] = torch.ones(HIDDEN)
    weights["model.norm.weight"] = torch.ones(HIDDEN)
    weights["model.embed_tokens.weight"] = torch.randn(WORDS, HIDDEN)
    weights["lm_head.weight"] = torch.randn(WORDS, HIDDEN) / HIDDEN**0.5
    directory.mkdir(parents=True)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(CONFIG))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
