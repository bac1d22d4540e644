"""What the chart renders, byte by byte, for defaults and for every value changed.

`UPDATE_GOLDEN=1 pytest tests/unit/chart/test_chart_golden.py` writes the files anew: read the diff.
"""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart_helm import CHART, Helm

GOLDEN = Path(__file__).with_name("golden")
CASES = {
    # The CRD has a test of its own.
    "default": ["--set", "crds.install=false"],
    "webhook": [
        *("--set", "webhook.enabled=true,networkPolicy.enabled=true"),
        *("--show-only", "templates/webhook.yaml"),
        *("--show-only", "templates/webhook-configuration.yaml"),
    ],
    "limiter": [
        *("--set", "limiter.enabled=true,networkPolicy.enabled=true"),
        *("--show-only", "templates/limiter.yaml"),
        *("--show-only", "templates/networkpolicy.yaml"),
    ],
    "full": ["--values", str(GOLDEN / "full.values.yaml")],
}


# Thousands of lines that are files of their own: test_chart_dashboards.py compares them.
DASHBOARD = re.compile(r"^(  kvtier-\w+\.json: \|\n)(?:    .*\n)+", re.MULTILINE)


def documents(text: str) -> list[str]:
    """Helm 3 and 4 differ in the order of kinds and in empty lines between documents."""
    return sorted(part.strip() for part in re.split(r"^---$", text, flags=re.MULTILINE))


def leaves(values: Any, path: str = "") -> dict[str, Any]:
    """Dotted path -> value, of every value that holds no further map."""
    if not isinstance(values, dict) or not values:
        return {path: values}
    return {
        leaf: value
        for key, below in values.items()
        for leaf, value in leaves(below, f"{path}.{key}" if path else key).items()
    }


@pytest.mark.parametrize("case", CASES)
def test_both_helms_render_what_was_reviewed(helm: Helm, case: str) -> None:
    rendered = DASHBOARD.sub(r"\1    {}\n", helm.template(*CASES[case]))
    golden = GOLDEN / f"{case}.yaml"
    if os.environ.get("UPDATE_GOLDEN") and helm.version == 4:
        golden.write_text(re.sub(r"\n+---\n", "\n---\n", rendered).rstrip("\n") + "\n")
    assert documents(rendered) == documents(golden.read_text())


def test_the_full_case_changes_every_value() -> None:
    """A value that the full case leaves out could be read by no template without notice."""
    defaults = leaves(yaml.safe_load((CHART / "values.yaml").read_text()))
    full = leaves(yaml.safe_load((GOLDEN / "full.values.yaml").read_text()))
    unchanged = {
        path
        for path, value in defaults.items()
        if full.get(path, value) == value and not any(p.startswith(f"{path}.") for p in full)
    }
    assert unchanged == {
        "podSecurityContext.runAsNonRoot",
        "podSecurityContext.seccompProfile.type",
        "serviceAccount.create",
    }
