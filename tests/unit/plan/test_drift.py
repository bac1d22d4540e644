"""What counts as drift between the intent and the live object."""

import pytest

from kvtier.plan.drift import contains, first_difference

TEMPLATE = {
    "containers": [{"name": "valkey", "image": "valkey:9.1", "args": ["a", "b"]}],
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
}


def test_defaults_that_the_server_added_are_no_drift() -> None:
    live = {
        "containers": [
            {**TEMPLATE["containers"][0], "terminationMessagePath": "/dev/termination-log"}
        ],
        "tolerations": TEMPLATE["tolerations"],
        "dnsPolicy": "ClusterFirst",
    }
    assert contains(live, TEMPLATE)


@pytest.mark.parametrize(
    ("live", "path"),
    [
        ({**TEMPLATE, "containers": []}, "containers[valkey]"),
        (
            {**TEMPLATE, "containers": [{**TEMPLATE["containers"][0], "image": "valkey:8.1"}]},
            "containers[valkey].image",
        ),
        (
            {**TEMPLATE, "containers": [{**TEMPLATE["containers"][0], "args": ["a"]}]},
            "containers[valkey].args",
        ),
        (
            {**TEMPLATE, "containers": [{**TEMPLATE["containers"][0], "args": ["b", "a"]}]},
            "containers[valkey].args[0]",
        ),
        ({"containers": TEMPLATE["containers"]}, "tolerations"),
        ("a string", "."),
    ],
)
def test_the_first_field_that_differs_is_named(live: object, path: str) -> None:
    assert first_difference(TEMPLATE, live) == path


def test_an_item_that_another_manager_added_to_a_keyed_list_is_no_drift() -> None:
    # Server-side apply would leave it there: calling it drift would apply again and again.
    live = {**TEMPLATE, "containers": [*TEMPLATE["containers"], {"name": "sidecar"}]}
    assert contains(live, TEMPLATE)


def test_an_atomic_list_must_be_equal() -> None:
    intent = {"drop": ["ALL"]}
    assert first_difference(intent, {"drop": ["ALL", "NET_RAW"]}) == "drop"


def test_an_empty_map_may_be_left_out_by_the_server() -> None:
    assert contains({}, {"emptyDir": {}})
