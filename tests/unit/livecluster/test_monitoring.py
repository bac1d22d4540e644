"""What the monitoring of cluster tests changes in the rules, and how it describes pods."""

from typing import Any

import yaml

from livecluster.discovery import targets
from livecluster.monitoring import RULES, shortened

PLAIN: dict[str, Any] = yaml.safe_load(RULES.read_text())


def test_nothing_but_how_long_a_rule_is_held_changes() -> None:
    changed = shortened(RULES.read_text(), held="2s")
    held = [rule for group in changed["groups"] for rule in group["rules"] if "for" in rule]
    assert {rule["for"] for rule in held} == {"2s"}
    pairs = zip(PLAIN["groups"], changed["groups"], strict=True)
    for before, after in pairs:
        for old, new in zip(before["rules"], after["rules"], strict=True):
            assert {**new, "for": old.get("for")} == {**old, "for": old.get("for")}
            assert ("for" in new) == ("for" in old)


def test_only_the_named_windows_become_shorter_everywhere() -> None:
    changed = str(shortened(RULES.read_text(), held="2s", windows={"15m": "20s", "1h": "30s"}))
    assert "[15m]" in str(PLAIN)
    assert "offset 15m" in str(PLAIN)
    for gone in ("[15m]", "offset 15m", "[1h]", "offset 1h"):
        assert gone not in changed
    assert "[10m]" in changed


def test_a_pod_is_described_as_kubernetes_sd_would_and_one_without_an_address_is_not() -> None:
    pod = {
        "metadata": {
            "name": "kvtier-1",
            "namespace": "kvtier-system",
            "labels": {"app.kubernetes.io/name": "kvtier"},
        },
        "spec": {
            "nodeName": "node-2",
            "containers": [
                {"name": "a", "ports": [{"name": "metrics", "containerPort": 8080}]},
                {"name": "b"},
            ],
        },
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.7",
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    waits = {**pod, "status": {"phase": "Pending"}}
    prefix = "__meta_kubernetes_"
    assert targets([pod, waits]) == [
        {
            "targets": ["10.0.0.7:8080"],
            "labels": {
                f"{prefix}namespace": "kvtier-system",
                f"{prefix}pod_name": "kvtier-1",
                f"{prefix}pod_phase": "Running",
                f"{prefix}pod_ready": "true",
                f"{prefix}pod_node_name": "node-2",
                f"{prefix}pod_container_name": "a",
                f"{prefix}pod_container_port_name": "metrics",
                f"{prefix}pod_container_port_number": "8080",
                f"{prefix}pod_label_app_kubernetes_io_name": "kvtier",
            },
        }
    ]
