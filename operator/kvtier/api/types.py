"""``KVCacheTier``, the one place that other packages import the API's models from.

The CRD's schema is generated from them (``kvtier.api.crd``). Field names are snake_case here and
camelCase on the wire.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool
from pydantic.alias_generators import to_camel

from kvtier.api.admission import Admission, AdmissionMode
from kvtier.api.base import (
    API_VERSION,
    GROUP,
    KIND,
    MAX_NAME_LENGTH,
    MAX_RANKS,
    PLURAL,
    SHORT_NAME,
    SINGULAR,
    VERSION,
    Change,
    Model,
    extra,
    rule,
)
from kvtier.api.engine import Adapter, Connector, Engine, LoadFailurePolicy
from kvtier.api.groups import Attention, AttentionGroup
from kvtier.api.model import GqaLayout, KVCacheDtype, Layout, MlaLayout, ModelSpec
from kvtier.api.placement import (
    Domain,
    Enforcement,
    Link,
    OnReject,
    Placement,
    Spread,
    default_domains,
)
from kvtier.api.pool import (
    LengthQuantile,
    Parallelism,
    Pool,
    PrefillRate,
    Striping,
    Workload,
)
from kvtier.api.rollout import OnPoolDrift, Revocation, Rollout
from kvtier.api.store import (
    Eviction,
    LabelMap,
    LocalObjectReference,
    Store,
    StoreVersion,
    Toleration,
)

__all__ = [
    "API_VERSION",
    "GROUP",
    "KIND",
    "MAX_NAME_LENGTH",
    "MAX_RANKS",
    "PLURAL",
    "SHORT_NAME",
    "SINGULAR",
    "VERSION",
    "Adapter",
    "Admission",
    "AdmissionMode",
    "Attention",
    "AttentionGroup",
    "Connector",
    "Domain",
    "Enforcement",
    "Engine",
    "Eviction",
    "GqaLayout",
    "KVCacheDtype",
    "KVCacheTier",
    "KVCacheTierSpec",
    "LabelMap",
    "Layout",
    "LengthQuantile",
    "Link",
    "LoadFailurePolicy",
    "LocalObjectReference",
    "MlaLayout",
    "Model",
    "ModelSpec",
    "ObjectMeta",
    "OnPoolDrift",
    "OnReject",
    "Parallelism",
    "Placement",
    "Pool",
    "PrefillRate",
    "Revocation",
    "Rollout",
    "Spread",
    "Store",
    "StoreVersion",
    "Striping",
    "Toleration",
    "Workload",
    "default_domains",
]


_SPEC_RULES = [
    rule(
        "!has(self.model.layout.gqa) || (has(self.pool.parallelism.tensor) ?"
        " (self.model.layout.gqa.kvHeads % self.pool.parallelism.tensor == 0 ||"
        " self.pool.parallelism.tensor % self.model.layout.gqa.kvHeads == 0) :"
        " (self.model.layout.gqa.kvHeads % self.pool.ranks == 0 ||"
        " self.pool.ranks % self.model.layout.gqa.kvHeads == 0))",
        "model.layout.gqa.kvHeads and pool.parallelism.tensor (default: pool.ranks): one must"
        " divide the other",
    ),
    rule(
        "!has(self.model.layout.gqa) || self.pool.parallelism.decodeContext == 1",
        "pool.parallelism.decodeContext must be 1 with model.layout.gqa",
    ),
    rule(
        "!has(self.model.layout.groups) || self.model.layout.groups.all(g, !has(g.kvHeads) ||"
        " (has(self.pool.parallelism.tensor) ? (g.kvHeads % self.pool.parallelism.tensor == 0 ||"
        " self.pool.parallelism.tensor % g.kvHeads == 0) : (g.kvHeads % self.pool.ranks == 0 ||"
        " self.pool.ranks % g.kvHeads == 0)))",
        "kvHeads of model.layout.groups and pool.parallelism.tensor (default: pool.ranks): one must"
        " divide the other",
    ),
    rule(
        "!has(self.model.layout.groups) || (self.pool.parallelism.pipeline == 1 &&"
        " self.pool.parallelism.decodeContext == 1 && (self.pool.striping == 'Hash' ||"
        " self.pool.engine.connector == 'Generic'))",
        "model.layout.groups needs pool.striping Hash, and pool.parallelism.pipeline and"
        " decodeContext of 1",
    ),
    rule(
        "self.pool.engine.connector != 'LMCacheInProcess' || !has(self.model.layout.groups)",
        "model.layout.groups needs pool.engine.connector LMCacheMP or Generic",
    ),
    rule(
        "self.pool.engine.connector != 'LMCacheInProcess' || self.pool.striping != 'Shard' ||"
        " has(self.model.layout.gqa)",
        "pool.engine.connector LMCacheInProcess with striping Shard needs model.layout.gqa",
    ),
]


class KVCacheTierSpec(Model):
    model_config = ConfigDict(json_schema_extra=extra(rules=_SPEC_RULES))

    model: ModelSpec = Field(
        description="What the KV belongs to. Everything here is part of the generation's identity."
    )
    pool: Pool = Field(
        description="The prefill engines that the tier serves.",
    )
    workload: Workload = Field(
        default_factory=Workload,
        description="What the engines are asked. Without it the verdict judges a standard set of"
        " lengths.",
    )
    store: Store = Field(description="The Valkeys, one per rank.")
    placement: Placement = Field(
        default_factory=Placement,
        description="Topology and links.",
    )
    rollout: Rollout = Field(
        default_factory=Rollout,
        description="How a changed model replaces the one before it, and how credentials change.",
    )
    admission: Admission = Field(
        default_factory=Admission,
        description="How much is let in while the tier is cold.",
    )
    paused: StrictBool = Field(
        default=False,
        description="True stops applying and rolling. Running ranks serve on.",
        json_schema_extra=extra(Change.LIVE),
    )


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
