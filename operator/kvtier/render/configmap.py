"""The ConfigMap with valkey.conf, the same for every rank."""

from typing import Any

from kvtier.api.types import KVCacheTier
from kvtier.render.meta import metadata
from kvtier.render.names import CONFIG_KEY, config_name
from kvtier.render.valkey_conf import valkey_conf


def configmap(tier: KVCacheTier) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(tier, config_name(tier.metadata.name)),
        "data": {CONFIG_KEY: valkey_conf(tier.spec)},
    }
