"""Pure: the pods of a tier's pool as the lifecycle of generations sees them."""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kvtier.api.types import GROUP, KVCacheTier
from kvtier.generation.case import Pod, Policy
from kvtier.generation.entry import GenerationEntry
from kvtier.generation.identity import id_of, identity
from kvtier.generation.pods.read import (
    PodIdentity,
    config_maps_of,
    data_at_start,
    differences,
    read_pod,
)
from kvtier.generation.pods.secrets import others_secrets
from kvtier.plan.observed import Object
from kvtier.plan.placement import FINISHED

# What a spec can be given from an identity, by the identity's names: no layout is among them, so a
# generation of another model's shape cannot be made without somebody who says what it is.
_MODEL_FIELDS: Mapping[str, str] = {
    "modelName": "name",
    "revision": "revision",
    "tokenizerRevision": "tokenizer_revision",
    "kvCacheDtype": "kv_cache_dtype",
    "salt": "salt",
    "identity": "identity",
}
_READ_ANNOTATIONS = (f"{GROUP}/", "nvidia.com/")
OFFERED_FIELDS = frozenset({"revision", "tokenizerRevision", "kvCacheDtype"})
"""In what an engine may differ from the spec for a generation to be made for it."""


@dataclass(frozen=True, slots=True)
class PoolPod:
    """A pod of the pool. ``digest`` changes with anything in it that could change the reading;
    ``others`` are engine Secrets that it has of other tiers."""

    name: str
    digest: str
    ready: bool
    identity: PodIdentity
    others: tuple[str, ...] = ()

    @property
    def pod(self) -> Pod:
        return Pod(ready=self.ready, identity=self.identity)


def has_ended(pod: Object) -> bool:
    """One that is being deleted has not: it may write until its last moment."""
    return pod.get("status", {}).get("phase") in FINISHED


def is_ready(pod: Object) -> bool:
    if "deletionTimestamp" in pod["metadata"]:
        return False
    conditions = pod.get("status", {}).get("conditions", ())
    return any(each["type"] == "Ready" and each.get("status") == "True" for each in conditions)


def digest_of(pod: Object) -> str:
    """Of what ``read_pod`` looks at, and of whether the pod is there and ready."""
    metadata, status = pod["metadata"], pod.get("status", {})
    images = [
        (each.get("name"), each.get("imageID"))
        for kind in ("containerStatuses", "initContainerStatuses")
        for each in status.get(kind) or ()
    ]
    annotations = metadata.get("annotations") or {}
    facts = [
        metadata.get("uid"),
        metadata.get("labels"),
        # Others write their own all the time, and no reading looks at them.
        {name: text for name, text in annotations.items() if name.startswith(_READ_ANNOTATIONS)},
        pod.get("spec"),
        images,
        has_ended(pod),
        is_ready(pod),
    ]
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def config_maps_wanted(pods: Iterable[Object]) -> list[str]:
    """Names of the ConfigMaps that pods which have not ended take their arguments from, sorted."""
    alive = (pod for pod in pods if not has_ended(pod))
    return sorted({name for pod in alive for name in config_maps_of(pod)})


def pool_pods(
    pods: Iterable[Object], *, tier: str, config_maps: Mapping[str, Object]
) -> list[PoolPod]:
    """The pods that have not ended, read. A ConfigMap that is not among ``config_maps`` (objects,
    by name) makes what it holds unreadable."""
    return [
        PoolPod(
            name=pod["metadata"]["name"],
            digest=digest_of(pod),
            ready=is_ready(pod),
            identity=read_pod(pod, tier=tier, config_maps=data_at_start(pod, config_maps)),
            others=others_secrets(pod, tier=tier),
        )
        for pod in pods
        if not has_ended(pod)
    ]


def policy_of(tier: KVCacheTier) -> Policy:
    rollout = tier.spec.rollout
    return Policy(
        drain_timeout=rollout.drain_seconds,
        on_pool_drift=rollout.on_pool_drift,
        revocation=rollout.revocation,
        credential_epoch=rollout.credential_epoch,
        paused=tier.spec.paused,
    )


def offered(wanted: Mapping[str, Any], pods: Collection[PoolPod]) -> dict[str, Mapping[str, Any]]:
    """Identities, by id, that pods without a Secret of the tier run and that differ from the spec's
    only in what a Secret can be made for."""
    found: dict[str, Mapping[str, Any]] = {}
    for pod in pods:
        if pod.identity.generations:
            continue
        changed = {each.field: each.runs for each in differences(wanted, pod.identity)}
        if changed and changed.keys() <= OFFERED_FIELDS:
            fields = {**wanted, **changed}
            if "revision" in changed and "tokenizerRevision" not in changed:
                same = wanted["tokenizerRevision"] == wanted["revision"]
                fields["tokenizerRevision"] = (
                    changed["revision"] if same else wanted["tokenizerRevision"]
                )
            found[id_of(fields)] = fields
    return found


def tier_of(tier: KVCacheTier, entry: GenerationEntry, *, version: int) -> KVCacheTier | None:
    """The tier as it would be if its spec named this generation; None where that cannot be told."""
    fields = entry.identity
    if fields is None:
        return None
    changes = {name: fields.get(key) for key, name in _MODEL_FIELDS.items()}
    changes["identity"] = changes["identity"] or {}
    document = tier.spec.model.model_dump()
    try:
        model = type(tier.spec.model).model_validate({**document, **changes})
    except ValueError:
        return None
    spec = tier.spec.model_copy(update={"model": model})
    if identity(spec, version=version) != fields:
        return None
    return tier.model_copy(update={"spec": spec})
