"""No two different identities have one id, and no identity has two.

The truth is drawn first, as plain values compared by Python; what kvtier makes of it is compared
with that. Pairs are compared through sets, each with each: n draws are n(n-1)/2 pairs.
"""

import json
import random
from itertools import combinations
from typing import Any

import pytest
from pydantic import ValidationError
from random_identities import FIELDS, GROUP_SIZES, SIZES, altered, group, spec_of, text, truth

from kvtier.api.types import KVCacheTierSpec
from kvtier.generation.changes import changes
from kvtier.generation.identity import canonical_json, generation_id, id_of, identity

PAIRS = 1_000_000


def frozen(value: Any) -> Any:
    """A value that is equal, and hashes alike, exactly for equal JSON."""
    if isinstance(value, dict):
        return frozenset((name, frozen(each)) for name, each in value.items())
    if isinstance(value, list):
        return tuple(map(frozen, value))
    return type(value).__name__, value


def assert_one_to_one(found: list[tuple[Any, str]]) -> None:
    assert len({one for one, _ in found}) == len({other for _, other in found}) == len(set(found))


def test_specs_have_one_id_exactly_when_they_say_the_same_in_a_million_pairs() -> None:
    rng = random.Random(1)
    truths = set()
    found = []
    while len(truths) * (len(truths) - 1) / 2 < PAIRS:
        said = truth(rng)
        near = altered(rng, said, rng.choice(list(FIELDS)))
        # The first twice, in two spellings of the same.
        for each in (said, said, near):
            truths.add(tuple(each.items()))
            found.append((tuple(each.items()), generation_id(spec_of(rng, each))))
    assert_one_to_one(found)


def test_fields_have_one_id_exactly_when_they_are_equal_in_a_million_pairs_of_tricks() -> None:
    """Few fields and few pieces of text, so that a boundary that moves meets its neighbour."""
    rng = random.Random(2)
    pieces = ['"', "\\", ":", ",", "{", "}", "a", '","b":"', "\\u00e9", "é"]
    found = []
    for _ in range(20_000):
        fields: dict[str, Any] = {
            name: "".join(rng.choices(pieces, k=rng.randint(0, 3)))
            for name in rng.sample(["a", "b", 'a":"', "c"], rng.randint(1, 3))
        }
        if rng.random() < 0.3:
            fields["identity"] = {rng.choice(pieces): rng.choice(pieces)}
        if rng.random() < 0.3:
            fields["c"] = rng.choice([0, 1, "0", "1", "null", [], ["a"], ["a", "b"], ["a,b"]])
        found.append((frozen(fields), canonical_json(fields)))
        assert json.loads(found[-1][1]) == fields
    distinct = len({one for one, _ in found})
    # Some are drawn twice, else nothing is known of equal ones; the different make enough pairs.
    assert distinct < len(found)
    assert distinct * (distinct - 1) / 2 > PAIRS
    assert_one_to_one(found)
    assert_one_to_one([(one, id_of(json.loads(text))) for one, text in found])


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_of_every_identity_changes_the_id(field: str) -> None:
    rng = random.Random(field)
    for _ in range(40):
        base = truth(rng)
        other = altered(rng, base, field)
        one, two = (spec_of(rng, each) for each in (base, other))
        assert generation_id(one) != generation_id(two)
        # And it alone differs: nothing else of the identity follows it.
        differing = {each.field.split(".")[0] for each in changes(identity(one), identity(two))}
        assert len(differing) == 1


@pytest.mark.parametrize("size", ["attention", "layers", *GROUP_SIZES])
def test_every_part_of_an_attention_group_changes_the_id(size: str) -> None:
    rng = random.Random(size)
    for _ in range(40):
        base, rest = truth(rng), [group(rng) for _ in range(rng.randint(0, 2))]
        # Beyond all sizes that are drawn, so that no other part of the group is equal to it.
        values = ["Full", "Linear"] if size == "attention" else [100, 101]
        same = group(rng)
        groups = [frozenset({**dict(same), size: each}.items()) for each in values]
        one, two = (spec_of(rng, base | {"layout": ("groups", (each, *rest))}) for each in groups)
        assert generation_id(one) != generation_id(two)


@pytest.mark.parametrize(("kind", "part"), [(k, i) for k in ("gqa", "mla") for i in range(3)])
def test_every_part_of_a_layout_changes_the_id(kind: str, part: int) -> None:
    rng = random.Random(part)
    for _ in range(40):
        base, sizes = truth(rng), [rng.choice(SIZES) for _ in range(3)]
        other = [size + (index == part) for index, size in enumerate(sizes)]
        one, two = (spec_of(rng, base | {"layout": (kind, tuple(each))}) for each in (sizes, other))
        assert generation_id(one) != generation_id(two)


def test_a_text_means_the_same_in_no_two_fields() -> None:
    """The same words under another name, in the free map, or as another kind of value."""
    rng = random.Random(3)
    for _ in range(100):
        words = text(rng)
        base = truth(rng) | {"name": "n", "revision": "r", "tokenizer": "t", "salt": None}
        moved = [
            base | {"name": words},
            base | {"revision": words},
            base | {"tokenizer": words},
            base | {"salt": words},
            base | {"identity": frozenset({("salt", words)})},
            base | {"identity": frozenset({(words, "salt")})},
        ]
        ids = [generation_id(spec_of(rng, each)) for each in moved]
        for (one, its), (other, others) in combinations(zip(moved, ids, strict=True), 2):
            assert (its == others) == (one == other)


def test_half_a_letter_is_no_text() -> None:
    """Two halves would have the canonical JSON of the whole letter: the one pair that would."""
    assert canonical_json("\ud83d\ude00") == canonical_json("😀")
    spec = spec_of(random.Random(4), truth(random.Random(4))).model_dump(mode="json", by_alias=True)
    for path, key in (("model", "name"), ("model", "salt"), ("model", "identity")):
        halves = {"\ud83d": "\ude00"} if key == "identity" else "\ud83d\ude00"
        with pytest.raises(ValidationError, match="valid string"):
            KVCacheTierSpec.model_validate(spec | {path: spec[path] | {key: halves}})
