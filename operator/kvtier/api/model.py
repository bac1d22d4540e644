"""``spec.model``: everything that makes KV bytes interchangeable, and how many there are."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from kvtier.api.base import Change, Model, extra, rule
from kvtier.api.groups import MAX_GROUPS, AttentionGroup
from kvtier.api.scalars import Integer

_IDENTITY = extra(Change.GENERATION)


class KVCacheDtype(StrEnum):
    """The effective dtype of stored KV. ``auto`` is no member: identity needs the real one."""

    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT32 = "float32"
    FP8_E4M3 = "fp8_e4m3"
    FP8_E5M2 = "fp8_e5m2"


class GqaLayout(Model):
    """Grouped-query attention (MHA and MQA are its ends): K and V per KV head."""

    layers: Integer = Field(
        ge=1,
        le=1024,
        description="Layers that keep KV. num_hidden_layers in the model's config.json.",
        json_schema_extra=_IDENTITY,
    )
    kv_heads: Integer = Field(
        ge=1,
        le=1024,
        description="KV heads of the whole model, not of one rank. num_key_value_heads in"
        " config.json.",
        json_schema_extra=_IDENTITY,
    )
    head_dim: Integer = Field(
        ge=1,
        le=8192,
        description="Elements of one head. head_dim in config.json, else hidden_size /"
        " num_attention_heads.",
        json_schema_extra=_IDENTITY,
    )


class MlaLayout(Model):
    """Multi-head latent attention: one latent vector and one rotary key per layer."""

    layers: Integer = Field(
        ge=1,
        le=1024,
        description="Layers that keep KV. num_hidden_layers in config.json.",
        json_schema_extra=_IDENTITY,
    )
    kv_lora_rank: Integer = Field(
        ge=1,
        le=65536,
        description="Elements of the latent vector. kv_lora_rank in config.json.",
        json_schema_extra=_IDENTITY,
    )
    qk_rope_head_dim: Integer = Field(
        ge=0,
        le=65536,
        description="Elements of the rotary key. qk_rope_head_dim in config.json.",
        json_schema_extra=_IDENTITY,
    )


class Layout(Model):
    """Exactly one of its members is set."""

    gqa: GqaLayout | None = Field(
        default=None, description="Grouped-query, multi-head or multi-query attention."
    )
    mla: MlaLayout | None = Field(
        default=None, description="Multi-head latent attention, without other kinds of layer."
    )
    groups: list[AttentionGroup] | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_GROUPS,
        description="Hybrids: layers of several kinds, one entry for each. kvtier layout prints"
        " them from a model's config.json.",
        json_schema_extra=extra(
            rules=[
                rule(
                    "self.exists(g, g.attention == 'Full')",
                    "one group must have attention Full",
                )
            ]
        ),
    )
    bytes_per_token: Integer | None = Field(
        default=None,
        ge=1,
        le=1 << 30,
        description="Bytes stored and moved per token, when known as a figure: any other"
        " attention. Taken as it is, without replication.",
        json_schema_extra=_IDENTITY,
    )


class ModelSpec(Model):
    name: str = Field(
        min_length=1,
        max_length=253,
        description="The model as engines name it, such as meta-llama/Llama-3.1-70B-Instruct.",
        json_schema_extra=_IDENTITY,
    )
    revision: str = Field(
        min_length=1,
        max_length=253,
        description="Revision of the weights: a commit, a tag or a digest that never moves.",
        json_schema_extra=_IDENTITY,
    )
    kv_cache_dtype: KVCacheDtype = Field(
        description="Data type of the KV cache that engines really use; auto is none, the engine's"
        " log names the real one.",
        json_schema_extra=_IDENTITY,
    )
    tokenizer_revision: str | None = Field(
        default=None,
        min_length=1,
        max_length=253,
        description="Revision of the tokenizer. Without it the value of revision.",
        json_schema_extra=_IDENTITY,
    )
    salt: str | None = Field(
        default=None,
        min_length=1,
        max_length=253,
        description="Any text. Change it when weights changed in place, under the same name and"
        " revision: KV of the old weights is then never read again.",
        json_schema_extra=_IDENTITY,
    )
    identity: dict[
        Annotated[str, StringConstraints(min_length=1, max_length=63)],
        Annotated[str, StringConstraints(max_length=253)],
    ] = Field(
        default_factory=dict,
        max_length=16,
        description="Whatever else changes the bytes of the KV cache: rope overrides,"
        " quantization, adapters merged into the weights.",
        json_schema_extra=extra(
            Change.GENERATION,
            rules=[
                rule(
                    "self.all(k, size(k) >= 1 && size(k) <= 63)",
                    "a key has 1 to 63 characters",
                )
            ],
        ),
    )
    layout: Layout = Field(
        description="How much KV one token has. Exactly one of gqa, mla, groups, bytesPerToken.",
        json_schema_extra=extra(
            rules=[
                rule(
                    "[has(self.gqa), has(self.mla), has(self.groups), has(self.bytesPerToken)]"
                    ".filter(x, x).size() == 1",
                    "set exactly one of gqa, mla, groups, bytesPerToken",
                )
            ]
        ),
    )
