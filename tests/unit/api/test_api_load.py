import copy
import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tiers import SMALLEST, changed

from kvtier.api.crd import structural_schema
from kvtier.api.load import MAX_FILE_BYTES, InvalidTier, load_file, parse_tier
from kvtier.api.types import KVCacheTierSpec
from kvtier.breakeven.tier import assess


def errors_of(document: Any) -> tuple[str, ...]:
    with pytest.raises(InvalidTier) as refused:
        parse_tier(document)
    return refused.value.errors


def file_errors(path: Path | str) -> tuple[str, ...]:
    with pytest.raises(InvalidTier) as refused:
        load_file(str(path))
    return refused.value.errors


def test_the_smallest_tier_is_read_with_its_defaults() -> None:
    tier = parse_tier(SMALLEST)
    assert tier.spec.pool.chunk_tokens == 256
    assert tier.spec.store.memory_bytes == 64 * 2**30
    assert [domain.name for domain in tier.spec.placement.domains] == ["hostname", "zone"]


def test_every_problem_is_told_not_only_the_first() -> None:
    document = changed("spec.pool.ranks", 0)
    document["spec"]["model"]["kvCacheDtype"] = "auto"
    del document["spec"]["store"]
    paths = [line.split(":")[0] for line in errors_of(document)]
    assert paths == ["spec.model.kvCacheDtype", "spec.pool.ranks", "spec.store"]


def test_an_error_is_one_line_that_names_the_field_and_the_fix() -> None:
    [line] = errors_of(changed("spec.pool.ranks", 0))
    assert line.startswith("spec.pool.ranks: 0 is below 1; write 1 or more")


def test_a_long_value_does_not_flood_the_line() -> None:
    for value in ("x" * 10_000, ["y" * 10_000], {"z": "z" * 10_000}):
        for path in ("spec.pool.striping", "spec.store.cpu", "spec.paused", "spec.pool.ranks"):
            [line] = errors_of(changed(path, value))
            assert len(line) < 400
            assert "\n" not in line


@pytest.mark.parametrize(
    ("path", "name", "value"),
    [
        ("spec.model.kvCacheDtype", "kv_cache_dtype", "bfloat16"),
        ("spec.pool.prefillRate", "prefill_rate", [{"tokensPerSecond": 1}]),
        ("spec.store.memoryPerRank", "memory_per_rank", "64Gi"),
    ],
)
def test_field_names_of_the_code_are_no_field_names_of_the_api(
    path: str, name: str, value: Any
) -> None:
    document = changed(path, None)
    document["spec"][path.split(".")[1]][name] = value
    missing, unknown = errors_of(document)
    assert missing.startswith(f"{path}: missing; add it")
    assert f"{name}: unknown field; did you mean {path.split('.')[-1]}?" in unknown


def test_what_the_api_server_adds_is_no_problem() -> None:
    document = copy.deepcopy(SMALLEST)
    document["metadata"] |= {
        "uid": "b1f6f0a0-0000-0000-0000-000000000000",
        "generation": 3,
        "resourceVersion": "12",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "managedFields": [{"manager": "kubectl"}],
        "labels": {"a": "b"},
    }
    document["status"] = {"ranks": "8/8"}
    tier = parse_tier(document)
    assert (tier.metadata.uid[:2], tier.metadata.generation) == ("b1", 3)
    assert tier.status == {"ranks": "8/8"}


def test_the_document_that_is_read_is_not_changed() -> None:
    document = changed("spec.workload", {"hitTokens": None})
    before = copy.deepcopy(document)
    parse_tier(document)
    assert document == before


@pytest.mark.parametrize("document", [None, [], "tier", 7, [SMALLEST]])
def test_what_is_no_object_is_refused(document: Any) -> None:
    assert "not an object" in errors_of(document)[0]


def test_a_file_in_yaml_and_one_in_json_are_the_same_tier(tmp_path: Path) -> None:
    in_yaml, in_json = tmp_path / "tier.yaml", tmp_path / "tier.json"
    in_yaml.write_text(yaml.safe_dump(SMALLEST))
    in_json.write_text("\ufeff" + json.dumps(SMALLEST), encoding="utf-8")
    assert load_file(str(in_yaml)) == load_file(str(in_json))


def test_a_dash_is_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(json.dumps(SMALLEST).encode()))
    monkeypatch.setattr("sys.stdin", stdin)
    assert load_file("-").metadata.name == "tier"


def test_a_revision_that_looks_like_a_date_is_text_in_quotes(tmp_path: Path) -> None:
    file = tmp_path / "tier.yaml"
    revision = SMALLEST["spec"]["model"]["revision"]
    file.write_text(yaml.safe_dump(SMALLEST).replace(revision, '"2026-11-29"'))
    assert load_file(str(file)).spec.model.revision == "2026-11-29"
    file.write_text(yaml.safe_dump(SMALLEST).replace(revision, "2026-11-29"))
    [line] = file_errors(file)
    assert line.endswith('text to kubectl and YAML 1.2; write "2026-11-29"')


def test_a_trailing_separator_is_no_second_document(tmp_path: Path) -> None:
    file = tmp_path / "tier.yaml"
    file.write_text("---\n" + yaml.safe_dump(SMALLEST) + "---\n")
    assert load_file(str(file)).metadata.name == "tier"


