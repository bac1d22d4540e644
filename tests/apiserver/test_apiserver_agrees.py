"""The API server and kvtier's loader accept the same tiers.

Random edits of a good tier go to both. Whatever one takes and the other does not is a rule that
only one of them has.
"""

import copy
import itertools
import json
import random
from collections.abc import Iterator
from typing import Any

from apiserver_manifests import merge_patch
from dry_run import DryRun

from kvtier.api.load import InvalidTier, parse_tier

BASE: dict[str, Any] = {
    "apiVersion": "kvtier.dev/v1alpha1",
    "kind": "KVCacheTier",
    "metadata": {"name": "tier", "namespace": "default"},
    "spec": {
        "model": {
            "name": "m",
            "revision": "r",
            "kvCacheDtype": "bfloat16",
            "layout": {"gqa": {"layers": 2, "kvHeads": 8, "headDim": 64}},
        },
        "pool": {"ranks": 8, "prefillRate": [{"tokensPerSecond": 5000}]},
        "store": {"memoryPerRank": "64Gi"},
    },
}
# Not 1.0: kubectl writes it as 1, and nobody else would.
NUMBERS = [-1, 0, 1, 2, 3, 8, 16, 63, 64, 65, 1024, 65536, 10**9, 10**12, 1.5, "1", True]
TEXTS = ["", "a", "A", "a b", "a/b", "a/b/c", "a.b", "-a", "a-", "x" * 63, "x" * 64, "x" * 400, 5]
QUANTITIES = [
    *("64Mi", "63.9Mi", "0.0625Gi", "16Ti", "16.1Ti", "1P", "10m", "9m", "1000m", "0.5", "0.0005"),
    *("256", "257", "1e3", "1E", "64GB", "-1Gi", "", " 1Gi", "1Gi ", "1.Gi", ".5Gi", "1n"),
    *(0, 1, 256, 257, 67108863, 67108864, 17592186044416, 17592186044417, 1.5, True),
]
DURATIONS = [
    *("0s", "1ns", "999ns", "1us", "0.5us", "330ms", "10s", "10.001s", "9999ms1s", "1h", "1h1ns"),
    *("1.0000001s", "60m", "61m", "999999h", "999999h999999h", "1d", "0.33", "", "-1s", "1 s", 5),
]
DECIMALS = ["0", "0.0", "0.001", "0.5", "1", "1.0", "1.01", ".5", "-1", "1e-1", "", "0.5 ", 1, 0.5]
MAPS = [{key: value} for key in TEXTS[1:9] for value in ("", "a", "a b", "x" * 63, "x" * 64)]
RESERVED = ["kvtier.dev/a", "app.kubernetes.io/name", "kubernetes.io/a", "a.kvtier.dev/b"]
FIELDS: dict[str, list[Any]] = {
    "model.name": TEXTS,
    "model.kvCacheDtype": ["auto", "fp8_e4m3", "BF16", ""],
    "model.salt": TEXTS,
    "model.identity": [*MAPS, {"": "a"}, {"x" * 64: "a"}, {str(n): "" for n in range(17)}],
    "model.layout.gqa.kvHeads": NUMBERS,
    "model.layout.gqa.layers": NUMBERS,
    "model.layout.bytesPerToken": NUMBERS,
    "model.layout.gqa": [None],
    "pool.ranks": NUMBERS,
    "pool.striping": ["Hash", "Shard", "hash"],
    "pool.parallelism.tensor": NUMBERS,
    "pool.parallelism.pipeline": [1, 2, 4],
    "pool.parallelism.decodeContext": [1, 2, 3, 8],
    "pool.parallelism.prefillContext": [1, 2, 8],
    "pool.chunkTokens": [15, 16, 256, 65536, 65537],
    "pool.prefillRate": [
        [],
        [{"tokensPerSecond": 1}, {"tokens": 0, "tokensPerSecond": 2}],
        [{"tokens": n, "tokensPerSecond": 1} for n in range(17)],
        [{"tokens": 5}],
    ],
    "pool.hitLatency": DURATIONS,
    "pool.maxEngines": NUMBERS,
    "pool.engine.version": ["0.5", "0.6", 0.5],
    "pool.engine.connector": ["LMCacheMP", "LMCacheInProcess", "Generic", "lmcache"],
    "pool.engine.adapter": ["Plugin", "Stock", "plugin"],
    "pool.engine.l1Size": QUANTITIES,
    "pool.engine.vllmVersion": ["0.14.0", "0.13", "1.0.0", "v0.14", "0.14.0rc1", "0", "", 0.14],
    "store.image": [
        *TEXTS,
        "a/b:c",
        "a:b:c",
        "h:1/a",
        "a@sha256:" + "0" * 64,
        "a@sha256:00",
        "a__b",
    ],
    "store.memoryPerRank": QUANTITIES,
    "store.cpu": QUANTITIES,
    "store.ioThreads": [1, 2, 3],
    "store.priorityClassName": TEXTS,
    "store.imagePullSecrets": [[{"name": text}] for text in TEXTS],
    "store.labels": [*MAPS, *({key: "a"} for key in RESERVED)],
    "store.annotations": [*MAPS, *({key: "a"} for key in RESERVED), {"a": "x" * 1025}],
    "store.nodeSelector": [*MAPS, *({key: "a"} for key in RESERVED)],
    "paused": [True, False, "true", 1, 0],
}
ITEMS: dict[str, dict[str, list[Any]]] = {
    "workload.hitTokens": {"quantile": DECIMALS, "tokens": [1, 5, 0, 100000001]},
    "placement.links": {
        "domain": ["zone", "hostname", "rack", ""],
        "bitsPerSecond": ["25G", "1M", "0.9M", "1000T", "1001T", *QUANTITIES],
        "roundTrip": ["50us", *DURATIONS],
    },
    "placement.domains": {
        "name": ["zone", "rack", "", "a_b", "1a", "x" * 64],
        "key": ["a", *TEXTS],
    },
    "store.tolerations": {
        "key": ["a", "", *TEXTS],
        "operator": ["Exists", "Equal", "Gt"],
        "value": ["", "a", "a b"],
        "effect": ["NoSchedule", "NoExecute", "Never", ""],
        "tolerationSeconds": [0, 5, -1],
    },
}


