"""The Secret of a generation that the spec does not name any more.

What it was made from is gone, so it stays as it was, but for what must follow: its token where
credentials were changed, and the CA.
"""

import base64
from collections.abc import Mapping
from typing import Any

from kvtier.api.types import KVCacheTier
from kvtier.generation.entry import GenerationEntry
from kvtier.render.meta import secret
from kvtier.render.names import CA_KEY, engine_secret_name


def kept_secret(
    tier: KVCacheTier, entry: GenerationEntry, found: Mapping[str, Any], *, ca: str | None
) -> dict[str, Any]:
    """The Secret ``found``, as it is to be."""
    data = {key: base64.b64decode(text) for key, text in (found.get("data") or {}).items()}
    for each in entry.retired:
        data = {
            key: value.replace(each.token.encode(), entry.token.encode())
            for key, value in data.items()
        }
    if ca is not None and CA_KEY in data:
        data[CA_KEY] = ca.encode()
    return secret(tier, engine_secret_name(tier.metadata.name, entry.id), data=data)
