"""What a container starts with: its variables and the files that ConfigMaps give it."""

import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kvtier.generation.pods.safe import LONGEST_TEXT, Marks, mapping, mappings, text

ConfigMaps = Mapping[str, Mapping[str, str]]
_FIELDS_THAT_STAY: Final = {"metadata.name": "name", "metadata.namespace": "namespace"}


@dataclass(slots=True)
class Variables:
    """A container's variables; values may have marks. ``others``: who may set more of them."""

    marks: Marks
    values: dict[str, str] = field(default_factory=dict)
    others: str = ""

    def get(self, name: str, *, shown: str = "") -> str:
        """The value, or a mark."""
        if name in self.values:
            return self.values[name]
        shown = shown or f"${name}"
        if self.others:
            return self.marks.mark(shown, f"may come from {self.others}")
        return self.marks.mark(shown, "the pod does not set", unset=True)

    def sets(self, name: str) -> bool:
        return name in self.values or bool(self.others)


def variables_of(
    pod: Mapping[str, Any],
    container: Mapping[str, Any],
    *,
    config_maps: ConfigMaps,
    marks: Marks,
    ours: Callable[[str], bool],
) -> Variables:
    """The variables that the kubelet sets. ``ours``: whether a Secret is a generation's, which
    says nothing of the model."""
    found = Variables(marks)
    for source in mappings(container.get("envFrom")):
        prefix = text(source.get("prefix"))
        secret = text(mapping(source.get("secretRef")).get("name"))
        name = text(mapping(source.get("configMapRef")).get("name"))
        if secret and not ours(secret):
            found.others = f"Secret {secret}"
        elif name in config_maps:
            data = mapping(config_maps[name])
            found.values |= {f"{prefix}{key}": text(value) for key, value in data.items()}
        elif name:
            found.others = f"ConfigMap {name}, which was not read"
    for variable in mappings(container.get("env")):
        name = text(variable.get("name"))
        source = mapping(variable.get("valueFrom"))
        if source:
            value = _referenced(pod, name, source, config_maps=config_maps, marks=marks)
        else:
            value = expanded(text(variable.get("value")), found)
        if len(value) > LONGEST_TEXT:
            value = marks.mark(f"${name}", "is too long to read")
        found.values[name] = value
    return found


def _referenced(
    pod: Mapping[str, Any],
    name: str,
    source: Mapping[str, Any],
    *,
    config_maps: ConfigMaps,
    marks: Marks,
) -> str:
    shown = f"${name}"
    if reference := mapping(source.get("configMapKeyRef")):
        config_map, key = text(reference.get("name")), text(reference.get("key"))
        data = mapping(config_maps.get(config_map))
        if key in data:
            return text(data[key])
        return marks.mark(shown, f"comes from ConfigMap {config_map}, which was not read")
    if reference := mapping(source.get("secretKeyRef")):
        return marks.mark(shown, f"comes from Secret {text(reference.get('name'))}")
    path = text(mapping(source.get("fieldRef")).get("fieldPath"))
    if path in _FIELDS_THAT_STAY:
        return text(mapping(pod.get("metadata")).get(_FIELDS_THAT_STAY[path]))
    return marks.mark(shown, f"comes from {path or 'elsewhere'}, as it was when the pod started")


def expanded(value: str, variables: Variables) -> str:
    """``value`` with the ``$(NAME)`` of Kubernetes put in; an unset one stays as it is written."""
    if "$" not in value:
        return value
    parts: list[str] = []
    at = size = 0
    while (dollar := value.find("$", at)) >= 0:
        parts.append(value[at:dollar])
        following = value[dollar + 1 : dollar + 2]
        at = dollar + 2
        if following == "$":
            parts.append("$")
        elif following == "(" and (end := value.find(")", at)) >= 0:
            name = value[at:end]
            plain = f"$({name})"
            is_name = name.replace("_", "a").replace("-", "a").replace(".", "a").isalnum()
            known = is_name and variables.sets(name)
            parts.append(variables.get(name, shown=plain) if known else plain)
            at = end + 1
        else:
            parts.append(f"${following}")
        size += len(parts[-1]) + len(parts[-2])
        if size > LONGEST_TEXT:
            return variables.marks.mark("it", "is too long to read")
    parts.append(value[at:])
    return "".join(parts)


@dataclass(frozen=True, slots=True)
class Volume:
    """What is mounted at a path. ``rest``: the path within the volume."""

    source: Mapping[str, Any]
    kind: str
    rest: str


