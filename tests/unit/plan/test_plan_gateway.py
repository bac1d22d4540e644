"""Which policies stand in the way of a tier's own: names, rules, labels, parents."""

from typing import Any

import pytest

from kvtier.plan.gateway import parents, problem_told, selects

LABELS = {"app": "llm", "tier": "gold"}


@pytest.mark.parametrize(
    ("selector", "taken"),
    [
        ({}, True),
        ({"matchLabels": {"app": "llm"}}, True),
        ({"matchLabels": {"app": "llm", "tier": "free"}}, False),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["llm"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["llm"]}]}, False),
        ({"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]}, True),
        ({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "zone", "operator": "Exists"}]}, False),
        ({"matchExpressions": [{"key": "zone", "operator": "DoesNotExist"}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "OfALaterRelease"}]}, True),
        (
            {
                "matchLabels": {"app": "llm"},
                "matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}],
            },
            False,
        ),
    ],
)
def test_label_selectors_are_those_of_kubernetes(selector: dict[str, Any], taken: bool) -> None:
    assert selects(selector, LABELS) is taken


def test_parents_of_routes_are_gateways_and_listener_sets_wherever_they_are() -> None:
    refs = [
        {"name": "edge"},
        {"name": "core", "namespace": "gateways", "sectionName": "https"},
        {"name": "team", "kind": "ListenerSet"},
        {"name": "mesh", "kind": "Service", "group": ""},
    ]
    route = {"metadata": {"namespace": "prod", "name": "chat"}, "spec": {"parentRefs": refs}}
    assert parents({"chat": route, "gone": None}, "prod") == {
        ("Gateway", "prod", "edge"),
        ("Gateway", "gateways", "core"),
        ("ListenerSet", "prod", "team"),
    }


def told(generation: int, *conditions: dict[str, Any]) -> Any:
    return problem_told(
        {
            "metadata": {"name": "demo-admission", "generation": generation},
            "status": {"ancestors": [{"conditions": list(conditions)}]},
        }
    )


def condition(kind: str, status: str, reason: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": "x" * 500, **more}


def test_only_what_is_said_of_the_policy_as_it_is_counts() -> None:
    refused = condition("Accepted", "False", "Conflicted", observedGeneration=1)
    assert told(2, refused) is None
    assert told(1, refused)[0] == "PolicyConflict"
    assert told(1, condition("Accepted", "True", "Accepted", observedGeneration=1)) is None
    assert told(1, condition("Merged", "True", "Merged", observedGeneration=1)) is None
    assert told(1, condition("Warning", "True", "DeprecatedField", observedGeneration=1)) is None


def test_what_another_controller_writes_is_bounded() -> None:
    _, message = told(1, condition("Accepted", "False", "Invalid"))
    assert len(message) < 400