def random_tiers(count: int) -> Iterator[dict[str, Any]]:
    """Tiers with one to three edits; the same ones every time."""
    choose = random.Random(20261129)
    paths = [*FIELDS, *ITEMS]
    for _ in range(count):
        spec: dict[str, Any] = {}
        for path in choose.sample(paths, choose.choice([1, 1, 2, 3])):
            if path in FIELDS:
                value = choose.choice(FIELDS[path])
            else:
                value = [random_item(choose, ITEMS[path]) for _ in range(choose.choice([1, 1, 2]))]
            edit = {path.split(".")[-1]: value}
            for name in reversed(path.split(".")[:-1]):
                edit = {name: edit}
            spec = overlay(spec, edit)
        yield merge_patch(BASE, {"spec": spec})


def overlay(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Both patches in one."""
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = overlay(merged[key], value) if both else value
    return merged


def random_item(choose: random.Random, fields: dict[str, list[Any]]) -> dict[str, Any]:
    # Mostly the first value, which is a good one: else nearly every item has several faults.
    return {
        name: values[0] if choose.random() < 0.6 else choose.choice(values)
        for name, values in fields.items()
        if choose.random() < 0.9
    }


def parallelism_grid() -> Iterator[dict[str, Any]]:
    """Every combination of layout, striping and small parallel sizes."""
    layouts: list[dict[str, Any]] = [
        {"gqa": {"layers": 2, "kvHeads": 4, "headDim": 64}},
        {"mla": {"layers": 2, "kvLoraRank": 64, "qkRopeHeadDim": 8}},
        {"bytesPerToken": 1000},
    ]
    sizes = itertools.product((None, 2, 4), (1, 2), (1, 2, 3), (1, 2))
    for layout, striping, (tensor, pipeline, decode, prefill) in itertools.product(
        layouts, ("Hash", "Shard"), list(sizes)
    ):
        document = copy.deepcopy(BASE)
        document["spec"]["model"]["layout"] = layout
        parallelism = {"pipeline": pipeline, "decodeContext": decode, "prefillContext": prefill}
        if tensor is not None:
            parallelism["tensor"] = tensor
        document["spec"]["pool"] |= {"ranks": 4, "striping": striping, "parallelism": parallelism}
        yield document


def engine_grid() -> Iterator[dict[str, Any]]:
    """Every combination of layout, striping, connector and adapter, on one rank and on several."""
    layouts: list[dict[str, Any]] = [
        {"gqa": {"layers": 2, "kvHeads": 4, "headDim": 64}},
        {"mla": {"layers": 2, "kvLoraRank": 64, "qkRopeHeadDim": 8}},
        {"groups": [{"attention": "Full", "layers": 2, "kvHeads": 4, "headDim": 64}]},
        {"bytesPerToken": 1000},
    ]
    connectors = ("LMCacheMP", "LMCacheInProcess", "Generic")
    for layout, striping, connector, adapter, (ranks, pipeline, decode) in itertools.product(
        layouts,
        ("Hash", "Shard"),
        connectors,
        ("Plugin", "Stock"),
        ((1, 1, 1), (4, 1, 1), (4, 2, 1), (4, 1, 2)),
    ):
        document = copy.deepcopy(BASE)
        document["spec"]["model"]["layout"] = layout
        parallelism = {"tensor": ranks // pipeline, "pipeline": pipeline, "decodeContext": decode}
        engine = {"connector": connector, "adapter": adapter}
        document["spec"]["pool"] |= {"ranks": ranks, "striping": striping, "engine": engine}
        document["spec"]["pool"]["parallelism"] = parallelism
        yield document


def disagreement(dry_run: DryRun, document: dict[str, Any]) -> str | None:
    """What one of the two refuses and the other takes, None when they agree."""
    server = dry_run.refusal(document)
    loader: tuple[str, ...] = ()
    try:
        parse_tier(document)
    except InvalidTier as refused:
        loader = refused.errors
    if bool(server) == bool(loader) or (all(map(no_schema_can_say, loader)) and not server):
        return None
    return f"{json.dumps(document['spec'])[:600]}\n  server: {server}\n  loader: {loader}"


def no_schema_can_say(line: str) -> bool:
    """Whether the loader's refusal needs arithmetic that CEL rules have no budget for."""
    return (
        "leaves room for" in line  # of ranks' memory and of L1
        or "Valkey stores no value above" in line
        or ("quantile" in line and "is there twice" in line)
    )


def test_both_accept_the_same_of_1000_random_tiers(dry_run: DryRun) -> None:
    found = [disagreement(dry_run, document) for document in random_tiers(1000)]
    differing = [each for each in found if each]
    assert not differing, f"{len(differing)} differ:\n" + "\n".join(differing[:10])


def test_both_accept_the_same_parallelisms(dry_run: DryRun) -> None:
    found = [disagreement(dry_run, document) for document in parallelism_grid()]
    assert len(found) == 216
    differing = [each for each in found if each]
    assert not differing, f"{len(differing)} differ:\n" + "\n".join(differing[:10])


def test_both_accept_the_same_engines(dry_run: DryRun) -> None:
    found = [disagreement(dry_run, document) for document in engine_grid()]
    assert len(found) == 192
    differing = [each for each in found if each]
    assert not differing, f"{len(differing)} differ:\n" + "\n".join(differing[:10])


def test_enough_of_the_random_tiers_are_good_and_enough_are_bad() -> None:
    good = 0
    for document in random_tiers(1000):
        try:
            parse_tier(document)
        except InvalidTier:
            continue
        good += 1
    assert 200 < good < 800
