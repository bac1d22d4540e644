"""Groups of layers: which sizes each kind takes, by the schema's rules and by kvtier alike."""

import copy
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import changed

from kvtier.api import groups
from kvtier.api.crd import structural_schema
from kvtier.api.groups import FORMS, Attention, AttentionGroup
from kvtier.api.load import InvalidTier, parse_tier
from kvtier.breakeven.tier import assess
from kvtier.generation.record import new_record
from kvtier.render.engine import engine_files

SIZES = sorted(set[str]().union(*(form.names() for form in FORMS.values())))
RULES = structural_schema(AttentionGroup)["x-kubernetes-validations"]
FULL = {"attention": "Full", "layers": 2, "kvHeads": 8, "headDim": 64}


def errors_of(*found: dict[str, Any]) -> tuple[str, ...]:
    document = changed("spec.model.layout", {"groups": list(copy.deepcopy(found))})
    try:
        parse_tier(document)
    except InvalidTier as error:
        return error.errors
    return ()


def rules_hold(group: dict[str, Any]) -> bool:
    """The schema's rules for one group, read as Python: they have only has(), and, or, not."""
    for rule in RULES:
        text = rule["rule"].replace("!=", "<>").replace("!", " not ").replace("<>", "!=")
        text = text.replace("&&", " and ").replace("||", " or ").replace("self.attention", "kind")
        text = re.sub(r"has\(self\.(\w+)\)", r"('\1' in group)", text)
        if not eval(text, {"__builtins__": {}}, {"group": group, "kind": group["attention"]}):
            return False
    return True


@settings(deadline=None)
@given(attention=st.sampled_from(Attention), names=st.sets(st.sampled_from(SIZES)))
def test_the_schema_and_kvtier_refuse_the_same_groups(
    attention: Attention, names: set[str]
) -> None:
    group = {"attention": attention.value, "layers": 2} | dict.fromkeys(sorted(names), 2)
    parsed = AttentionGroup.model_validate(group)
    alone = groups.problems([AttentionGroup.model_validate(FULL), parsed])
    assert (not alone) is rules_hold(group), alone
    assert all(line.startswith("spec.model.layout.groups[1]") for line in alone)


@pytest.mark.parametrize("attention", Attention)
def test_each_kind_takes_what_it_needs_and_what_it_may_have(attention: Attention) -> None:
    form = FORMS[attention]
    for needed in form.needs:
        least = {"attention": attention.value, "layers": 2} | dict.fromkeys(needed, 2)
        assert rules_hold(least)
        assert not errors_of(FULL, least)
        for name in needed:
            without = {key: value for key, value in least.items() if key != name}
            [line] = errors_of(FULL, without)
            assert line.endswith(
                f"attention {attention.value} needs {form.wanted()}; add what is missing"
            )


def test_a_size_of_another_kind_is_named() -> None:
    assert errors_of(FULL | {"stateBytes": 7, "window": 8}) == (
        "spec.model.layout.groups[0].stateBytes: attention Full has none; remove it",
        "spec.model.layout.groups[0].window: attention Full has none; remove it",
    )


def test_two_forms_in_one_group_are_refused() -> None:
    [line] = errors_of(FULL | {"kvLoraRank": 512, "qkRopeHeadDim": 64})
    assert line.startswith("spec.model.layout.groups[0]: has kvHeads, headDim or valueHeadDim, and")


def test_a_model_that_does_not_grow_is_refused() -> None:
    window = FULL | {"attention": "SlidingWindow", "window": 4096}
    [line] = errors_of(window)
    assert line.startswith("spec.model.layout.groups: no group has attention Full")


values = st.sampled_from([None, -1, 0, 1, 2, 8, 128, 1024, 65536, 1 << 30, 1 << 60, "8", True])
anything = st.fixed_dictionaries(
    {"attention": st.sampled_from([*Attention, "full", None]), "layers": values},
    optional=dict.fromkeys((*SIZES, "unknown"), values),
)


@st.composite
def likely(draw: st.DrawFn) -> dict[str, Any]:
    """A group with all that its kind needs, and any of what it takes."""
    attention = draw(st.sampled_from(Attention))
    form = FORMS[attention]
    names = {*draw(st.sampled_from(form.needs)), *draw(st.sets(st.sampled_from([*form.takes, ""])))}
    sizes = {name: draw(st.sampled_from([1, 2, 8, 128, 1024])) for name in names - {""}}
    return {"attention": attention.value, "layers": draw(st.integers(1, 1024))} | sizes


@settings(deadline=None, max_examples=100)
@given(found=st.lists(anything | likely(), max_size=17) | st.lists(likely(), min_size=1))
def test_any_groups_are_refused_or_can_be_judged_and_rendered(found: list[dict[str, Any]]) -> None:
    document = changed("spec.model.layout", {"groups": found})
    document["spec"]["store"]["memoryPerRank"] = "16Ti"
    try:
        tier = parse_tier(document)
    except InvalidTier as error:
        refused: tuple[str, ...] = error.errors
    else:
        refused = ()
        status = assess(tier.spec).status()
        assert status["chunkBytes"] > 0
        assert status["bytesPerToken"] > 0
        assert engine_files(
            tier, new_record(tier.spec, operator_token="a" * 8, engine_token="b" * 8)
        )
    assert all(line and "\n" not in line and len(line) < 600 for line in refused)


@pytest.mark.parametrize("heads", [3, 6, 12])
def test_heads_of_every_group_must_fit_the_ranks(heads: int) -> None:
    window = FULL | {"attention": "SlidingWindow", "window": 128, "kvHeads": heads}
    [line] = errors_of(FULL, window)
    assert line.startswith(f"spec.model.layout.groups[1].kvHeads: {heads} and tensor parallel size")


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("striping", "Shard", "striping"),
        ("parallelism", {"tensor": 4, "pipeline": 2}, "parallelism.pipeline"),
        ("parallelism", {"decodeContext": 2}, "parallelism.decodeContext"),
    ],
)
def test_hybrids_run_with_hash_alone(path: str, value: Any, field: str) -> None:
    document = changed("spec.model.layout", {"groups": [FULL]})
    document["spec"]["pool"][path] = value
    with pytest.raises(InvalidTier) as refused:
        parse_tier(document)
    [line] = refused.value.errors
    assert line.startswith(f"spec.pool.{field}: ")
    assert "layout groups" in line
