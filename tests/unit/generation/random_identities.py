"""Random identities as flat truths, and the specs that say them in any of their spellings.

Texts are made of what could break a format: quotes, colons, commas, braces, escapes, and words that
are names or values of other fields.
"""

import random
from collections.abc import Callable, Mapping
from typing import Any

from kvtier.api.types import KVCacheTierSpec

PIECES = (
    *('"', "'", "\\", ":", ",", "{", "}", "[", "]", " ", "\n", "\t", "\x00", "\x7f", "=", "|"),
    *('","', '":"', '","revision":"', '"},"salt":"', "\\u00e9", "é", "e\u0301", "\\n", "😀"),
    *("salt", "revision", "modelName", "identity", "null", "true", "0", "1", "80", "-", ""),
)
SIZES = (1, 2, 8, 64, 80)
# Which sizes a group of a kind has does not matter here: the schema's rules are others' business.
GROUP_SIZES = (
    *("kvHeads", "headDim", "valueHeadDim", "kvLoraRank", "qkRopeHeadDim", "window"),
    *("stateBytes", "indexHeadDim", "compressionStride", "entryBytes"),
)
Truth = Mapping[str, Any]
"""Everything that makes KV interchangeable, defaults filled in; all values can be hashed."""


def text(rng: random.Random) -> str:
    return "".join(rng.choices(PIECES, k=rng.randint(1, 4))) or "x"


def free_map(rng: random.Random) -> frozenset[tuple[str, str]]:
    return frozenset({text(rng): text(rng) for _ in range(rng.randint(0, 3))}.items())


def group(rng: random.Random) -> frozenset[tuple[str, Any]]:
    sizes = {name: rng.choice(SIZES[1:]) for name in rng.sample(GROUP_SIZES, rng.randint(1, 4))}
    if sizes.get("valueHeadDim") == sizes.get("headDim"):
        sizes.pop("valueHeadDim", None)  # A default that is written out: `spec_of` does that.
    kind = rng.choice(("Full", "SlidingWindow", "Linear", "SparseIndex"))
    return frozenset({"attention": kind, "layers": rng.choice(SIZES), **sizes}.items())


def layout(rng: random.Random) -> tuple[str, Any]:
    kind = rng.choice(("gqa", "mla", "groups", "bytesPerToken"))
    if kind == "bytesPerToken":
        return kind, rng.choice(SIZES)
    if kind == "groups":
        found = [group(rng) for _ in range(rng.randint(1, 3))]
        return kind, tuple(sorted(found, key=lambda each: sorted(map(str, each))))
    return kind, tuple(rng.choice(SIZES) for _ in range(3))


FIELDS: Mapping[str, Callable[[random.Random], Any]] = {
    "name": text,
    "revision": text,
    "tokenizer": text,
    "dtype": lambda rng: rng.choice(("bfloat16", "float16", "float32", "fp8_e4m3", "fp8_e5m2")),
    "layout": layout,
    "salt": lambda rng: rng.choice((None, text(rng))),
    "identity": free_map,
    "ranks": lambda rng: rng.choice(SIZES[:4]),
    "tensor": lambda rng: rng.choice(SIZES[:4]),
    "pipeline": lambda rng: rng.choice(SIZES[:4]),
    "decodeContext": lambda rng: rng.choice(SIZES[:4]),
    "prefillContext": lambda rng: rng.choice(SIZES[:4]),
    "chunkTokens": lambda rng: rng.choice((16, 64, 256)),
    "striping": lambda rng: rng.choice(("Hash", "Shard")),
    "connector": lambda rng: rng.choice(("LMCacheMP", "LMCacheInProcess", "Generic")),
}


def truth(rng: random.Random) -> Truth:
    return {name: draw(rng) for name, draw in FIELDS.items()}


def altered(rng: random.Random, base: Truth, field: str) -> Truth:
    """``base`` with another value of one field."""
    while True:
        value = FIELDS[field](rng)
        if value != base[field]:
            return {**base, field: value}


def spec_of(rng: random.Random, said: Truth) -> KVCacheTierSpec:
    """The spec that says it: defaults left out or written, maps and groups in any order."""
    model = {"name": said["name"], "revision": said["revision"], "kvCacheDtype": said["dtype"]}
    if said["tokenizer"] != said["revision"] or rng.random() < 0.5:
        model["tokenizerRevision"] = said["tokenizer"]
    if said["salt"] is not None:
        model["salt"] = said["salt"]
    if said["identity"] or rng.random() < 0.5:
        model["identity"] = dict(_shuffled(rng, said["identity"]))
    model["layout"] = _layout(rng, said["layout"])
    pool: dict[str, Any] = {"ranks": said["ranks"], "prefillRate": [{"tokensPerSecond": 1}]}
    defaults = {"chunkTokens": 256, "striping": "Hash"}
    pool |= {name: said[name] for name in defaults if _written(rng, said[name], defaults[name])}
    parts = {"tensor": said["ranks"], "pipeline": 1, "decodeContext": 1, "prefillContext": 1}
    parallelism = {name: said[name] for name in parts if _written(rng, said[name], parts[name])}
    if parallelism or rng.random() < 0.5:
        pool["parallelism"] = parallelism
    if _written(rng, said["connector"], "LMCacheMP"):
        pool["engine"] = {"connector": said["connector"]}
    spec = {"model": model, "pool": pool, "store": {"memoryPerRank": "64Gi"}}
    return KVCacheTierSpec.model_validate(spec)


def _written(rng: random.Random, value: Any, default: Any) -> bool:
    return bool(value != default) or rng.random() < 0.5


def _shuffled(rng: random.Random, values: Any) -> list[Any]:
    # Sorted first: the order of a set of texts is another in each process.
    found = sorted(values, key=str)
    rng.shuffle(found)
    return found


def _layout(rng: random.Random, said: tuple[str, Any]) -> dict[str, Any]:
    kind, value = said
    if kind == "gqa":
        return {kind: dict(zip(("layers", "kvHeads", "headDim"), value, strict=True))}
    if kind == "mla":
        return {kind: dict(zip(("layers", "kvLoraRank", "qkRopeHeadDim"), value, strict=True))}
    if kind == "groups":
        return {kind: _shuffled(rng, [_group(rng, dict(each)) for each in value])}
    return {kind: value}


def _group(rng: random.Random, said: dict[str, Any]) -> dict[str, Any]:
    if "headDim" in said and "valueHeadDim" not in said and rng.random() < 0.5:
        said["valueHeadDim"] = said["headDim"]
    return dict(_shuffled(rng, said.items()))
