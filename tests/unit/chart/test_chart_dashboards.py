"""The ConfigMaps from which Grafana's sidecar takes the dashboards."""

import json
from typing import Any

import pytest
from chart_helm import CHART, NAMESPACE, Helm

FILES = sorted((CHART / "dashboards").glob("*.json"))
ON = ("--set", "dashboards.enabled=true")
API_VERSIONS = ("--api-versions", "monitoring.coreos.com/v1/PrometheusRule")
RUNBOOKS = "https://runbooks.example/kvtier"
MOST_BYTES = 256 * 1024
"""`kubectl apply` on the client keeps an object in an annotation, which may not be larger."""


def config_maps(helm: Helm, *arguments: str) -> dict[str, dict[str, Any]]:
    rendered = helm.objects("--show-only", "templates/dashboards.yaml", *arguments)
    assert {kind for kind, _ in rendered} == {"ConfigMap"}
    return {name: found for (_, name), found in rendered.items()}


def test_each_file_is_in_a_config_map_of_its_own_as_it_is(helm: Helm) -> None:
    found = config_maps(helm, *ON)
    assert len(FILES) == 3
    assert {name: each["data"] for name, each in found.items()} == {
        f"kvtier-{file.stem}-dashboard": {f"kvtier-{file.name}": file.read_text()} for file in FILES
    }
    for each in found.values():
        assert each["metadata"]["namespace"] == NAMESPACE
        assert each["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert len(json.dumps(each)) < MOST_BYTES


def test_labels_annotations_and_the_namespace_are_those_of_the_values(helm: Helm) -> None:
    settings = "dashboards.labels.team=inference,dashboards.labels.grafana_dashboard=null"
    settings += ",dashboards.annotations.grafana_folder=kvtier,dashboards.namespace=monitoring"
    for each in config_maps(helm, *ON, "--set", settings).values():
        metadata = each["metadata"]
        assert metadata["namespace"] == "monitoring"
        assert metadata["annotations"] == {"grafana_folder": "kvtier"}
        assert metadata["labels"]["team"] == "inference"
        assert metadata["labels"]["app.kubernetes.io/name"] == "kvtier"
        assert "grafana_dashboard" not in metadata["labels"]


def test_without_any_label_of_theirs_they_have_the_charts(helm: Helm) -> None:
    """An empty map in front of labels would be no YAML."""
    for each in config_maps(helm, *ON, "--set", "dashboards.labels=null").values():
        assert each["metadata"]["labels"]["app.kubernetes.io/name"] == "kvtier"


def test_links_lead_where_the_alerts_lead(helm: Helm) -> None:
    set_to = ("--set", f"monitoring.prometheusRule.runbooks={RUNBOOKS}")
    for each in config_maps(helm, *ON, *set_to).values():
        (text,) = each["data"].values()
        assert "docs/runbooks.md" not in text
        assert json.loads(text)["links"][-1]["url"] == RUNBOOKS


@pytest.mark.parametrize(
    ("arguments", "there"),
    [
        ((), False),
        (API_VERSIONS, True),
        ((*API_VERSIONS, "--set", "dashboards.enabled=false"), False),
        (ON, True),
    ],
)
def test_auto_is_on_where_the_prometheus_operator_is(
    helm: Helm, arguments: tuple[str, ...], there: bool
) -> None:
    assert any(kind == "ConfigMap" for kind, _ in helm.objects(*arguments)) == there


@pytest.mark.parametrize(
    "wrong",
    ["dashboards.namespace=Not_A_Name", "dashboards.enabled=perhaps", "dashboards.label.a=b"],
)
def test_a_wrong_value_is_refused_by_name(helm: Helm, wrong: str) -> None:
    assert "dashboards" in helm.refusal("--set", wrong)
