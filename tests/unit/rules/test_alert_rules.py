"""The alerts: judged by promtool, tied to the runbooks, the metrics they read and their page."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from kvtier.metrics import Metrics
from kvtier.webhook.metrics import WebhookMetrics

ROOT = Path(__file__).parents[3]
RULES = ROOT / "charts/kvtier/rules/kvtier.yaml"
RULE_TESTS = Path(__file__).with_name("kvtier.test.yaml")
RUNBOOKS = ROOT / "docs/runbooks.md"
METRICS_PAGE = ROOT / "docs/metrics.md"
NAME = re.compile(r"\b(?:kvtier|apiserver)_[a-z0-9_]+\b")
API_SERVERS = {"apiserver_admission_webhook_fail_open_count"}
"""Metrics of the API server's; tests/cluster/test_cluster_webhook.py sees them there."""


def promtool(*arguments: str) -> None:
    binary = shutil.which("promtool")
    assert binary, "promtool is missing: `deploy/local/cluster build` installs it"
    run = subprocess.run([binary, *arguments], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stdout + run.stderr


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def exported(registry: CollectorRegistry) -> dict[str, str]:
    """Name as scraped -> type, of every metric of kvtier's own in the registry."""
    return {
        family.name + ("_total" if family.type == "counter" else ""): family.type
        for family in registry.collect()
        if family.name.startswith("kvtier_")
    }


def all_exported() -> dict[str, str]:
    """Of every process of kvtier's."""
    return exported(Metrics().registry) | exported(WebhookMetrics().registry)


def documented() -> dict[str, str]:
    row = re.compile(r"^\| `(kvtier_[a-z0-9_]+)` \| (\w+) \|", re.MULTILINE)
    return dict(row.findall(METRICS_PAGE.read_text()))


def test_promtool_accepts_the_rules() -> None:
    promtool("check", "rules", "--lint-fatal", str(RULES))


def test_each_alert_fires_and_stays_silent_as_its_cases_say() -> None:
    promtool("test", "rules", str(RULE_TESTS))


@pytest.mark.parametrize("alert", [rule["alert"] for rule in rules()])
def test_an_alert_has_cases_in_which_it_fires_and_in_which_it_stays_silent(alert: str) -> None:
    cases = yaml.safe_load(RULE_TESTS.read_text())["tests"]
    of_alert = [c for t in cases for c in t["alert_rule_test"] if c["alertname"] == alert]
    assert any(case["exp_alerts"] for case in of_alert)
    assert any(not case["exp_alerts"] for case in of_alert)


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_has_a_severity_and_a_runbook_section_of_its_name(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert rule["annotations"]["runbook_url"] == f"docs/runbooks.md#{rule['alert'].lower()}"
    assert re.search(rf"^#+ {rule['alert']}$", RUNBOOKS.read_text(), re.MULTILINE)


def test_rules_read_only_metrics_that_are_exported() -> None:
    known = all_exported().keys() | API_SERVERS
    for rule in rules():
        names = set(NAME.findall(rule["expr"]))
        assert names, rule["alert"]
        assert names <= known, rule["alert"]


def test_the_metrics_page_names_exactly_what_is_exported_with_its_type() -> None:
    assert documented() == all_exported()
