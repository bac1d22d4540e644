from kvtier.api.conditions import MAX_MESSAGE, Condition, merge

READY = Condition(type="Ready", status=True, reason="TierReady", message="The tier serves.")
NOT_READY = Condition(type="Ready", status=False, reason="NotReady", message="no")
OTHER = Condition(type="StoreReady", status=None, reason="Rolling", message="")


def first() -> list[dict[str, object]]:
    return merge([], [READY, OTHER], observed_generation=1, now="2026-01-01T00:00:00Z")


def test_a_new_condition_starts_now() -> None:
    assert first()[0] == {
        "type": "Ready",
        "status": "True",
        "reason": "TierReady",
        "message": "The tier serves.",
        "observedGeneration": 1,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


def test_no_opinion_is_unknown() -> None:
    assert first()[1]["status"] == "Unknown"


def test_an_unchanged_condition_is_the_previous_one() -> None:
    before = first()
    after = merge(before, [READY, OTHER], observed_generation=1, now="2027-01-01T00:00:00Z")
    assert after == before
    assert after[0] is before[0]


def test_another_message_does_not_move_the_transition_time() -> None:
    louder = Condition(type="Ready", status=True, reason="TierReady", message="!")
    [after] = merge(first(), [louder], observed_generation=2, now="2027-01-01T00:00:00Z")
    assert after["lastTransitionTime"] == "2026-01-01T00:00:00Z"
    assert (after["message"], after["observedGeneration"]) == ("!", 2)


def test_another_status_moves_the_transition_time() -> None:
    [after] = merge(first(), [NOT_READY], observed_generation=1, now="2027-01-01T00:00:00Z")
    assert after["lastTransitionTime"] == "2027-01-01T00:00:00Z"


def test_types_that_are_not_wanted_any_more_are_dropped_and_the_order_is_the_wanted_one() -> None:
    after = merge(first(), [OTHER, READY], observed_generation=1, now="x")
    assert [condition["type"] for condition in after] == ["StoreReady", "Ready"]
    assert len(merge(first(), [OTHER], observed_generation=1, now="x")) == 1


def test_a_message_is_cut_at_the_bound_of_the_schema() -> None:
    long = Condition(type="Ready", status=True, reason="TierReady", message="x" * 5000)
    [after] = merge([], [long], observed_generation=1, now="x")
    assert len(after["message"]) == MAX_MESSAGE
    assert after["message"].endswith("…")
