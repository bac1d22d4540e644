"""The alerts: judged by promtool, tied to the runbooks, the metrics they read and their page."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from kvtier.limiter.gates import Gates
from kvtier.limiter.metrics import registry_of
from kvtier.metrics import Metrics
from kvtier.webhook.metrics import WebhookMetrics
from limiter_process import FixedTiers

ROOT = Path(__file__).parents[3]
RULES = ROOT / "charts/kvtier/rules/kvtier.yaml"
RULE_TESTS = Path(__file__).with_name("kvtier.test.yaml")
RUNBOOKS = ROOT / "docs/runbooks.md"
METRICS_PAGE = ROOT / "docs/metrics.md"
NAME = re.compile(r"(?<![\w:])(?:namespace_\w+:|kvtier_|apiserver_)[\w:]+")
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


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


def recorded() -> set[str]:
    return {rule["record"] for rule in rules() if "record" in rule}


def of_limiters() -> CollectorRegistry:
    return registry_of(Gates(FixedTiers(), clock=lambda: 0.0), failures=lambda: 0)


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


@pytest.mark.parametrize("alert", sorted({rule["alert"] for rule in alerts()}))
def test_an_alert_has_cases_in_which_it_fires_and_in_which_it_stays_silent(alert: str) -> None:
    cases = yaml.safe_load(RULE_TESTS.read_text())["tests"]
    of_alert = [c for t in cases for c in t.get("alert_rule_test", ()) if c["alertname"] == alert]
    assert any(case["exp_alerts"] for case in of_alert)
    assert any(not case["exp_alerts"] for case in of_alert)


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_an_alert_has_a_severity_and_a_runbook_section_of_its_name(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert rule["annotations"]["runbook_url"] == f"docs/runbooks.md#{rule['alert'].lower()}"
    assert re.search(rf"^#+ {rule['alert']}$", RUNBOOKS.read_text(), re.MULTILINE)


def test_the_runbooks_have_a_section_for_each_alert_and_for_nothing_else() -> None:
    sections = re.findall(r"^## (\w+)$", RUNBOOKS.read_text().partition("\n# Alerts\n")[2], re.M)
    assert sorted(sections) == sorted({rule["alert"] for rule in alerts()})


def test_the_metrics_page_has_a_row_for_each_alert_and_each_recorded_series() -> None:
    page = METRICS_PAGE.read_text()
    rows = re.findall(r"^\| (\w+) \| .+ \| \[(\w+)\]\(runbooks\.md#(\w+)\) \|$", page, re.M)
    assert sorted(row[0] for row in rows) == sorted({rule["alert"] for rule in alerts()})
    assert all(name == label and anchor == name.lower() for name, label, anchor in rows)
    assert set(re.findall(r"^\| `(namespace_[\w:]+)` \|", page, re.M)) == recorded()


def test_rules_read_only_metrics_that_are_exported_or_recorded() -> None:
    known = all_exported().keys() | exported(of_limiters()).keys() | API_SERVERS | recorded()
    for rule in rules():
        texts = [rule["expr"], *rule.get("annotations", {}).values()]
        names = {name for text in texts for name in NAME.findall(text)}
        assert names, rule
        assert names <= known, (rule.get("alert") or rule["record"], names - known)


def test_every_recorded_series_is_read_by_an_alert_or_named_by_a_runbook() -> None:
    read = {name for rule in alerts() for name in NAME.findall(rule["expr"])}
    assert recorded() <= read | set(NAME.findall(RUNBOOKS.read_text()))


def test_the_metrics_page_names_exactly_what_is_exported_with_its_type() -> None:
    assert documented() == all_exported()
