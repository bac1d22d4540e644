"""From one engine's arguments and variables to what its KV would be."""

from collections.abc import Mapping
from typing import Any, Final

from kvtier.generation.pods.argv import Arguments, arguments_of, words_of_file
from kvtier.generation.pods.canonical import (
    DTYPES,
    KV_DTYPES,
    NotCanonical,
    canonical,
    decoded,
    whole,
)
from kvtier.generation.pods.command import Launch
from kvtier.generation.pods.engines import Flag, Role
from kvtier.generation.pods.environment import Files
from kvtier.generation.pods.lexer import OURS
from kvtier.generation.pods.models import Place, read_model, revision_from
from kvtier.generation.pods.reading import ARGUMENTS, Reading
from kvtier.generation.pods.safe import Marks, mapping, mappings, short, text

CONNECTORS: Final = {
    "LMCacheMPConnector": "LMCacheMP",
    "LMCacheConnectorV1": "LMCacheInProcess",
    "LMCacheConnector": "LMCacheInProcess",
}
"""vLLM's names -> those of ``pool.engine.connector``."""
_DERIVED: Final = frozenset({"model", "revision", "tokenizerRevision", "kvCacheDtype", "connector"})
_RUNTIME_ADAPTERS: Final = "VLLM_ALLOW_RUNTIME_LORA_UPDATING"


def reading_of(launch: Launch, *, pod: Mapping[str, Any], files: Files, marks: Marks) -> Reading:
    """What one command says of itself."""
    arguments = arguments_of(launch, files=files, marks=marks)
    reading = Reading()
    _from_variables(reading, launch, marks=marks)
    for flag in launch.engine.meanings:
        if flag.meaning not in _DERIVED:
            _from_flag(reading, flag, arguments, marks)
    if launch.engine.role is not Role.ENGINE:
        return reading
    _kv_dtype(reading, arguments, marks)
    _connector(reading, arguments, marks)
    if reading.fields.get("connector") == "LMCacheInProcess":
        _chunks(reading, launch, files=files, marks=marks)
    if "attentionInDataParallel" in reading.settings:
        reading.doubt("parallelism.tensor", "attention in data parallel divides it")
    _model(reading, launch, arguments, place=Place(pod, files), marks=marks)
    if arguments.open:
        reading.doubt(ARGUMENTS, arguments.open)
    return reading


def _from_variables(reading: Reading, launch: Launch, *, marks: Marks) -> None:
    values = launch.variables.values
    for name, meaning in launch.engine.environment.items():
        if name not in values:
            continue
        value = values[name]
        if unknown := marks.first(value):
            reading.doubt(meaning, f"{name} is {unknown}")
        elif value:
            reading.know(meaning, canonical("word", [value]))
    if values.get(_RUNTIME_ADAPTERS, "").lower() in ("1", "true"):
        reading.doubt("loraModules", f"{_RUNTIME_ADAPTERS} lets adapters be loaded at any time")


def _from_flag(reading: Reading, flag: Flag, arguments: Arguments, marks: Marks) -> None:
    name = flag.meaning
    if name in arguments.doubts:
        reading.doubt(name, arguments.doubts[name])
    elif name in arguments.said:
        if name == "loraModules" and name in reading.unreadable:
            return
        values, shown = arguments.said[name], arguments.shown[name]
        if unknown := next(filter(None, map(marks.first, values)), None):
            reading.doubt(name, f"{shown} is {unknown}")
            return
        try:
            value = canonical(flag.kind, values)
        except NotCanonical:
            reading.doubt(name, f"{shown} {short(' '.join(values))} cannot be read")
            return
        if flag.kind == "switch" and value == "false":
            reading.settings.pop(name, None)
        elif value == "auto" or (flag.kind == "json" and value in ("{}", "null")):
            reading.settings.pop(name, None)  # As without the flag.
        else:
            reading.know(name, int(value) if _is_number(name) else value)
    elif flag.default is not None and not arguments.open:
        reading.know(name, flag.default)


def _is_number(name: str) -> bool:
    return name.startswith("parallelism.") or name == "chunkTokens"


def _said(arguments: Arguments, name: str, marks: Marks) -> tuple[str | None, str]:
    """(value, '') of a flag, (None, why) if it cannot be told, (None, '') if it is not there."""
    if name in arguments.doubts:
        return None, arguments.doubts[name]
    if name not in arguments.said:
        return None, ""
    value = arguments.said[name][-1]
    if unknown := marks.first(value):
        return None, f"{arguments.shown[name]} is {unknown}"
    return value.strip(), ""