@dataclass(frozen=True, slots=True)
class Files:
    """A container's mounts."""

    mounts: tuple[tuple[str, str, Mapping[str, Any]], ...]
    """(path, path within the volume, volume), longest path first."""
    config_maps: ConfigMaps

    def volume(self, path: str) -> Volume | None:
        """The volume that has ``path``; None for a path in the image."""
        path = posixpath.normpath(path)
        for mount, within, volume in self.mounts:
            if path == mount or path.startswith(f"{mount.rstrip('/')}/"):
                rest = posixpath.join(within, path[len(mount) :].strip("/")).strip("/")
                kind = next((key for key in volume if key != "name"), "emptyDir")
                return Volume(mapping(volume.get(kind)), kind, rest)
        return None

    def read(self, path: str) -> tuple[str, str]:
        """(text, '') of a file from a ConfigMap, or ('', why it cannot be read)."""
        volume = self.volume(path)
        if volume is None:
            return "", "lies in the image"
        if volume.kind == "configMap":
            return self._read(volume.source, volume.rest)
        if volume.kind == "projected":
            for source in mappings(volume.source.get("sources")):
                found, why = self._read(mapping(source.get("configMap")), volume.rest)
                if not why:
                    return found, ""
        return "", f"lies in a volume of kind {volume.kind}"

    def _read(self, source: Mapping[str, Any], rest: str) -> tuple[str, str]:
        name = text(source.get("name"))
        if not name:
            return "", "lies in no ConfigMap"
        if name not in self.config_maps:
            return "", f"lies in ConfigMap {name}, which was not read"
        items = {
            text(each.get("path")): text(each.get("key")) for each in mappings(source.get("items"))
        }
        key = items.get(rest, "") if items else rest
        data = mapping(self.config_maps[name])
        if key not in data:
            return "", f"is not in ConfigMap {name}"
        found = text(data[key])
        return (found, "") if len(found) <= LONGEST_TEXT else ("", "is too long to read")


def files_of(
    spec: Mapping[str, Any], container: Mapping[str, Any], *, config_maps: ConfigMaps
) -> Files:
    """The container's mounts of the pod's volumes."""
    volumes = {text(each.get("name")): each for each in mappings(spec.get("volumes"))}
    mounts = [
        (
            posixpath.normpath(text(mount.get("mountPath")) or "/"),
            text(mount.get("subPath")),
            volumes.get(text(mount.get("name")), {}),
        )
        for mount in mappings(container.get("volumeMounts"))
    ]
    mounts.sort(key=lambda each: -len(each[0]))
    return Files(tuple(mounts), config_maps)


def data_at_start(
    pod: Mapping[str, Any], config_maps: Mapping[str, Mapping[str, Any]]
) -> dict[str, Mapping[str, str]]:
    """Data of those ConfigMaps that are as they were when the pod's containers started.

    ``config_maps``: the objects by name. Variables are set and arguments read when a container
    starts: one that was edited since says what the next pod runs, not this one. Kept are those that
    no manager has written, and immutable ones that were made, before the earliest start.
    """
    statuses = mappings(mapping(mapping(pod).get("status")).get("containerStatuses"))
    starts = [
        text(mapping(mapping(each.get("state")).get("running")).get("startedAt"))
        for each in statuses
    ]
    earliest = min(starts, default="")
    return {
        name: mapping(found.get("data"))
        for name, found in config_maps.items()
        if _written(found) < earliest
    }


def _written(config_map: Mapping[str, Any]) -> str:
    """When it was last written, as Kubernetes writes times (UTC, so texts compare as times do)."""
    metadata = mapping(config_map.get("metadata"))
    if config_map.get("immutable") is True:
        # Another one may have been made under its name since.
        return text(metadata.get("creationTimestamp")) or "~"
    times = [text(each.get("time")) for each in mappings(metadata.get("managedFields"))]
    return max(times) if times and all(times) else "~"


def config_maps_of(pod: Mapping[str, Any]) -> frozenset[str]:
    """Names of the ConfigMaps that a pod's containers take variables or files from."""
    spec = mapping(mapping(pod).get("spec"))
    names: set[str] = set()
    mounted: set[str] = set()
    for container in mappings(spec.get("containers")) + mappings(spec.get("initContainers")):
        for source in mappings(container.get("envFrom")):
            names.add(text(mapping(source.get("configMapRef")).get("name")))
        for variable in mappings(container.get("env")):
            reference = mapping(mapping(variable.get("valueFrom")).get("configMapKeyRef"))
            names.add(text(reference.get("name")))
        mounted |= {text(each.get("name")) for each in mappings(container.get("volumeMounts"))}
    for volume in mappings(spec.get("volumes")):
        if text(volume.get("name")) in mounted:
            names.add(text(mapping(volume.get("configMap")).get("name")))
            for source in mappings(mapping(volume.get("projected")).get("sources")):
                names.add(text(mapping(source.get("configMap")).get("name")))
    return frozenset(names - {"", "kube-root-ca.crt"})
