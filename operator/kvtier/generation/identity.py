"""What makes KV bytes interchangeable, and the short name of it.

Two engines may exchange KV only if everything in the identity is equal. A generation's id is the
first 12 hex digits of the SHA-256 of the identity's canonical JSON.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from kvtier.api.types import AttentionGroup, KVCacheTierSpec, Layout, Pool

IDENTITY_VERSION = 1
ID_LENGTH = 12


def identity(spec: KVCacheTierSpec, *, version: int = IDENTITY_VERSION) -> dict[str, Any]:
    """The identity of a tier's KV as plain data, defaults filled in, absent fields left out.

    ``version`` is the one pinned in the tier's record: what a version puts into the identity never
    changes again, so that a release renames no generation. Raises ValueError for a version that
    this release does not know.
    """
    if version != IDENTITY_VERSION:
        raise ValueError(
            f"identity version {version} is unknown to this release, which knows "
            f"{IDENTITY_VERSION}: run the release that made the tier, or a later one"
        )
    model, pool = spec.model, spec.pool
    # Field by field, not a dump of the models: a field that a later release adds to them must not
    # rename the generations of tiers that exist.
    fields: dict[str, Any] = {
        "identityVersion": version,
        "modelName": model.name,
        "revision": model.revision,
        "tokenizerRevision": model.tokenizer_revision or model.revision,
        "kvCacheDtype": model.kv_cache_dtype.value,
        "layout": layout_identity(model.layout),
        "ranks": pool.ranks,
        "parallelism": _parallelism(pool),
        "chunkTokens": pool.chunk_tokens,
        "striping": pool.striping.value,
        "connector": pool.engine.connector.value,
        "connectorSeries": pool.engine.version,
    }
    if model.salt is not None:
        fields["salt"] = model.salt
    if model.identity:
        fields["identity"] = dict(model.identity)
    return fields


def generation_id(spec: KVCacheTierSpec, *, version: int = IDENTITY_VERSION) -> str:
    """12 hex digits that name the generation of KV which this spec describes."""
    return id_of(identity(spec, version=version))


def id_of(fields: Mapping[str, Any]) -> str:
    """The id of an identity."""
    return hashlib.sha256(canonical_json(fields).encode("ascii")).hexdigest()[:ID_LENGTH]


def canonical_json(value: Any) -> str:
    """JSON with sorted keys, no spaces and ASCII only: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def layout_identity(layout: Layout) -> dict[str, Any]:
    """The layout as it stands in an identity: equal for layouts that keep the same bytes."""
    if layout.gqa is not None:
        gqa = layout.gqa
        return {"gqa": {"layers": gqa.layers, "kvHeads": gqa.kv_heads, "headDim": gqa.head_dim}}
    if layout.mla is not None:
        mla = layout.mla
        return {
            "mla": {
                "layers": mla.layers,
                "kvLoraRank": mla.kv_lora_rank,
                "qkRopeHeadDim": mla.qk_rope_head_dim,
            }
        }
    if layout.groups is not None:
        # In one order, whatever the manifest's: the bytes do not depend on it.
        groups = [_group(group) for group in layout.groups]
        return {"groups": sorted(groups, key=canonical_json)}
    return {"bytesPerToken": layout.bytes_per_token}


def _group(group: AttentionGroup) -> dict[str, Any]:
    # A default that is written out changes nothing.
    own_values = group.value_head_dim if group.value_head_dim != group.head_dim else None
    sizes = {
        "kvHeads": group.kv_heads,
        "headDim": group.head_dim,
        "valueHeadDim": own_values,
        "kvLoraRank": group.kv_lora_rank,
        "qkRopeHeadDim": group.qk_rope_head_dim,
        "window": group.window,
        "stateBytes": group.state_bytes,
        "indexHeadDim": group.index_head_dim,
        "compressionStride": group.compression_stride,
        "entryBytes": group.entry_bytes,
    }
    given = {name: size for name, size in sizes.items() if size is not None}
    return {"attention": group.attention.value, "layers": group.layers} | given


def _parallelism(pool: Pool) -> dict[str, int]:
    parallelism = pool.parallelism
    return {
        "tensor": parallelism.tensor or pool.ranks,
        "pipeline": parallelism.pipeline,
        "decodeContext": parallelism.decode_context,
        "prefillContext": parallelism.prefill_context,
    }
