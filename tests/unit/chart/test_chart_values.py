"""values.schema.json: covers every value, accepts the good, refuses the bad by name."""

import json
from typing import Any

import pytest
import yaml
from chart_helm import CHART, Helm

from kvtier.api.types import StoreVersion

# --set argument -> word of the message by which a person finds the field.
REFUSED = {
    "watchNamespace=a": "watchNamespace",
    "image.registry=x": "registry",
    "image.repository=UPPER/case": "repository",
    "image.tag=a b": "tag",
    "image.digest=sha256:short": "digest",
    "image.pullPolicy=Sometimes": "pullPolicy",
    "nameOverride=Upper": "nameOverride",
    "fullnameOverride=1digit": "fullnameOverride",
    "crds.keep=false": "keep",
    "crds.install=maybe": "install",
    "watchNamespaces=a": "watchNamespaces",
    "watchNamespaces={a,a}": "watchNamespaces",
    "watchNamespaces={A}": "watchNamespaces",
    "controller.resync=5": "resync",
    "controller.resync=5 min": "resync",
    "controller.resync=0s": "resync",
    "controller.resync=900ms": "resync",
    "webhook.injection.enabled=true": "webhook.injection.enabled",
    "limiter.prometheus=http://prometheus:9090": "limiter.prometheus",
    "controller.logFormat=xml": "logFormat",
    "controller.logLevel=loud": "logLevel",
    "controller.replicas=2": "replicas",
    r"valkeyImages.7\.2=docker.io/valkey/valkey:7.2": "7.2",
    r"valkeyImages.9\.1=docker.io/valkey/valkey": "9.1",
    "serviceAccount.create=false": "serviceAccount",
    "rbac.create=false": "create",
    "resources.claims=x": "claims",
    "podLabels.a=true": "podLabels",
    "tolerations=x": "tolerations",
    "imagePullSecrets={pull}": "imagePullSecrets",
    "webhook.enabled=maybe": "enabled",
    "webhook.replicas=0": "replicas",
    "webhook.timeoutSeconds=31": "timeoutSeconds",
    "webhook.failurePolicy=Fail": "failurePolicy",
    "webhook.namespaceSelector=a": "namespaceSelector",
    "webhook.injection.enabled=perhaps": "enabled",
    "webhook.injection.failurePolicy=Fail": "failurePolicy",
    "webhook.resources.claims=x": "claims",
    "webhook.tls.secretName=Upper": "secretName",
    "webhook.tls.caBundle=LS0tLS1CRUdJTg==": "caBundle",
    "webhook.tls.issuer=x": "issuer",
    "limiter.enabled=maybe": "enabled",
    "limiter.replicas=0": "replicas",
    "limiter.prometheus=prometheus:9090": "prometheus",
    "limiter.prometheus=http://p?a=b": "prometheus",
    "limiter.mode=Enforce": "mode",
    "limiter.resources.claims=x": "claims",
    "networkPolicy.limiterFrom={envoy}": "limiterFrom",
    "networkPolicy.prometheusPorts={}": "prometheusPorts",
    "networkPolicy.enabled=yes": "enabled",
    "networkPolicy.apiServerPorts={}": "apiServerPorts",
    "networkPolicy.apiServerPorts={https}": "apiServerPorts",
    "networkPolicy.metricsFrom={monitoring}": "metricsFrom",
    "monitoring.podMonitor.enabled=yes": "enabled",
    "monitoring.podMonitor.interval=30": "interval",
    "monitoring.prometheusRule.enabled=1": "enabled",
    "monitoring.prometheusRule.runbooks=https://r.example#x": "runbooks",
    "monitoring.serviceMonitor.enabled=true": "serviceMonitor",
}


@pytest.mark.parametrize("argument", REFUSED)
def test_a_bad_value_is_refused_by_its_name(helm: Helm, argument: str) -> None:
    # A comma or brace list is --set's own syntax; everything else keeps its type.
    assert REFUSED[argument] in helm.refusal("--set", argument)


@pytest.mark.parametrize(
    "argument",
    [
        "image.tag=v1.2.3_rc.1",
        "image.repository=registry.example:5000/team/kvtier",
        "controller.resync=1h30m",
        r"valkeyImages.9\.1=registry.example:5000/valkey:9.1.1-trixie",
        "resources.limits.cpu=2",
        "resources=null",
        "global.imageRegistry=x",
        "fullnameOverride=" + "a" * 40,
    ],
)
def test_a_good_value_is_accepted(helm: Helm, argument: str) -> None:
    helm.template("--set", argument)


def keys(values: dict[str, Any], path: str = "") -> set[str]:
    """Dotted paths of every map's keys that the chart itself declares."""
    return {
        found
        for key, value in values.items()
        for found in {
            f"{path}{key}",
            *(keys(value, f"{path}{key}.") if isinstance(value, dict) else ()),
        }
    }


def declared(schema: dict[str, Any], path: str = "") -> set[str]:
    return {
        found
        for key, below in schema.get("properties", {}).items()
        for found in {f"{path}{key}", *declared(below, f"{path}{key}.")}
    }


def test_the_schema_declares_exactly_the_values_that_exist() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    kubernetes_own = ("podSecurityContext.", "resources.requests.", "resources.limits.")
    kubernetes_own += ("webhook.resources.requests.", "webhook.resources.limits.")
    kubernetes_own += ("limiter.resources.requests.", "limiter.resources.limits.")
    # Whatever the sidecar looks for.
    kubernetes_own += ("dashboards.labels.",)
    ours = {key for key in keys(values) if not key.startswith(kubernetes_own)}
    assert declared(schema) - {"global"} == ours


def test_every_map_of_ours_refuses_unknown_keys() -> None:
    def maps(schema: dict[str, Any]) -> list[dict[str, Any]]:
        below = [m for s in schema.get("properties", {}).values() for m in maps(s)]
        return [schema, *below] if "properties" in schema else below

    schema = json.loads((CHART / "values.schema.json").read_text())
    assert all(found["additionalProperties"] is False for found in maps(schema))


def test_valkey_images_can_be_set_for_each_series_the_api_knows() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert set(schema["properties"]["valkeyImages"]["properties"]) == set(StoreVersion)
