"""What is refused, what is warned of, and what is never held up."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from webhook_reviews import BAD, body, tier

from kvtier.api.load import InvalidTier, parse_tier
from kvtier.generation.identity import generation_id
from kvtier.webhook.decision import decide, judge
from kvtier.webhook.review import BadReview, Decision, parse

T0 = {"hitLatency": "20ms", "hitEngineTime": "0s"}
NOTHING = Decision()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)


def link(rate: str) -> dict[str, Any]:
    return {"links": [{"domain": "zone", "bitsPerSecond": rate, "roundTrip": "50us"}]}


def decided(*arguments: Any, **options: Any) -> Decision:
    return decide(parse(body(*arguments, **options)))


def errors(document: dict[str, Any]) -> tuple[str, ...]:
    with pytest.raises(InvalidTier) as refused:
        parse_tier(document)
    return refused.value.errors


def test_a_tier_that_pays_is_taken_without_a_word() -> None:
    assert decided(tier({"pool": T0, "placement": link("400G")})) == NOTHING


def test_a_spec_that_no_schema_rule_catches_is_refused_with_its_figures() -> None:
    (line,) = decided(tier(BAD)).refusals
    assert line.startswith("spec.store.memoryPerRank: 64Mi leaves room for ")
    assert (line,) == errors(tier(BAD))


def test_every_problem_is_named() -> None:
    bad = tier({"pool": {"ranks": 0, "rank": 2}, "store": {"cpu": "none"}})
    lines = decided(bad).refusals
    assert lines == errors(bad)
    assert [line.split(":")[0] for line in lines] == [
        "spec.pool.ranks",
        "spec.pool.rank",
        "spec.store.cpu",
    ]


@pytest.mark.parametrize(("rate", "verdict"), [("10M", "NeverPays"), ("45M", "PaysWhenLong")])
def test_a_link_that_is_too_slow_is_a_warning_with_figures_and_no_refusal(
    rate: str, verdict: str
) -> None:
    decision = decided(tier({"pool": T0, "placement": link(rate)}))
    assert decision.refusals == ()
    line, *findings = decision.warnings
    assert any(each.startswith("LinkTooSlowForPool: ") for each in findings)
    assert line.startswith(f"By the declared figures {verdict}: ")
    assert "break-even is 0.041 Gb/s" in line


def test_an_update_is_judged_by_what_it_makes_of_the_tier() -> None:
    assert decided(tier(BAD), old=tier(), operation="UPDATE").refusals == errors(tier(BAD))
    assert decided(tier(), old=tier(BAD), operation="UPDATE") == NOTHING


def test_an_update_that_leaves_a_bad_spec_as_it_is_is_never_refused() -> None:
    new = tier(BAD, metadata={"finalizers": [], "labels": {"a": "b"}, "ownerReferences": []})
    assert decided(new, old=tier(BAD), operation="UPDATE") == NOTHING


def test_a_tier_that_is_being_deleted_is_left_alone() -> None:
    going = tier(BAD, metadata={"deletionTimestamp": "2026-11-29T12:00:00Z"})
    assert decided(going, old=tier(), operation="UPDATE") == NOTHING


@pytest.mark.parametrize("subresource", ["status", "scale"])
def test_a_subresource_is_never_refused(subresource: str) -> None:
    new = tier(BAD)
    assert decided(new, old=tier(), operation="UPDATE", subResource=subresource) == NOTHING


@pytest.mark.parametrize("operation", ["DELETE", "CONNECT", "SOMETHING"])
def test_no_other_operation_is_refused(operation: str) -> None:
    assert decided(None, old=tier(BAD), operation=operation) == NOTHING


def test_a_dry_run_gets_the_same_answer() -> None:
    assert decided(tier(BAD), dryRun=True) == decided(tier(BAD))


def test_an_edit_is_not_refused_for_what_was_wrong_before_but_told() -> None:
    new = tier(BAD | {"workload": {"hitTokens": [{"quantile": "0.5", "tokens": 9}]}})
    decision = decided(new, old=tier(BAD), operation="UPDATE")
    assert decision.refusals == ()
    assert decision.warnings[0] == f"As before, {errors(tier(BAD))[0]}"


def test_an_edit_that_makes_a_bad_spec_worse_is_refused_for_that_alone() -> None:
    old = tier({"pool": {"hitLatency": "2h"}})
    new = tier({"pool": {"hitLatency": "2h", "hitEngineTime": "3h"}})
    decision = decided(new, old=old, operation="UPDATE")
    assert [line.split(":")[0] for line in decision.refusals] == ["spec.pool.hitEngineTime"]
    assert len(decision.warnings) == 1


def status_of(document: dict[str, Any], *, reason: str = "AllRanksReady") -> dict[str, Any]:
    served = generation_id(parse_tier(document).spec)
    return {
        "conditions": [{"type": "SpecValid"}, {"type": "StoreReady", "reason": reason}],
        "generations": [{"id": "0" * 12, "state": "Fenced"}, {"id": served, "state": "Live"}],
    }


def test_another_generation_than_the_served_one_is_a_warning() -> None:
    old = tier(status=status_of(tier()))
    new = tier({"model": {"revision": "r2"}})
    (line,) = decided(new, old=old, operation="UPDATE").warnings
    assert f"Secret of generation {generation_id(parse_tier(new).spec)}" in line
    served = generation_id(parse_tier(old).spec)
    assert line.endswith(f"{served}, is fenced once Ready engines have used that for 1h.")
    salted = tier({"model": {"salt": "a"}})
    (line,) = decided(salted, old=old, operation="UPDATE").warnings
    assert line.endswith(f"{served}, is fenced at once, since the salt is another.")


def test_going_back_to_the_served_generation_is_no_warning() -> None:
    stuck = tier({"model": {"revision": "r2"}}, status=status_of(tier()))
    assert decided(tier(), old=stuck, operation="UPDATE") == NOTHING


def test_a_tier_that_serves_nothing_yet_may_change_its_generation() -> None:
    new = tier({"model": {"revision": "r2"}})
    assert decided(new, old=tier(), operation="UPDATE") == NOTHING
    rejected = tier(status=status_of(tier(), reason="PlacementRejected"))
    assert decided(new, old=rejected, operation="UPDATE") == NOTHING


@pytest.mark.parametrize(
    "status",
    [
        {"a": 1},
        {"conditions": "x"},
        {"conditions": [1, {}]},
        *(status_of(tier()) | {"generations": value} for value in (None, "x", [1, {}])),
    ],
)
def test_a_status_of_any_form_is_no_obstacle(status: dict[str, Any]) -> None:
    new = tier({"model": {"revision": "r2"}})
    assert decided(new, old=tier(status=status), operation="UPDATE") == NOTHING


@pytest.mark.parametrize(
    ("new", "old", "operation", "field"),
    [
        (None, None, "CREATE", "request.object"),
        (tier(), None, "UPDATE", "request.oldObject"),
        (None, tier(), "UPDATE", "request.object"),
    ],
)
def test_a_review_without_its_object_is_bad(
    new: dict[str, Any] | None, old: dict[str, Any] | None, operation: str, field: str
) -> None:
    with pytest.raises(BadReview, match=f"^{field}: missing"):
        decided(new, old=old, operation=operation)


@settings(max_examples=300, deadline=None)
@given(JSON, JSON)
def test_no_document_makes_it_raise(first: Any, second: Any) -> None:
    for new, old in ((first, second), (tier() | {"spec": first}, tier() | {"metadata": second})):
        if isinstance(new, dict) and isinstance(old, dict):
            assert judge(new).refusals
            decided_text = json.dumps({"new": new, "old": old})
            both = json.loads(decided_text)
            decided(both["new"], old=both["old"], operation="UPDATE")


HOPELESS: dict[str, dict[str, Any]] = {
    "pool": {"hitLatency": "1s", "hitEngineTime": "1s"},
    "workload": {"hitTokens": [{"quantile": "1", "tokens": 1000}]},
}
BLOCKED = HOPELESS | {"placement": {"onReject": "Block"}}
REJECTION = "NoPromptLongEnough: T0 of 2 s"


def test_what_no_link_changes_is_refused_where_the_tier_asks_for_it() -> None:
    warned = decided(tier(HOPELESS))
    assert warned.refusals == ()
    assert any(line.startswith(REJECTION) for line in warned.warnings)
    blocked = decided(tier(BLOCKED))
    (line,) = blocked.refusals
    assert line.startswith(f"spec.placement.onReject: Block, and {REJECTION}")
    assert not any(line.startswith(REJECTION) for line in blocked.warnings)


def test_a_tier_that_is_made_is_warned_of_it_and_one_that_is_not_refused() -> None:
    edit = {"placement": {"onReject": "Block"}}
    made = tier(edit, status=status_of(tier()))
    decision = decided(tier(BLOCKED), old=made, operation="UPDATE")
    assert decision.refusals == ()
    assert any(line.startswith(REJECTION) for line in decision.warnings)
    rejected = tier(edit, status=status_of(tier(), reason="PlacementRejected"))
    assert decided(tier(BLOCKED), old=rejected, operation="UPDATE").refusals


def test_what_the_verdict_says_is_not_said_again_by_a_finding() -> None:
    lines = decided(tier({"pool": T0, "placement": link("1M")})).warnings
    assert sum("0.001 Gb/s" in line for line in lines) == 1
