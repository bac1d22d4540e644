"""The difference of two identities, field by field."""

import random
from typing import Any

import pytest
from random_identities import FIELDS, altered, spec_of, truth

from kvtier.generation.changes import FieldChange, changes
from kvtier.generation.identity import identity

FULL = {"attention": "Full", "layers": 2, "kvHeads": 8, "headDim": 64}
LINEAR = {"attention": "Linear", "layers": 6, "stateBytes": 4096}
INDEX = {"attention": "SparseIndex", "layers": 2, "indexHeadDim": 128}


def between(make_spec: Any, old: dict[str, Any], new: dict[str, Any]) -> list[FieldChange]:
    return list(changes(identity(make_spec(old)), identity(make_spec(new))))


def groups(*found: dict[str, Any]) -> dict[str, Any]:
    return {"model.layout": {"groups": list(found)}}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({}, {}, []),
        ({}, {"model.salt": "1"}, [FieldChange("salt", None, "1")]),
        ({"model.salt": "1"}, {"model.salt": "2"}, [FieldChange("salt", "1", "2")]),
        (
            {"model.revision": "a"},
            {"model.revision": "b"},
            # The tokenizer's follows, where it is not given.
            [FieldChange("revision", "a", "b"), FieldChange("tokenizerRevision", "a", "b")],
        ),
        (
            {"pool.parallelism": {"pipeline": 2, "tensor": 4}},
            {},
            [FieldChange("parallelism.tensor", 4, 8), FieldChange("parallelism.pipeline", 2, 1)],
        ),
        (
            {"model.identity": {"rope": "a", "lora": ""}},
            {"model.identity": {"rope": "b", "a.b": "c"}},
            [
                FieldChange("identity.rope", "a", "b"),
                FieldChange("identity.lora", "", None),
                FieldChange("identity.a.b", None, "c"),
            ],
        ),
        (
            {"model.layout": {"bytesPerToken": 7}},
            groups(FULL),
            [
                FieldChange("layout.bytesPerToken", 7, None),
                FieldChange("layout.groups", None, FULL),
            ],
        ),
        (groups(FULL, LINEAR), groups(LINEAR, FULL), []),
        (groups(FULL, LINEAR), groups(INDEX, FULL), [FieldChange("layout.groups", LINEAR, INDEX)]),
        (groups(FULL, FULL), groups(FULL), [FieldChange("layout.groups", FULL, None)]),
    ],
)
def test_the_fields_that_differ_are_named_with_both_values(
    make_spec: Any, old: dict[str, Any], new: dict[str, Any], expected: list[FieldChange]
) -> None:
    assert between(make_spec, old, new) == expected


def test_there_is_a_difference_exactly_when_the_identities_differ() -> None:
    rng = random.Random(5)
    for _ in range(500):
        said = truth(rng)
        for other in (said, altered(rng, said, rng.choice(list(FIELDS))), truth(rng)):
            one, two = identity(spec_of(rng, said)), identity(spec_of(rng, other))
            assert bool(changes(one, two)) == (one != two)
            # There and back again are the same fields.
            turned = {(each.field, each.new, each.old) for each in map(_plain, changes(two, one))}
            assert {(e.field, e.old, e.new) for e in map(_plain, changes(one, two))} == turned


def _plain(change: FieldChange) -> FieldChange:
    """Groups as texts, which a set can hold."""
    return FieldChange(change.field, repr(change.old), repr(change.new))