def _kv_dtype(reading: Reading, arguments: Arguments, marks: Marks) -> None:
    """``auto`` is the model's dtype, which only ``--dtype`` tells. A checkpoint that brings its
    own scales may keep FP8 even then: ``settings`` says auto, for whoever compares."""
    value, why = _said(arguments, "kvCacheDtype", marks)
    why = why or (arguments.open if value is None else "")
    lowered = (value or "auto").lower()
    if why:
        reading.doubt("kvCacheDtype", why)
    elif lowered in KV_DTYPES:
        reading.know("kvCacheDtype", KV_DTYPES[lowered])
    elif lowered != "auto":
        reading.doubt("kvCacheDtype", f"{short(lowered)} is no dtype that a tier can name")
        reading.know("kvCacheFormat", canonical("word", [lowered]))
    elif (dtype := reading.settings.get("dtype", "")) in DTYPES:
        reading.know("kvCacheDtype", DTYPES[dtype])
        reading.settings["kvCacheDtype"] = "auto"
    else:
        reason = reading.unreadable.get("dtype") or "no --dtype says the model's"
        reading.doubt("kvCacheDtype", f"--kv-cache-dtype is auto, and {reason}")


def _connector(reading: Reading, arguments: Arguments, marks: Marks) -> None:
    value, why = _said(arguments, "connector", marks)
    if why and OURS not in why:
        reading.doubt("connector", why)
    if value is None:
        return
    try:
        config = mapping(decoded(value))
    except NotCanonical:
        reading.doubt("connector", "--kv-transfer-config is no JSON")
        return
    inner = mappings(mapping(config.get("kv_connector_extra_config")).get("connectors"))
    for each in (config, *inner):
        if found := CONNECTORS.get(text(each.get("kv_connector"))):
            reading.know("connector", found)
            return


def _chunks(reading: Reading, launch: Launch, *, files: Files, marks: Marks) -> None:
    """LMCache in the engine's own process: its variable outranks its file. Elsewhere both are left
    over: an LMCache server has the size."""
    values = launch.variables.values
    path, shown = values.get("LMCACHE_CONFIG_FILE", ""), "chunk_size of LMCACHE_CONFIG_FILE"
    content = files.read(path)[0] if path and "\0" not in path else ""
    in_file = words_of_file(content) if content else ()
    sizes = [word.partition("=")[2] for word in in_file if word.startswith("--chunk_size=")]
    if "LMCACHE_CHUNK_SIZE" in values:
        sizes, shown = [values["LMCACHE_CHUNK_SIZE"]], "LMCACHE_CHUNK_SIZE"
    if not sizes:
        return
    if unknown := marks.first(sizes[-1]):
        reading.doubt("chunkTokens", f"{shown} is {unknown}")
        return
    try:
        reading.know("chunkTokens", whole(sizes[-1]))
    except NotCanonical:
        reading.doubt("chunkTokens", f"{shown} is {short(sizes[-1])}, which is no number")


def _model(
    reading: Reading, launch: Launch, arguments: Arguments, *, place: Place, marks: Marks
) -> None:
    revision, why = _said(arguments, "revision", marks)
    if why:
        reading.doubt("revision", why)
    elif revision:
        revision_from(reading, "revision", revision, shown="--revision")
    tokenizer, why = _said(arguments, "tokenizerRevision", marks)
    if why:
        reading.doubt("tokenizerRevision", why)
    elif tokenizer:
        revision_from(reading, "tokenizerRevision", tokenizer, shown="--tokenizer-revision")
    model, why = _said(arguments, "model", marks)
    if launch.positional and arguments.positional:
        model = arguments.positional[0]
        unknown = marks.first(model)
        model, why = (None, f"the model is {unknown}") if unknown else (model, "")
    elif model is None and launch.positional and arguments.doubtful_positional and not why:
        why = "which word is the model cannot be told; write it first"
    if model:
        read_model(reading, model, place=place)
    else:
        reading.doubt("modelName", why or arguments.open or "no model is named")
    if not reading.knows("revision") and "revision" not in reading.unreadable:
        default = "no --revision: the default branch as it was when the pod started"
        reading.doubt("revision", arguments.open or default)
