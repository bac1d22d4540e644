"""Why a rank has no pod, out of the events of its StatefulSet."""

from typing import Any

import pytest

from kvtier.plan.observed import RankState
from kvtier.plan.refusals import refusals

QUOTA = "exceeded quota: small, requested: limits.memory=64Mi, used: 0, limited: limits.memory=32Mi"
REFUSED = (
    'Create Pod chat-r0-0 in StatefulSet chat-r0 failed error: pods "chat-r0-0" is forbidden: '
    f"{QUOTA}"
)
OWNERS = {("StatefulSet", "chat-r0"): {"metadata": {"uid": "of-rank-0"}}}


def event(reason: str, *, at: str, uid: str = "of-rank-0", message: str = REFUSED) -> Any:
    return {
        "metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"},
        "involvedObject": {"kind": "StatefulSet", "uid": uid},
        "reason": reason,
        "message": message,
        "lastTimestamp": at,
    }


def found(*events: Any, pod: str | None = None) -> dict[int, str]:
    states = [RankState(rank=0, pod=pod), RankState(rank=1)]
    return refusals("chat", events=events, states=states, children=OWNERS)


@pytest.mark.parametrize("message", [REFUSED, REFUSED.replace("Create", "create")])
def test_a_quota_is_told_in_the_servers_words_without_the_pods_name(message: str) -> None:
    told = found(event("FailedCreate", at="2026-01-01T00:00:05Z", message=message))
    assert told == {0: f'pods "<pod>" is forbidden: {QUOTA}'}


def test_a_refusal_before_the_last_success_is_over() -> None:
    refused = event("FailedCreate", at="2026-01-01T00:00:05Z")
    made = event("SuccessfulCreate", at="2026-01-01T00:00:09Z")
    assert found(refused, made) == {}
    assert found(event("FailedCreate", at="2026-01-01T00:00:10Z"), made)


def test_the_newest_of_several_refusals_is_told() -> None:
    old = event("FailedCreate", at="2026-01-01T00:00:05Z", message="the old quota")
    new = event("FailedCreate", at="2026-01-01T00:00:06Z", message="the new quota")
    assert found(new, old) == {0: "the new quota"}


def test_events_of_a_statefulset_of_the_same_name_before_it_say_nothing() -> None:
    assert found(event("FailedCreate", at="2026-01-01T00:00:05Z", uid="deleted")) == {}


def test_a_rank_with_a_pod_was_not_refused() -> None:
    assert found(event("FailedCreate", at="2026-01-01T00:00:05Z"), pod="chat-r0-0") == {}


@pytest.mark.parametrize("field", ["eventTime", "series"])
def test_the_time_of_an_event_is_found_where_its_recorder_put_it(field: str) -> None:
    late = event("FailedCreate", at="2026-01-01T00:00:05Z", message="late")
    late["lastTimestamp"] = None
    time = "2026-01-01T00:00:07.000000Z"
    late[field] = {"lastObservedTime": time} if field == "series" else time
    earlier = event("FailedCreate", at="2026-01-01T00:00:06Z", message="earlier")
    assert found(late, earlier) == {0: "late"}
