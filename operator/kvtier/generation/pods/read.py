"""What one pod's KV would be. Order of trust: annotation > argument > variable > file > label."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvtier.api.types import GROUP
from kvtier.generation.pods.canonical import KV_DTYPES, NotCanonical, whole
from kvtier.generation.pods.command import Finder, Found, Launch
from kvtier.generation.pods.compare import (
    Difference,
    Disagreement,
    PodIdentity,
    differences,
    disagreements,
    has_drifted,
    unknowns,
)
from kvtier.generation.pods.engines import Role, by_image
from kvtier.generation.pods.environment import (
    ConfigMaps,
    Files,
    config_maps_of,
    data_at_start,
    expanded,
    files_of,
    variables_of,
)
from kvtier.generation.pods.interpret import reading_of
from kvtier.generation.pods.models import image_of, revision_from
from kvtier.generation.pods.reading import ARGUMENTS, Reading
from kvtier.generation.pods.safe import (
    LONGEST_TEXT,
    MOST_WORDS,
    Marks,
    mapping,
    mappings,
    sequence,
    short,
    text,
)
from kvtier.generation.pods.secrets import (
    generation_in,
    generations_of,
    secret_mounts,
    uses_secret,
)

__all__ = [
    "ANNOTATIONS",
    "Difference",
    "Disagreement",
    "PodIdentity",
    "Starts",
    "config_maps_of",
    "data_at_start",
    "differences",
    "disagreements",
    "has_drifted",
    "read_pod",
    "starts_of",
    "unknowns",
]

ANNOTATIONS: Final = {
    f"{GROUP}/model-name": "modelName",
    f"{GROUP}/model-revision": "revision",
    f"{GROUP}/tokenizer-revision": "tokenizerRevision",
    f"{GROUP}/kv-cache-dtype": "kvCacheDtype",
    f"{GROUP}/tensor-parallel": "parallelism.tensor",
    f"{GROUP}/pipeline-parallel": "parallelism.pipeline",
}
"""Annotations by which a pod's owner says what cannot be read, or is read wrongly."""
_DYNAMO_MODEL: Final = "nvidia.com/dynamo-base-model"


@dataclass(frozen=True, slots=True)
class _Container:
    manifest: Mapping[str, Any]
    files: Files
    marks: Marks
    found: Found

    def launches(self, role: Role) -> list[Launch]:
        return [each for each in self.found.launches if each.engine.role is role]

    @property
    def name(self) -> str:
        return short(text(self.manifest.get("name")) or "without a name")


@dataclass(frozen=True, slots=True)
class Starts:
    """What one container starts. ``kind`` and ``index`` are its place in the pod's spec.

    ``program``: image and command as they are written. ``problems``: what else it may start.
    """

    kind: str
    index: int
    name: str
    program: str
    launches: tuple[Launch, ...]
    problems: tuple[str, ...]


def starts_of(pod: Mapping[str, Any], *, tier: str, config_maps: ConfigMaps) -> tuple[Starts, ...]:
    """What the containers of a pod start that a tier has to do with, sidecars first.

    Arguments as in ``read_pod``. Containers that start nothing of it are left out, and so are init
    containers that end.
    """
    pod = mapping(pod)
    spec = mapping(pod.get("spec"))
    found = []
    for kind in ("initContainers", "containers"):
        for index, manifest in enumerate(sequence(spec.get(kind))):
            each = mapping(manifest)
            if kind == "initContainers" and each.get("restartPolicy") != "Always":
                continue
            read = _container(pod, spec, each, tier=tier, config_maps=config_maps)
            if read.found.launches:
                words = (text(each.get("image")), *_words(each.get("command")))
                found.append(
                    Starts(
                        kind=kind,
                        index=index,
                        name=read.name,
                        program=" ".join((*words, *_words(each.get("args")))),
                        launches=tuple(read.found.launches),
                        problems=tuple(read.found.problems),
                    )
                )
    return tuple(found)


def read_pod(pod: Mapping[str, Any], *, tier: str, config_maps: ConfigMaps) -> PodIdentity:
    """What the manifest and status of one pod tell of its KV.

    ``config_maps``: data of those of ``config_maps_of``, by name; one that is left out is
    unreadable. Never raises: what has the wrong type is as good as absent.
    """
    pod = mapping(pod)
    spec = mapping(pod.get("spec"))
    containers = [
        _container(pod, spec, each, tier=tier, config_maps=config_maps)
        for each in mappings(spec.get("containers"))
    ]
    running = [each for each in containers if each.launches(Role.ENGINE)]
    with_secret = [each for each in running if uses_secret(spec, each.manifest, tier=tier)]
    reading = _engines(pod, with_secret or running)
    if not running:
        reading.doubt(ARGUMENTS, _why_none(spec, containers, tier=tier))
    sidecars = [
        _container(pod, spec, each, tier=tier, config_maps=config_maps)
        for each in mappings(spec.get("initContainers"))
        if each.get("restartPolicy") == "Always"
    ]
    _add_chunks(reading, [*containers, *sidecars])
    declared = _add_annotations(reading, pod)
    _add_tokenizer(reading)
    return PodIdentity(
        generations=generations_of(pod, tier=tier),
        fields=reading.fields,
        settings=reading.settings,
        unreadable=reading.unreadable,
        declared=declared,
    )


