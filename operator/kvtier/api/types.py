"""The models of ``KVCacheTier``: the one place where a field is declared.

The CRD's schema is generated from them (``kvtier.api.crd``), and every other package reads a tier
through them. Field names are snake_case here and camelCase on the wire.
"""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from kvtier.api.scalars import Decimal, Duration, Quantity, parse_duration, parse_quantity

GROUP = "kvtier.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "KVCacheTier"
PLURAL = "kvcachetiers"
SHORT_NAME = "kvt"
MAX_NAME_LENGTH = 40
MAX_RANKS = 64


class Model(BaseModel):
    """Base of every part of the API: unknown fields are errors, instances do not change."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        use_enum_values=False,
        allow_inf_nan=False,
        strict=False,
    )


class Striping(StrEnum):
    """How chunks spread over the W Valkeys of a tier."""

    HASH = "Hash"
    SHARD = "Shard"


class KVCacheDtype(StrEnum):
    """The effective dtype of stored KV. ``auto`` is no member: identity needs the real one."""

    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT32 = "float32"
    FP8_E4M3 = "fp8_e4m3"
    FP8_E5M2 = "fp8_e5m2"


class Eviction(StrEnum):
    LRU = "LRU"
    LFU = "LFU"


class Connector(StrEnum):
    LMCACHE_MP = "LMCacheMP"


class LoadFailurePolicy(StrEnum):
    RECOMPUTE = "Recompute"
    FAIL = "Fail"


class StoreVersion(StrEnum):
    V8_1 = "8.1"
    V9_1 = "9.1"


class GqaLayout(Model):
    """Grouped-query attention (MHA and MQA are its ends): K and V per KV head."""

    layers: int = Field(ge=1, le=1024, description="Transformer layers that keep KV.")
    kv_heads: int = Field(ge=1, le=1024, description="KV heads of the whole model.")
    head_dim: int = Field(ge=1, le=8192, description="Dimension of one head, in elements.")


class MlaLayout(Model):
    """Multi-head latent attention: one latent vector and one rotary key per layer."""

    layers: int = Field(ge=1, le=1024, description="Transformer layers that keep KV.")
    kv_lora_rank: int = Field(ge=1, le=65536, description="Width of the latent, in elements.")
    qk_rope_head_dim: int = Field(ge=0, le=65536, description="Width of the rotary key.")


class Layout(Model):
    """Exactly one of its members is set."""

    gqa: GqaLayout | None = Field(default=None, description="GQA, MHA or MQA.")
    mla: MlaLayout | None = Field(default=None, description="Multi-head latent attention.")
    bytes_per_token: int | None = Field(
        default=None, ge=1, le=1 << 30, description="Wire bytes per token, when known as a figure."
    )


class ModelSpec(Model):
    name: str = Field(min_length=1, max_length=253, description="Model name.")
    revision: str = Field(min_length=1, max_length=253, description="Revision of the weights.")
    kv_cache_dtype: KVCacheDtype = Field(description="Effective dtype of the KV cache.")
    tokenizer_revision: str | None = Field(
        default=None, min_length=1, max_length=253, description="Defaults to revision."
    )
    salt: str | None = Field(
        default=None,
        min_length=1,
        max_length=253,
        description="Change it when weights changed in place.",
    )
    identity: dict[
        Annotated[str, Field(min_length=1, max_length=63)], Annotated[str, Field(max_length=253)]
    ] = Field(
        default_factory=dict, max_length=16, description="Whatever else changes the KV bytes."
    )
    layout: Layout = Field(description="How much KV one token has. Exactly one member.")


class Parallelism(Model):
    tensor: int | None = Field(default=None, ge=1, le=MAX_RANKS, description="Defaults to ranks.")
    pipeline: int = Field(default=1, ge=1, le=MAX_RANKS, description="Pipeline stages.")
    decode_context: int = Field(default=1, ge=1, le=MAX_RANKS, description="Decode context.")
    prefill_context: int = Field(default=1, ge=1, le=MAX_RANKS, description="Prefill context.")


class PrefillRate(Model):
    tokens: int = Field(default=0, ge=0, le=100_000_000, description="Prompt length.")
    tokens_per_second: int = Field(ge=1, le=1_000_000_000, description="Rate of one engine.")


class Engine(Model):
    connector: Connector = Field(default=Connector.LMCACHE_MP, description="KV connector.")
    version: str = Field(default="0.5", pattern=r"^0\.5$", description="Compatibility series.")
    load_failure_policy: LoadFailurePolicy = Field(
        default=LoadFailurePolicy.RECOMPUTE, description="What vLLM does when a load fails."
    )


class Pool(Model):
    ranks: int = Field(ge=1, le=MAX_RANKS, description="W: workers of one engine; also Valkeys.")
    striping: Striping = Field(default=Striping.HASH, description="How chunks spread.")
    parallelism: Parallelism = Field(default_factory=Parallelism, description="Of one engine.")
    chunk_tokens: int = Field(default=256, ge=16, le=65536, description="Tokens of one chunk.")
    prefill_rate: list[PrefillRate] = Field(
        min_length=1, max_length=16, description="Prefill rate of one engine."
    )
    hit_latency: Duration | None = Field(default=None, description="Waiting part of T0.")
    hit_engine_time: Duration | None = Field(default=None, description="GPU-held part of T0.")
    max_engines: int = Field(default=8, ge=1, le=1024, description="Sizes connections.")
    engine: Engine = Field(default_factory=Engine, description="What engines run.")


class LengthQuantile(Model):
    quantile: Decimal = Field(description='A decimal above 0 and at most 1, such as "0.5".')
    tokens: int = Field(ge=1, le=100_000_000, description="Length at this quantile.")


class Workload(Model):
    hit_tokens: list[LengthQuantile] = Field(
        default_factory=list, max_length=16, description="Lengths of hits."
    )
    prompt_tokens: list[LengthQuantile] = Field(
        default_factory=list, max_length=16, description="Lengths of prompts."
    )


class Toleration(Model):
    key: str | None = Field(default=None, max_length=317, description="Taint key.")
    operator: str | None = Field(default=None, pattern="^(Exists|Equal)$", description="Match.")
    value: str | None = Field(default=None, max_length=63, description="Taint value.")
    effect: str | None = Field(
        default=None,
        pattern="^(NoSchedule|PreferNoSchedule|NoExecute)$",
        description="Taint effect.",
    )
    toleration_seconds: int | None = Field(default=None, description="For NoExecute.")


class LocalObjectReference(Model):
    name: str = Field(min_length=1, max_length=253, description="Name of a Secret.")


LabelMap = dict[
    Annotated[str, Field(min_length=1, max_length=317)], Annotated[str, Field(max_length=253)]
]


class Store(Model):
    image: str | None = Field(default=None, max_length=512, description="Valkey image.")
    version: StoreVersion = Field(default=StoreVersion.V9_1, description="Valkey series.")
    memory_per_rank: Quantity = Field(description="Memory limit of one rank's container.")
    cpu: Quantity = Field(default="1", description="CPU request and limit of one rank.")
    io_threads: int = Field(default=1, ge=1, le=64, description="Valkey I/O threads.")
    eviction: Eviction = Field(default=Eviction.LRU, description="What is evicted first.")
    tolerations: list[Toleration] = Field(
        default_factory=list, max_length=32, description="Tolerations of rank pods."
    )
    node_selector: LabelMap = Field(
        default_factory=dict, max_length=16, description="Where ranks may run."
    )
    priority_class_name: str | None = Field(
        default=None, max_length=253, description="Priority class of rank pods."
    )
    image_pull_secrets: list[LocalObjectReference] = Field(
        default_factory=list, max_length=8, description="Pull secrets of rank pods."
    )
    labels: LabelMap = Field(default_factory=dict, max_length=16, description="Pod labels.")
    annotations: LabelMap = Field(
        default_factory=dict, max_length=16, description="Pod annotations."
    )

    @property
    def memory_bytes(self) -> int:
        """The container's memory limit in bytes."""
        return int(parse_quantity(self.memory_per_rank))


