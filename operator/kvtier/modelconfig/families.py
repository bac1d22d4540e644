"""From the fields of one family of architectures to groups of layers."""

from collections.abc import Callable
from typing import Any, Final

from kvtier.api.types import Attention, AttentionGroup
from kvtier.breakeven.sizes import ELEMENT_BYTES
from kvtier.modelconfig import layers as layer
from kvtier.modelconfig.architectures import Architecture, Family
from kvtier.modelconfig.fields import Fields

Groups = list[AttentionGroup]
Reader = Callable[[Fields, Architecture], Groups]

_FLOAT32_BYTES = 4
_BFLOAT16_BYTES = 2


def groups(config: Fields, architecture: Architecture) -> Groups:
    """Groups of layers, none of them empty. Raises UnreadableConfig naming a field."""
    return READERS[architecture.family](config, architecture)


def _heads(config: Fields, architecture: Architecture) -> Groups:
    count = config.size("num_hidden_layers")
    sizes = {
        "kv_heads": _kv_heads(config, architecture),
        "head_dim": _head_dim(config, architecture),
    }
    windowed = layer.sliding(config, architecture, layers=count)
    return _full_and_windowed(config, full=(count - windowed, sizes), windowed=(windowed, sizes))


def _split_heads(config: Fields, _: Architecture) -> Groups:
    count = config.size("num_hidden_layers")
    windowed = layer.ones(config, "hybrid_layer_pattern", layers=count)
    full = {
        "kv_heads": config.size("num_key_value_heads"),
        "head_dim": config.size("head_dim"),
        "value_head_dim": config.size("v_head_dim"),
    }
    own = {
        "kv_heads": config.size("swa_num_key_value_heads"),
        "head_dim": config.size("swa_head_dim"),
        "value_head_dim": config.size("swa_v_head_dim"),
    }
    return _full_and_windowed(config, full=(count - windowed, full), windowed=(windowed, own))


def _gemma4(config: Fields, _: Architecture) -> Groups:
    # The last layers share the KV of earlier ones and keep none.
    count = config.size("num_hidden_layers")
    shared = config.size("num_kv_shared_layers", least=0)
    kinds = config.each_layer("layer_types", layers=count)[: max(0, count - shared)]
    windowed = layer.by_type(config, kinds, known=(layer.FULL, layer.SLIDING))
    heads = config.size("num_key_value_heads")
    full = {
        "kv_heads": config.optional_size("num_global_key_value_heads") or heads,
        "head_dim": config.size("global_head_dim"),
    }
    local = {"kv_heads": heads, "head_dim": config.size("head_dim")}
    sliding = windowed[layer.SLIDING]
    return _full_and_windowed(config, full=(len(kinds) - sliding, full), windowed=(sliding, local))


def _latent(config: Fields, _: Architecture) -> Groups:
    count = config.size("num_hidden_layers")
    found = [_group(Attention.FULL, count, **_latent_sizes(config))]
    if config.get("index_head_dim") is None:
        return found
    indexed = count
    if config.get("indexer_types") is not None:
        kinds = config.each_layer("indexer_types", layers=count)
        if any(kind not in ("full", "shared") for kind in kinds):
            raise config.bad("indexer_types", "has entries other than full and shared")
        indexed = kinds.count("full")
    index = _group(Attention.SPARSE_INDEX, indexed, index_head_dim=config.size("index_head_dim"))
    return [*found, index]


def _compressed(config: Fields, _: Architecture) -> Groups:
    # DeepSeek-V4: each layer keeps a window of latents, and entries that stand for 4 or 128 tokens
    # each. Where they stand for 4, an index chooses among them.
    count = config.size("num_hidden_layers")
    head, rope = config.size("head_dim"), config.size("qk_rope_head_dim")
    if config.size("num_key_value_heads") != 1 or rope >= head:
        raise config.bad("num_key_value_heads", "this architecture has one latent of head_dim")
    ratios = config.get("compress_ratios")
    if not isinstance(ratios, list) or len(ratios) < count:
        raise config.bad("compress_ratios", f"has not one entry for each of {count} layers")
    # Entries beyond num_hidden_layers are of draft layers.
    ratios = ratios[:count]
    if any(ratio not in (0, 4, 128) for ratio in ratios):
        raise config.bad("compress_ratios", "has ratios other than 0, 4 and 128")
    latent = {"kv_lora_rank": head - rope, "qk_rope_head_dim": rope}
    fine, coarse = ratios.count(4), ratios.count(128)
    index = {"index_head_dim": config.size("index_head_dim"), "compression_stride": 4}
    return [
        *_some(Attention.FULL, fine, **latent, compression_stride=4),
        *_some(Attention.FULL, coarse, **latent, compression_stride=128),
        _group(Attention.SLIDING_WINDOW, count, **latent, window=config.size("sliding_window")),
        *_some(Attention.SPARSE_INDEX, fine, **index),
    ]


def _block_sparse(config: Fields, architecture: Architecture) -> Groups:
    count = config.size("num_hidden_layers")
    sparse = config.part("sparse_attention_config")
    indexed = layer.ones(sparse, "sparse_attention_freq", layers=count)
    dimension = sparse.size("sparse_index_dim")
    # Engines keep these keys in bfloat16 whatever the dtype of the KV cache.
    index = {"index_head_dim": dimension, "entry_bytes": dimension * _BFLOAT16_BYTES}
    return [*_heads(config, architecture), *_some(Attention.SPARSE_INDEX, indexed, **index)]