def test_a_merge_key_is_no_repeated_key(tmp_path: Path) -> None:
    file = tmp_path / "tier.yaml"
    file.write_text(
        yaml.safe_dump(changed("spec.store", None))
        + "  store:\n    <<: {memoryPerRank: 32Gi}\n    memoryPerRank: 64Gi\n"
    )
    assert load_file(str(file)).spec.store.memory_per_rank == "64Gi"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "0 documents; write exactly one KVCacheTier"),
        (b"# nothing\n", "0 documents"),
        (b"- a\n", "not an object"),
        (b"\xff\xfe\x00", "not UTF-8 text"),
        (b"a: b: c\n", "line 1 mapping values are not allowed here; correct the YAML"),
        (b"a: {\n", "line 2"),
        (b"a: 1\na: 2\n", "line 2 key 'a' is there twice; keep one"),
        (b"a: 1\nb: {on: 2}\n", "line 2 unquoted on is true to YAML 1.1 and kubectl, but text"),
        (b"? [1, 2]\n: a\n", "line 1 key [1, 2] is not text; write a field's name"),
        (b"a: !!python/object:os.system x\n", "could not determine a constructor"),
        (b"a: \x01\n", "correct the YAML"),
        (b"[" * 50_000, "correct the YAML"),
        (b"&a [*a]\n", "not an object"),
        (b"x: &a [*a]\n", "line 1 found unconstructable recursive node"),
        (b"spec: {}\n", "kind: missing; write kind: KVCacheTier"),
        (b"x" * (MAX_FILE_BYTES + 1), "larger than"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_a_file_that_is_no_tier_gets_one_line(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "tier.yaml"
    file.write_bytes(content)
    found = file_errors(file)
    assert any(said in line for line in found), found
    assert all("\n" not in line and len(line) < 300 for line in found)


def test_a_value_that_contains_itself_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tier.yaml"
    text = yaml.safe_dump(SMALLEST).replace("spec:\n", "spec: &spec\n  workload: *spec\n", 1)
    file.write_text(text)
    assert file_errors(file)


def test_aliases_that_would_expand_without_end_are_no_problem(tmp_path: Path) -> None:
    lines = ["b0: &b0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"b{n}: &b{n} [{', '.join([f'*b{n - 1}'] * 10)}]" for n in range(1, 30)]
    file = tmp_path / "tier.yaml"
    file.write_text("\n".join([yaml.safe_dump(changed("spec.model.layout", None)), *lines]))
    text = file.read_text().replace("  model:\n", "  model:\n    layout: *b29\n").split("b0: ")
    file.write_text("b0: " + text[1] + "\n" + text[0])
    [line] = file_errors(file)
    assert line.startswith("spec.model.layout: [[")
    assert len(line) < 300


def test_a_missing_file_a_directory_and_a_bad_name_get_one_line(tmp_path: Path) -> None:
    assert file_errors(tmp_path / "none.yaml")[0].endswith(
        "No such file or directory; name a readable file"
    )
    assert file_errors(tmp_path)[0].endswith("Is a directory; name a readable file")
    assert "name a readable file" in file_errors("a\0b")[0]


# Values near the schema: right ones, nearly right ones, and what YAML can hold at all.
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2**70),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(
        ["64Gi", "1", "0", "330ms", "0.5", "zone", "Hash", "Shard", "Exists", "8.1", "1e400"]
    ),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=10) | st.integers(), inner, max_size=3)
    ),
    max_leaves=6,
)


def paths(schema: Any, above: str = "spec") -> list[str]:
    found = [above]
    for name, below in schema.get("properties", {}).items():
        found += paths(below, f"{above}.{name}")
    return found


PATHS = ["metadata", "metadata.name", "status", *paths(structural_schema(KVCacheTierSpec))]


ITEM_FIELDS = (
    *("tokens", "tokensPerSecond", "quantile", "name", "key", "domain"),
    *("bitsPerSecond", "roundTrip", "operator", "value", "effect", "tolerationSeconds"),
)
ITEMS = st.fixed_dictionaries({}, optional=dict.fromkeys(ITEM_FIELDS, LEAVES))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    edits=st.dictionaries(st.sampled_from(PATHS), VALUES | st.lists(ITEMS, max_size=3), max_size=4)
)
@example(edits={"spec.model.layout.mla": {"two\nlines": False}})
def test_a_document_near_the_schema_is_a_tier_or_invalid_and_nothing_else(
    edits: dict[str, Any],
) -> None:
    document = copy.deepcopy(SMALLEST)
    for path, value in edits.items():
        *above, last = path.split(".")
        here: Any = document
        for name in above:
            here = here.setdefault(name, {}) if isinstance(here, dict) else {}
        if isinstance(here, dict):
            here[last] = value
    try:
        tier = parse_tier(document)
    except InvalidTier as error:
        refused = error
    else:
        assess(tier.spec).status()
        return
    assert refused.errors
    assert all(line and "\n" not in line for line in refused.errors)


@settings(max_examples=200, deadline=None)
@given(document=st.dictionaries(st.text(max_size=12) | st.integers(), VALUES, max_size=5))
def test_any_mapping_is_a_tier_or_invalid_and_nothing_else(document: dict[Any, Any]) -> None:
    with pytest.raises(InvalidTier):
        parse_tier(document)


def test_of_very_many_problems_the_first_are_told_and_the_rest_counted() -> None:
    unknown = {f"field{number}": 1 for number in range(10_000)}
    with pytest.raises(InvalidTier) as refused:
        parse_tier(changed("spec.pool", {"ranks": 8, **unknown}))
    *first, last = refused.value.errors
    assert len(first) == 64
    assert last == "the document: 9937 more problems; correct these first"
