"""What all children have in common: metadata, owner, hashes."""

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

from kvtier.api.types import API_VERSION, KIND, KVCacheTier
from kvtier.generation.identity import canonical_json
from kvtier.render.names import labels

HASH_LENGTH = 16


def metadata(tier: KVCacheTier, name: str, *, rank: int | None = None) -> dict[str, Any]:
    """Metadata of a child that the garbage collector removes with the tier.

    Without a cluster (``kvtier render``) the owner's uid is empty.
    """
    return {
        "name": name,
        "namespace": tier.metadata.namespace,
        "labels": labels(tier.metadata.name, rank),
        "ownerReferences": [
            {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "name": tier.metadata.name,
                "uid": tier.metadata.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }


def secret(tier: KVCacheTier, name: str, *, data: Mapping[str, str | bytes]) -> dict[str, Any]:
    """A Secret. ``data`` is base64 as in the live object: ``stringData`` is not in it."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(tier, name),
        "type": "Opaque",
        "data": {key: _encoded(value) for key, value in data.items()},
    }


def _encoded(value: str | bytes) -> str:
    return base64.b64encode(value.encode() if isinstance(value, str) else value).decode("ascii")


def digest(value: Any) -> str:
    """A short hash of plain data."""
    return hashlib.sha256(canonical_json(value).encode("ascii")).hexdigest()[:HASH_LENGTH]