def _container(
    pod: Mapping[str, Any],
    spec: Mapping[str, Any],
    manifest: Mapping[str, Any],
    *,
    tier: str,
    config_maps: ConfigMaps,
) -> _Container:
    marks, found = Marks(), Found()
    files = files_of(spec, manifest, config_maps=config_maps)
    mounts = secret_mounts(spec, manifest, tier=tier)
    variables = variables_of(
        pod,
        manifest,
        config_maps=config_maps,
        marks=marks,
        ours=lambda name: generation_in(name, tier=tier) is not None,
    )
    command = _words(manifest.get("command"))
    words = [expanded(word, variables) for word in (*command, *_words(manifest.get("args")))]
    if sum(map(len, words)) > 2 * LONGEST_TEXT or len(words) > MOST_WORDS:
        found.problems.append("its arguments are too long to read")
        return _Container(manifest, files, marks, found)
    image = text(manifest.get("image")).split("@")[0].rsplit("/", 1)[-1].split(":")[0]
    if not command and (engine := by_image().get(image)):
        launch = Launch(engine, words, variables, positional=engine.positional)
        found.launches.append(launch)
    else:
        finder = Finder(files, lambda path: path.startswith(tuple(f"{m}/" for m in mounts)), found)
        finder.look(words, variables=variables)
    return _Container(manifest, files, marks, found)


def _words(value: object) -> list[str]:
    return [text(each) for each in sequence(value, most=MOST_WORDS + 1)]


def _engines(pod: Mapping[str, Any], running: Iterable[_Container]) -> Reading:
    """What all engines of the pod say alike."""
    merged: Reading | None = None
    images: set[str] = set()
    for container in running:
        images.add(image_of(pod, container.manifest))
        for launch in container.launches(Role.ENGINE):
            reading = reading_of(launch, pod=pod, files=container.files, marks=container.marks)
            if merged is None:
                merged = reading
            else:
                merged.merge(reading, whose="engines of the pod")
    merged = merged or Reading()
    if known := ",".join(sorted(images - {""})):
        merged.know("image", known)
    return merged


def _why_none(spec: Mapping[str, Any], containers: Iterable[_Container], *, tier: str) -> str:
    problems: list[str] = []
    for container in containers:
        if container.launches(Role.WORKER):
            return (
                f"container {container.name} runs `ray start`: what it loads is the head's to say"
            )
        if container.launches(Role.CACHE):
            continue
        problems += [f"container {container.name}: {each}" for each in container.found.problems[:1]]
        if uses_secret(spec, container.manifest, tier=tier):
            command = container.manifest.get("command")
            why = (
                "its command is no engine's that kvtier knows"
                if command
                else "no command, so that its image decides what runs"
            )
            problems.append(f"container {container.name} has the tier's Secret, but {why}")
    return problems[0] if problems else "no container runs an engine that kvtier knows"


def _add_chunks(reading: Reading, containers: Iterable[_Container]) -> None:
    """Chunk tokens as the LMCache servers beside the engine have them."""
    for container in containers:
        for launch in container.launches(Role.CACHE):
            server = reading_of(launch, pod={}, files=container.files, marks=container.marks)
            if "chunkTokens" not in server.fields:
                continue
            before = reading.fields.get("chunkTokens")
            if before is None or before == server.fields["chunkTokens"]:
                reading.know("chunkTokens", server.fields["chunkTokens"])
            else:
                reading.doubt("chunkTokens", "the engine and its LMCache servers differ in it")


def _add_annotations(reading: Reading, pod: Mapping[str, Any]) -> bool:
    """What the owner says; whether any was said."""
    annotations = mapping(mapping(pod.get("metadata")).get("annotations"))
    if "modelName" not in reading.fields and (name := text(annotations.get(_DYNAMO_MODEL))):
        reading.know("modelName", name.strip())
    said = [name for name in ANNOTATIONS if name in annotations]
    for name in said:
        field, value = ANNOTATIONS[name], text(annotations[name]).strip()
        if field == "kvCacheDtype":
            reading.settings.pop("kvCacheDtype", None)
            if value.lower() in KV_DTYPES:
                reading.know(field, KV_DTYPES[value.lower()])
            else:
                reading.doubt(field, f"annotation {name} is {short(value)}; write the real dtype")
        elif field.startswith("parallelism."):
            try:
                reading.know(field, whole(value))
            except NotCanonical:
                reading.doubt(field, f"annotation {name} is {short(value)}; write a number")
        elif field == "modelName":
            reading.know(field, value)
        else:
            revision_from(reading, field, value, shown=f"annotation {name}")
    return bool(said)


def _add_tokenizer(reading: Reading) -> None:
    """Without a word about the tokenizer it is the model's."""
    if reading.knows("tokenizerRevision") or "tokenizerRevision" in reading.unreadable:
        return
    if tokenizer := reading.settings.get("tokenizer"):
        reading.doubt(
            "tokenizerRevision", f"of the tokenizer {short(tokenizer)} no revision is said"
        )
    elif "tokenizer" not in reading.unreadable and "revision" in reading.fields:
        reading.know("tokenizerRevision", reading.fields["revision"])
