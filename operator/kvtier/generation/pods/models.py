"""Which model and revision an engine's ``--model`` is, by where its files come from."""

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvtier.generation.pods.environment import Files
from kvtier.generation.pods.reading import Reading
from kvtier.generation.pods.safe import mapping, mappings, sequence, short, text

MOVING: Final = frozenset({"main", "master", "head", "latest", "default"})
"""Names that are branches or tags that move."""
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_INITIALIZER: Final = "storage-initializer"
_SOURCE_URI: Final = "internal.serving.kserve.io/storage-initializer-sourceuri"
_MODELCAR: Final = "modelcar"
_KSERVE_PATH: Final = "/mnt/models"
_MUTABLE: Final = {
    "persistentVolumeClaim": "PersistentVolumeClaim",
    "hostPath": "a directory of the node",
    "nfs": "NFS",
    "csi": "a CSI volume",
    "ephemeral": "a volume of the pod's own",
    "emptyDir": "an empty directory that the pod fills itself",
}


@dataclass(frozen=True, slots=True)
class Place:
    """The pod and the mounts of its engine."""

    pod: Mapping[str, Any]
    files: Files


def read_model(reading: Reading, model: str, *, place: Place) -> None:
    """Add ``modelName`` and, if the place tells it, ``revision``."""
    if "://" in model:
        _from_uri(reading, model)
    elif found := snapshot(model):
        reading.know("modelName", found[0])
        reading.know("revision", found[1])
    elif model.startswith(("/", "./", "../", "~")):
        _from_path(reading, model, place)
    else:
        reading.know("modelName", model)


def snapshot(path: str) -> tuple[str, str] | None:
    """(name, commit) of a path in a Hugging Face cache: ``models--org--name/snapshots/commit``."""
    parts = path.split("/")
    for repository, folder, commit in zip(parts, parts[1:], parts[2:], strict=False):
        if repository.startswith("models--") and folder == "snapshots" and commit:
            return repository.removeprefix("models--").replace("--", "/"), commit
    return None


def digest_of(image: str) -> str:
    """``sha256:...`` of an image's reference or id; '' if it has none."""
    found = _DIGEST.search(image[-512:])
    return found[0] if found else ""


def image_of(pod: Mapping[str, Any], container: Mapping[str, Any]) -> str:
    """The digest that a container runs, by its status, else by its manifest; '' if none says."""
    name = text(container.get("name"))
    for status in mappings(mapping(pod.get("status")).get("containerStatuses")):
        if text(status.get("name")) == name and (found := digest_of(text(status.get("imageID")))):
            return found
    return digest_of(text(container.get("image")))


def revision_from(reading: Reading, name: str, value: str, *, shown: str) -> None:
    """Add a revision that is a name of the hub: a branch that moves cannot be told."""
    if value.lower() in MOVING:
        reading.doubt(name, f"{shown} {value} moves; name a commit")
    else:
        reading.know(name, value)


def _from_uri(reading: Reading, uri: str) -> None:
    scheme, _, rest = uri.partition("://")
    if scheme == "hf":
        parts = rest.replace("@", ":").split(":")
        name, revision = parts[0].strip("/"), ":".join(parts[1:])
        reading.know("modelName", name)
        if revision:
            revision_from(reading, "revision", revision, shown=f"hf://{name}:")
        return
    reading.doubt("modelName", f"the model is {short(uri)}, which names none")
    reading.know("modelPath", uri.split("?")[0])
    if digest := digest_of(uri):
        reading.know("revision", digest)
    else:
        reading.doubt("revision", f"what lies at {scheme}:// may change")


def _from_path(reading: Reading, path: str, place: Place) -> None:
    if uri := _initialized(path, place.pod):
        _from_uri(reading, uri)
        return
    reading.know("modelPath", path)
    reading.doubt("modelName", f"the model is the directory {short(path)}, which names none")
    containers = mappings(mapping(place.pod.get("spec")).get("containers"))
    cars = [each for each in containers if text(each.get("name")) == _MODELCAR]
    if path.startswith(_KSERVE_PATH) and cars:
        _from_image(reading, image_of(place.pod, cars[0]), text(cars[0].get("image")))
        return
    volume = place.files.volume(path)
    if volume is None:
        reading.know("modelIn", "image")
        reading.doubt("revision", f"{short(path)} lies in the image, whose digest stands for it")
    elif volume.kind == "image":
        reference = text(volume.source.get("reference"))
        _from_image(reading, digest_of(reference), reference)
    else:
        what = _MUTABLE.get(volume.kind, f"a volume of kind {volume.kind}")
        name = text(volume.source.get("claimName")) or text(volume.source.get("path"))
        reading.doubt("revision", f"{short(path)} lies in {what} {short(name)}: it may change")


def _from_image(reading: Reading, digest: str, image: str) -> None:
    if digest:
        reading.know("revision", digest)
    else:
        reading.doubt("revision", f"the model's image {short(image)} has no digest")


def _initialized(path: str, pod: Mapping[str, Any]) -> str:
    """What KServe's storage initializer puts at ``path``; '' if nothing."""
    for container in mappings(mapping(pod.get("spec")).get("initContainers")):
        words = [text(each) for each in sequence(container.get("args"))]
        if text(container.get("name")) == _INITIALIZER and len(words) >= 2:
            for uri, target in zip(words[::2], words[1::2], strict=False):
                if posixpath.normpath(path) == posixpath.normpath(target or "/"):
                    return uri
    annotations = mapping(mapping(pod.get("metadata")).get("annotations"))
    uri = text(annotations.get(_SOURCE_URI))
    return uri if "://" in uri and posixpath.normpath(path) == _KSERVE_PATH else ""
