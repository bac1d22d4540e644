"""What must hold of the chart's objects, whatever they look like byte by byte."""

import argparse
import re
import shutil
from pathlib import Path

import pytest
import yaml
from chart_helm import CHART, NAMESPACE, ROOT, Helm

from kvtier import __version__
from kvtier.cli import controller

CRD_FILE = "kvtier.dev_kvcachetiers.yaml"
FULL = Path(__file__).with_name("golden") / "full.values.yaml"
NO_CRD = ("--set", "crds.install=false")
WITH_ALL = (
    "--set",
    "webhook.enabled=true,webhook.injection.enabled=true,networkPolicy.enabled=true,"
    "limiter.enabled=true,dashboards.enabled=true",
)
MONITORING = ["PodMonitor", "PrometheusRule"]


def test_the_chart_passes_strict_lint(helm: Helm) -> None:
    run = helm.run("lint", "--strict", str(CHART))
    assert run.returncode == 0, run.stdout + run.stderr


def test_chart_and_package_have_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__


def test_the_chart_carries_the_generated_crd() -> None:
    assert (CHART / "files" / CRD_FILE).read_text() == (ROOT / "crds" / CRD_FILE).read_text()


def test_the_crd_is_installed_as_generated_and_kept_at_uninstall(helm: Helm) -> None:
    rendered = helm.objects()["CustomResourceDefinition", "kvcachetiers.kvtier.dev"]
    annotations = rendered["metadata"]["annotations"]
    assert annotations.pop("helm.sh/resource-policy") == "keep"
    generated = yaml.safe_load((ROOT / "crds" / CRD_FILE).read_text())
    generated["metadata"].setdefault("annotations", {})
    assert rendered == generated


def test_text_in_the_crd_that_looks_like_a_template_arrives_unchanged(
    helm: Helm, tmp_path: Path
) -> None:
    chart = tmp_path / "kvtier"
    shutil.copytree(CHART, chart)
    crd = {
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "x"},
        "spec": {"d": "{{ .Values.nothing | fail }}", "maximum": 1099511627776},
    }
    (chart / "files" / CRD_FILE).write_text(yaml.safe_dump(crd))
    text = helm.template("--show-only", "templates/crd.yaml", chart=chart)
    assert yaml.safe_load(text)["spec"] == crd["spec"]
    assert "maximum: 1099511627776\n" in text


def test_without_monitoring_kinds_in_the_cluster_none_is_rendered(helm: Helm) -> None:
    assert not {kind for kind, _ in helm.objects()} & set(MONITORING)


@pytest.mark.parametrize("kind", MONITORING)
def test_a_monitoring_kind_is_rendered_when_the_cluster_has_just_it(helm: Helm, kind: str) -> None:
    objects = helm.objects("--api-versions", f"monitoring.coreos.com/v1/{kind}")
    assert {k for k, _ in objects} & set(MONITORING) == {kind}


@pytest.mark.parametrize(
    ("kind", "value"), [("PodMonitor", "podMonitor"), ("PrometheusRule", "prometheusRule")]
)
def test_a_monitoring_kind_can_be_forced_on_and_off(helm: Helm, kind: str, value: str) -> None:
    switch = f"monitoring.{value}.enabled"
    assert (kind, "kvtier") in helm.objects("--set", f"{switch}=true")
    there = ["--api-versions", f"monitoring.coreos.com/v1/{kind}"]
    assert (kind, "kvtier") not in helm.objects("--set", f"{switch}=false", *there)


def test_the_prometheus_rule_holds_the_plain_rules(helm: Helm) -> None:
    on = ["--set", "monitoring.prometheusRule.enabled=true"]
    plain = yaml.safe_load((CHART / "rules/kvtier.yaml").read_text())
    assert helm.objects(*on)["PrometheusRule", "kvtier"]["spec"] == plain
    hosted = [*on, "--set", "monitoring.prometheusRule.runbooks=https://r.example/kvtier"]
    links = [
        {
            rule["alert"]: rule["annotations"]["runbook_url"]
            for group in groups
            for rule in group["rules"]
            if "alert" in rule
        }
        for groups in (
            plain["groups"],
            helm.objects(*hosted)["PrometheusRule", "kvtier"]["spec"]["groups"],
        )
    ]
    assert links[0].keys() == links[1].keys()
    assert links[1] == {alert: f"https://r.example/kvtier#{alert.lower()}" for alert in links[0]}