def _gated_delta(config: Fields, architecture: Architecture) -> Groups:
    count = config.size("num_hidden_layers")
    linear = layer.linear(config, layers=count)
    keys = config.size("linear_num_key_heads") * config.size("linear_key_head_dim")
    value_heads = config.size("linear_num_value_heads")
    values = value_heads * config.size("linear_value_head_dim")
    convolution = (config.size("linear_conv_kernel_dim") - 1) * (2 * keys + values)
    state = convolution * _dtype_bytes(config) + values * config.size(
        "linear_key_head_dim"
    ) * _dtype_bytes(config, "mamba_ssm_dtype")
    sizes = {
        "kv_heads": config.size("num_key_value_heads"),
        "head_dim": _head_dim(config, architecture),
    }
    return [
        *_some(Attention.FULL, count - linear, **sizes),
        *_some(Attention.LINEAR, linear, state_bytes=state),
    ]


def _delta_latent(config: Fields, _: Architecture) -> Groups:
    count = config.size("num_hidden_layers")
    linear = config.part("linear_attn_config")
    full, delta = linear.get("full_attn_layers"), linear.get("kda_layers")
    named = [*full, *delta] if isinstance(full, list) and isinstance(delta, list) else []
    # Numbered from 1.
    if len(named) != count or any(number not in named for number in range(1, count + 1)):
        raise linear.bad(
            "kda_layers", f"and full_attn_layers do not name each of 1 to {count} once"
        )
    heads, head = linear.size("num_heads"), linear.size("head_dim")
    convolution = 3 * (linear.size("short_conv_kernel_size") - 1) * heads * head
    # The recurrent part is float32 in every engine.
    state = convolution * _dtype_bytes(config) + heads * head * head * _FLOAT32_BYTES
    return [
        *_some(Attention.FULL, len(full), **_latent_sizes(config)),
        *_some(Attention.LINEAR, len(delta), state_bytes=state),
    ]


def _mamba2(config: Fields, architecture: Architecture) -> Groups:
    # One letter for each layer: M is Mamba-2, * is attention, - and E are layers without KV.
    pattern = config.get("hybrid_override_pattern")
    count = config.size("num_hidden_layers")
    if not isinstance(pattern, str) or len(pattern) != count or set(pattern) - set("M*-E"):
        raise config.bad(
            "hybrid_override_pattern", f"is not one of the letters M, *, - and E for {count} layers"
        )
    heads, head = config.size("mamba_num_heads"), config.size("mamba_head_dim")
    size = config.size("ssm_state_size")
    channels = heads * head + 2 * config.size("n_groups") * size
    state = (config.size("conv_kernel") - 1) * channels * _dtype_bytes(config)
    state += heads * head * size * _dtype_bytes(config, "mamba_ssm_cache_dtype")
    sizes = {
        "kv_heads": config.size("num_key_value_heads"),
        "head_dim": _head_dim(config, architecture),
    }
    return [
        *_some(Attention.FULL, pattern.count("*"), **sizes),
        *_some(Attention.LINEAR, pattern.count("M"), state_bytes=state),
    ]


READERS: Final[dict[Family, Reader]] = {
    Family.HEADS: _heads,
    Family.SPLIT_HEADS: _split_heads,
    Family.GEMMA4: _gemma4,
    Family.LATENT: _latent,
    Family.COMPRESSED: _compressed,
    Family.BLOCK_SPARSE: _block_sparse,
    Family.GATED_DELTA: _gated_delta,
    Family.DELTA_LATENT: _delta_latent,
    Family.MAMBA2: _mamba2,
}


def _full_and_windowed(
    config: Fields, *, full: tuple[int, dict[str, int]], windowed: tuple[int, dict[str, int]]
) -> Groups:
    found = _some(Attention.FULL, full[0], **full[1])
    if windowed[0]:
        window = config.size("sliding_window")
        found += _some(Attention.SLIDING_WINDOW, windowed[0], **windowed[1], window=window)
    return found


def _some(attention: Attention, layers: int, **sizes: int) -> Groups:
    return [_group(attention, layers, **sizes)] if layers else []


def _group(attention: Attention, layers: int, **sizes: Any) -> AttentionGroup:
    # A value as long as its key is said by leaving it out: one layout, one identity.
    if sizes.get("value_head_dim") == sizes.get("head_dim"):
        sizes.pop("value_head_dim", None)
    return AttentionGroup(attention=attention, layers=layers, **sizes)


def _latent_sizes(config: Fields) -> dict[str, int]:
    return {
        "kv_lora_rank": config.size("kv_lora_rank"),
        "qk_rope_head_dim": config.size("qk_rope_head_dim", least=0),
    }


def _kv_heads(config: Fields, architecture: Architecture) -> int:
    if architecture.one_kv_head_each:
        return config.size("num_attention_heads")
    return config.size("num_key_value_heads")


def _head_dim(config: Fields, architecture: Architecture) -> int:
    if config.get("head_dim") is not None or not architecture.derives_head_dim:
        return config.size("head_dim")
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    if hidden % heads:
        raise config.bad("hidden_size", f"{hidden} is no multiple of {heads} attention heads")
    return hidden // heads


def _dtype_bytes(config: Fields, name: str = "") -> int:
    """Bytes of one element of a state: of the dtype in the field ``name``, else of the model's."""
    for field in (name, "dtype", "torch_dtype"):
        if field and (value := config.get(field)) is not None:
            if str(value) not in ELEMENT_BYTES:
                raise config.bad(field, f"{value} is no dtype that kvtier knows")
            return ELEMENT_BYTES[str(value)]
    raise config.bad("dtype", "missing; the state of linear layers is kept in it")
