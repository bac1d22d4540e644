"""What renames a generation, and what must never."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtier.api.types import AttentionGroup, KVCacheTierSpec
from kvtier.generation.identity import canonical_json, generation_id, id_of, identity

MLA = {"mla": {"layers": 61, "kvLoraRank": 512, "qkRopeHeadDim": 64}}

HYBRID = {
    "groups": [
        {"attention": "Full", "layers": 15, "kvHeads": 2, "headDim": 256},
        {"attention": "Linear", "layers": 45, "stateBytes": 4268032},
    ]
}
EVERY_SIZE = {
    "groups": [
        {"attention": "Full", "layers": 9, "kvHeads": 4, "headDim": 192, "valueHeadDim": 128},
        {
            "attention": "SlidingWindow",
            "layers": 61,
            "window": 128,
            "kvLoraRank": 448,
            "qkRopeHeadDim": 64,
            "entryBytes": 584,
        },
        {"attention": "SparseIndex", "layers": 30, "indexHeadDim": 128, "compressionStride": 4},
    ]
}


def groups_with(index: int, **changes: Any) -> dict[str, Any]:
    """``EVERY_SIZE`` with one group changed."""
    groups: list[dict[str, Any]] = [dict(group) for group in EVERY_SIZE["groups"]]
    groups[index] |= changes
    return {"groups": groups}


IDENTITY_EDITS: list[Mapping[str, Any]] = [
    {"model.name": "another"},
    {"model.revision": "another"},
    {"model.tokenizerRevision": "another"},
    {"model.kvCacheDtype": "float16"},
    {"model.salt": "1"},
    {"model.identity": {"a": "1"}},
    {"model.layout": {"gqa": {"layers": 81, "kvHeads": 8, "headDim": 128}}},
    {"model.layout": {"gqa": {"layers": 80, "kvHeads": 16, "headDim": 128}}},
    {"model.layout": {"gqa": {"layers": 80, "kvHeads": 8, "headDim": 64}}},
    {"model.layout": MLA},
    {"model.layout": {"mla": {"layers": 62, "kvLoraRank": 512, "qkRopeHeadDim": 64}}},
    {"model.layout": {"mla": {"layers": 61, "kvLoraRank": 256, "qkRopeHeadDim": 64}}},
    {"model.layout": {"mla": {"layers": 61, "kvLoraRank": 512, "qkRopeHeadDim": 0}}},
    {"model.layout": {"bytesPerToken": 327680}},
    {"model.layout": HYBRID},
    {"model.layout": EVERY_SIZE},
    {"model.layout": groups_with(0, attention="SlidingWindow", window=1)},
    {"model.layout": groups_with(0, layers=10)},
    {"model.layout": groups_with(0, kvHeads=8)},
    {"model.layout": groups_with(0, headDim=128)},
    {"model.layout": groups_with(0, valueHeadDim=192)},
    {"model.layout": groups_with(1, window=256)},
    {"model.layout": groups_with(1, kvLoraRank=512)},
    {"model.layout": groups_with(1, qkRopeHeadDim=0)},
    {"model.layout": groups_with(1, entryBytes=656)},
    {"model.layout": groups_with(2, indexHeadDim=64)},
    {"model.layout": groups_with(2, compressionStride=128)},
    {"model.layout": groups_with(2, attention="Linear", stateBytes=1)},
    {"model.layout": groups_with(2, attention="Linear", stateBytes=2)},
    {"pool.ranks": 4},
    {"pool.striping": "Shard"},
    {"pool.parallelism": {"tensor": 4}},
    {"pool.parallelism": {"pipeline": 2}},
    {"pool.parallelism": {"decodeContext": 2}},
    {"pool.parallelism": {"prefillContext": 2}},
    {"pool.chunkTokens": 128},
]

OTHER_EDITS: list[Mapping[str, Any]] = [
    {"pool.prefillRate": [{"tokensPerSecond": 1}]},
    {"pool.hitLatency": "300ms"},
    {"pool.hitEngineTime": "30ms"},
    {"pool.maxEngines": 64},
    {"pool.engine.loadFailurePolicy": "Fail"},
    {"workload.hitTokens": [{"quantile": "0.5", "tokens": 1000}]},
    {"workload.promptTokens": [{"quantile": "0.5", "tokens": 2000}]},
    {"workload.requestsPerSecond": "0.5", "workload.hitRate": "0.5"},
    {"workload.targetTTFT": "2s", "workload.workingSetTokens": 1000},
    {"placement.onReject": "Block"},
    {"placement.probe.interval": "1h"},
    {"store.memoryPerRank": "128Gi"},
    {"store.image": "registry.example/valkey:9.1"},
    {"store.version": "8.1"},
    {"store.cpu": "4"},
    {"store.ioThreads": 2, "store.cpu": "4"},
    {"store.eviction": "LFU"},
    {"store.tls": {"secretName": "ranks-tls"}},
    {"store.labels": {"team": "a"}},
    {"store.nodeSelector": {"pool": "gpu"}},
    {"placement.domains": [{"name": "rack", "key": "example.com/rack"}]},
    {"placement.within": "zone"},
    {"placement.enforcement": "Required"},
    {"placement.spread": "None"},
    {"placement.links": [{"domain": "zone", "bitsPerSecond": "25G", "roundTrip": "50us"}]},
    {"rollout.onPoolDrift": "NewGeneration"},
    {"rollout.drainTimeout": "0s"},
    {"rollout.credentialEpoch": 1},
    {"rollout.revocation": "Immediate"},
    {"paused": True},
]

WRITTEN_OUT_DEFAULTS: list[Mapping[str, Any]] = [
    {"model.tokenizerRevision": "1605565b47bb9346c5515c34102e054115b4f98b"},
    {"model.identity": {}},
    {"pool.striping": "Hash"},
    {"pool.chunkTokens": 256},
    {"pool.parallelism": {}},
    {"pool.parallelism": {"tensor": 8}},
    {"pool.parallelism": {"pipeline": 1, "decodeContext": 1, "prefillContext": 1}},
    {"pool.engine": {"connector": "LMCacheMP", "version": "0.5"}},
]


def test_every_size_of_a_group_is_in_the_identity(make_spec: Any) -> None:
    """A size that is left out would let one tier read KV of another shape."""
    sizes = {info.alias or name for name, info in AttentionGroup.model_fields.items()}
    group = dict.fromkeys(sizes, 2) | {"attention": "Full", "valueHeadDim": 3}
    [found] = identity(make_spec({"model.layout": {"groups": [group]}}))["layout"]["groups"]
    assert found == group


def test_the_order_of_groups_does_not_matter(make_spec: Any) -> None:
    turned = {"groups": list(reversed(EVERY_SIZE["groups"]))}
    assert identity(make_spec({"model.layout": turned})) == identity(
        make_spec({"model.layout": EVERY_SIZE})
    )


@pytest.mark.parametrize("changes", IDENTITY_EDITS, ids=str)
def test_anything_that_changes_the_bytes_makes_another_generation(
    changes: Mapping[str, Any], make_spec: Any
) -> None:
    assert generation_id(make_spec(changes)) != generation_id(make_spec())


def test_no_two_of_these_edits_make_the_same_generation(make_spec: Any) -> None:
    assert len({generation_id(make_spec(changes)) for changes in IDENTITY_EDITS}) == len(
        IDENTITY_EDITS
    )


@pytest.mark.parametrize("changes", OTHER_EDITS, ids=str)
def test_anything_else_leaves_the_generation(changes: Mapping[str, Any], make_spec: Any) -> None:
    assert generation_id(make_spec(changes)) == generation_id(make_spec())


@pytest.mark.parametrize("changes", WRITTEN_OUT_DEFAULTS, ids=str)
def test_writing_a_default_out_changes_nothing(changes: Mapping[str, Any], make_spec: Any) -> None:
    assert identity(make_spec(changes)) == identity(make_spec())


def test_every_field_of_model_and_pool_is_in_one_of_the_tables() -> None:
    """A field added to the API must be put into the identity, or decided not to be."""
    decided = {path for edits in (*IDENTITY_EDITS, *OTHER_EDITS) for path in edits}
    decided |= {"pool.engine.connector", "pool.engine.version"}  # One value each so far.
    fields = KVCacheTierSpec.model_fields
    for part in ("model", "pool", "workload", "store", "placement", "rollout"):
        model = fields[part].annotation
        assert model is not None
        for name, info in model.model_fields.items():
            path = f"{part}.{info.alias or name}"
            known = any(each == path or each.startswith(f"{path}.") for each in decided)
            # Pod settings that follow labels and nodeSelector.
            pod = ("tolerations", "priorityClassName", "imagePullSecrets", "annotations")
            assert known or path.removeprefix("store.") in pod, path


def test_a_colon_in_a_name_is_no_separator(make_spec: Any) -> None:
    one = make_spec({"model.name": "a", "model.revision": "b:c", "model.tokenizerRevision": "t"})
    other = make_spec({"model.name": "a:b", "model.revision": "c", "model.tokenizerRevision": "t"})
    assert generation_id(one) != generation_id(other)


text = st.text(min_size=1, max_size=20)
identities = st.fixed_dictionaries(
    {"modelName": text, "revision": text, "ranks": st.integers(1, 64)},
    optional={"salt": text, "identity": st.dictionaries(text, text, min_size=1, max_size=3)},
)


@given(identities, identities)
def test_ids_are_equal_exactly_when_identities_are(
    one: Mapping[str, Any], other: Mapping[str, Any]
) -> None:
    assert (id_of(one) == id_of(other)) == (one == other)


@given(identities)
def test_the_order_of_fields_does_not_matter(fields: Mapping[str, Any]) -> None:
    assert id_of(dict(reversed(fields.items()))) == id_of(fields)


def test_canonical_json_has_sorted_keys_no_spaces_and_only_ascii() -> None:
    assert canonical_json({"b": "é ", "a": [1, {"d": 1, "c": 2}]}) == (
        '{"a":[1,{"c":2,"d":1}],"b":"\\u00e9 "}'
    )


def test_absent_fields_are_left_out(make_spec: Any) -> None:
    assert not {"salt", "identity"} & identity(make_spec()).keys()


def test_a_later_identity_version_is_refused(make_spec: Any) -> None:
    with pytest.raises(ValueError, match="identity version 2 is unknown to this release"):
        identity(make_spec(), version=2)


def test_values_as_long_as_keys_are_the_same_kv_written_out_or_not(
    make_spec: Any,
) -> None:
    plain = {"attention": "Full", "layers": 15, "kvHeads": 2, "headDim": 256}
    written = plain | {"valueHeadDim": 256}
    ids = [
        generation_id(make_spec({"model.layout": {"groups": [group]}}))
        for group in (plain, written)
    ]
    assert ids[0] == ids[1]
