"""All children of a tier, as plain objects."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvtier.api.types import KVCacheTier, StoreVersion
from kvtier.generation.record import Record
from kvtier.render.configmap import configmap
from kvtier.render.engine import engine_secret
from kvtier.render.probe import probe_secret
from kvtier.render.secrets import acl_secret, limiter_secret, operator_secret
from kvtier.render.service import service
from kvtier.render.statefulset import statefulset


def _default_images() -> dict[str, str]:
    return {version.value: f"docker.io/valkey/valkey:{version.value}" for version in StoreVersion}


@dataclass(frozen=True, slots=True)
class RenderSettings:
    """What an installation decides: the image of each Valkey series, where a tier names none, and
    kvtier's own, which probes; None: nothing is probed."""

    valkey_images: Mapping[str, str] = field(default_factory=_default_images)
    probe_image: str | None = None

    def image(self, tier: KVCacheTier) -> str:
        store = tier.spec.store
        return store.image or self.valkey_images[store.version.value]


def render(
    tier: KVCacheTier, record: Record, *, settings: RenderSettings, ca: str | None = None
) -> list[dict[str, Any]]:
    """Every child with its full intent, in the order in which they are to be applied.

    ``ca`` is what engines verify the ranks by (PEM), None without TLS.

    What a pod mounts comes before the pod, and the engines' Secret before the ranks: it is a
    function of spec and record only, and no engine needs to wait for a Ready rank to read it.
    Raises MemoryTooSmall for a tier that was not validated.
    """
    ranks = range(tier.spec.pool.ranks)
    image = settings.image(tier)
    return [
        operator_secret(tier, record),
        acl_secret(tier, record),
        configmap(tier),
        engine_secret(tier, record, ca=ca),
        *([probe_secret(tier, record, ca=ca)] if record.probe_token is not None else []),
        *filter(None, [limiter_secret(tier, record, ca=ca)]),
        *(service(tier, rank) for rank in ranks),
        *(statefulset(tier, rank, image=image, domain=record.domain) for rank in ranks),
    ]
