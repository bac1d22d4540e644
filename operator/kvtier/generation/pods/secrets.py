"""Which of a tier's generations a pod has the credentials of."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from kvtier.generation.identity import ID_LENGTH
from kvtier.generation.pods.safe import mapping, mappings, text
from kvtier.render.names import engine_secret_name

_ID: Final = re.compile(f"[0-9a-f]{{{ID_LENGTH}}}")
_ENGINE_SECRET: Final = re.compile(engine_secret_name(".+", f"[0-9a-f]{{{ID_LENGTH}}}"))
CONTAINERS: Final = ("initContainers", "containers", "ephemeralContainers")


def generations_of(pod: Mapping[str, Any], *, tier: str) -> frozenset[str]:
    """Ids of the generations whose Secret the pod mounts or takes its environment from."""
    names = _secrets_of(pod)
    return frozenset(found for name in names if (found := generation_in(name, tier=tier)))


def others_secrets(pod: Mapping[str, Any], *, tier: str) -> tuple[str, ...]:
    """Names of Secrets that the pod has and that look like those of other tiers' generations."""
    return tuple(
        sorted(
            name
            for name in _secrets_of(pod)
            if _ENGINE_SECRET.fullmatch(name) and generation_in(name, tier=tier) is None
        )
    )


def _secrets_of(pod: Mapping[str, Any]) -> set[str]:
    """A volume counts even if no container mounts it: the next edit of the pod's template may."""
    spec = mapping(mapping(pod).get("spec"))
    names = set(_of_volumes(spec))
    for kind in CONTAINERS:
        for container in mappings(spec.get(kind)):
            names.update(_of_environment(container))
    return names


def generation_in(secret: str, *, tier: str) -> str | None:
    """The generation whose Secret this is, None for another Secret."""
    prefix = engine_secret_name(tier, "")
    found = secret.removeprefix(prefix)
    return found if secret.startswith(prefix) and _ID.fullmatch(found) else None


def secret_mounts(spec: Mapping[str, Any], container: Mapping[str, Any], *, tier: str) -> list[str]:
    """Paths in the container at which it has a generation's Secret."""
    volumes = {
        text(volume.get("name"))
        for volume in mappings(spec.get("volumes"))
        if any(generation_in(name, tier=tier) for name in _of_volume(volume))
    }
    return [
        text(mount.get("mountPath")).rstrip("/")
        for mount in mappings(container.get("volumeMounts"))
        if text(mount.get("name")) in volumes
    ]


def uses_secret(spec: Mapping[str, Any], container: Mapping[str, Any], *, tier: str) -> bool:
    """Whether this container has a generation's Secret."""
    own = any(generation_in(name, tier=tier) for name in _of_environment(container))
    return own or bool(secret_mounts(spec, container, tier=tier))


def _of_volumes(spec: Mapping[str, Any]) -> Iterator[str]:
    for volume in mappings(spec.get("volumes")):
        yield from _of_volume(volume)


def _of_volume(volume: Mapping[str, Any]) -> Iterator[str]:
    yield text(mapping(volume.get("secret")).get("secretName"))
    for source in mappings(mapping(volume.get("projected")).get("sources")):
        yield text(mapping(source.get("secret")).get("name"))


def _of_environment(container: Mapping[str, Any]) -> Iterator[str]:
    for source in mappings(container.get("envFrom")):
        yield text(mapping(source.get("secretRef")).get("name"))
    for variable in mappings(container.get("env")):
        reference = mapping(mapping(variable.get("valueFrom")).get("secretKeyRef"))
        yield text(reference.get("name"))