class Domain(Model):
    name: str = Field(min_length=1, max_length=63, description="Name of the topology level.")
    key: str = Field(min_length=1, max_length=317, description="Node label that names it.")


class Link(Model):
    domain: str = Field(min_length=1, max_length=63, description="Farthest domain both are in.")
    bits_per_second: Quantity = Field(description="Whole path into the engine's node.")
    round_trip: Duration = Field(description="Round trip time.")

    @property
    def bytes_per_second(self) -> float:
        return float(parse_quantity(self.bits_per_second)) / 8

    @property
    def round_trip_seconds(self) -> float:
        return parse_duration(self.round_trip)


def default_domains() -> list[Domain]:
    return [
        Domain(name="hostname", key="kubernetes.io/hostname"),
        Domain(name="zone", key="topology.kubernetes.io/zone"),
    ]


class Placement(Model):
    domains: list[Domain] = Field(
        default_factory=default_domains, min_length=1, max_length=8, description="Near to far."
    )
    links: list[Link] = Field(default_factory=list, max_length=8, description="Declared links.")


class KVCacheTierSpec(Model):
    model: ModelSpec = Field(description="What the KV belongs to.")
    pool: Pool = Field(description="The prefill pool that the tier serves.")
    workload: Workload = Field(default_factory=Workload, description="What the pool is asked.")
    store: Store = Field(description="The Valkeys.")
    placement: Placement = Field(default_factory=Placement, description="Topology and links.")
    paused: bool = Field(default=False, description="Stop applying and rolling.")


class ObjectMeta(BaseModel):
    """The parts of metadata that kvtier reads."""

    model_config = ConfigDict(extra="ignore", frozen=True, alias_generator=to_camel)

    name: str
    namespace: str = "default"
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    deletion_timestamp: str | None = None
    annotations: dict[str, str] = Field(default_factory=dict)


class KVCacheTier(BaseModel):
    """One tier, as applied. ``status`` is kept as the plain mapping that the server returned."""

    model_config = ConfigDict(extra="ignore", frozen=True, alias_generator=to_camel)

    metadata: ObjectMeta
    spec: KVCacheTierSpec
    status: dict[str, Any] = Field(default_factory=dict)