def test_the_pod_monitor_finds_the_pod_and_keeps_the_tiers_namespace_label(helm: Helm) -> None:
    objects = helm.objects("--set", "monitoring.podMonitor.enabled=true")
    monitor = objects["PodMonitor", "kvtier"]["spec"]
    template = objects["Deployment", "kvtier"]["spec"]["template"]
    assert monitor["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    (endpoint,) = monitor["podMetricsEndpoints"]
    ports = {p["name"]: p["containerPort"] for p in template["spec"]["containers"][0]["ports"]}
    assert endpoint["honorLabels"] is True
    assert ports[endpoint["port"]] == 8080


def test_service_probes_and_controller_agree_on_the_port(helm: Helm) -> None:
    objects = helm.objects()
    pod = objects["Deployment", "kvtier"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    (port,) = container["ports"]
    service = objects["Service", "kvtier-metrics"]["spec"]
    assert service["selector"].items() <= pod["metadata"]["labels"].items()
    assert service["ports"] == [{"name": "metrics", "port": 8080, "targetPort": port["name"]}]
    assert f"--listen=0.0.0.0:{port['containerPort']}" in container["args"]
    probes = {
        container[f"{name}Probe"]["httpGet"]["path"]: container[f"{name}Probe"]["httpGet"]["port"]
        for name in ("startup", "liveness", "readiness")
    }
    assert probes == {"/healthz": port["name"], "/readyz": port["name"]}


def test_the_pod_meets_the_restricted_pod_security_standard(helm: Helm) -> None:
    pod = helm.objects()["Deployment", "kvtier"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC", "volumes"} & set(pod)
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["requests"].keys() == {"cpu", "memory"}
    assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize("values", [[], ["--values", str(FULL)]], ids=["default", "full"])
def test_the_controller_knows_every_flag_that_the_chart_sets(helm: Helm, values: list[str]) -> None:
    name = "kv" if values else "kvtier"
    deployment = helm.objects(*values)["Deployment", name]
    command, *flags = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    assert command == "controller"
    parser = argparse.ArgumentParser(allow_abbrev=False)
    controller.add_arguments(parser)
    parsed = parser.parse_args(flags)
    assert parsed.listen == "0.0.0.0:8080"
    assert parsed.lease_namespace == NAMESPACE


def test_kopf_is_told_who_it_is_so_that_any_uid_works(helm: Helm) -> None:
    """Without POD_ID kopf calls getpass.getuser(), which fails for a uid without a name."""
    pod = helm.objects()["Deployment", "kvtier"]["spec"]["template"]["spec"]
    assert {"POD_NAME", "POD_UID", "POD_NAMESPACE", "POD_ID"} <= {
        e["name"] for e in pod["containers"][0]["env"]
    }


def test_only_one_controller_runs_at_a_time(helm: Helm) -> None:
    spec = helm.objects()["Deployment", "kvtier"]["spec"]
    assert spec["replicas"] == 1
    assert spec["strategy"] == {"type": "Recreate"}


@pytest.mark.parametrize("release", ["a", "x" * 53, "my-kvtier", "kvtier-" + "y" * 46])
def test_every_name_fits_its_kind_for_any_release_name(helm: Helm, release: str) -> None:
    for kind, name in helm.objects(*NO_CRD, *WITH_ALL, release=release):
        label = re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", name.split("/")[-1])
        longest = 253 if kind in ("Certificate", "ConfigMap", "Issuer") else 63
        assert label, (kind, name)
        assert len(name.split("/")[-1]) <= longest, (kind, name)


def test_the_openshift_setting_of_the_docs_removes_the_ids(helm: Helm) -> None:
    ids = "podSecurityContext.runAsUser=null,podSecurityContext.runAsGroup=null"
    pod = helm.objects("--set", ids)["Deployment", "kvtier"]["spec"]["template"]["spec"]
    assert pod["securityContext"].keys() == {"runAsNonRoot", "seccompProfile"}


def test_every_namespaced_object_names_its_namespace(helm: Helm) -> None:
    cluster_wide = {"CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding"}
    cluster_wide |= {"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"}
    named = {NAMESPACE, "prefill-a", "prefill-b"}
    for (kind, name), object_ in helm.objects("--values", str(FULL)).items():
        if kind in cluster_wide:
            assert "namespace" not in object_["metadata"], name
        else:
            elsewhere = {"grafana"} if kind == "ConfigMap" else named
            assert object_["metadata"]["namespace"] in elsewhere, name
