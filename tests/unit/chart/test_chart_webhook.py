"""The optional webhook: off by default, without rights, and never in the way."""

import argparse
import base64
from typing import Any

import pytest
import yaml
from chart_helm import CHART, NAMESPACE, Helm, Objects

from kvtier.api.types import GROUP, PLURAL, VERSION
from kvtier.cli import webhook
from kvtier.webhook.server import INJECT_PATH, PATH

NAME = "kvtier-webhook"
PEM = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
ON = ("--set", "webhook.enabled=true")
INJECTING = ("--set", "webhook.enabled=true,webhook.injection.enabled=true")
OWN = (
    *ON,
    *("--set", "webhook.tls.certManager=false,webhook.tls.secretName=mine"),
    *("--set-string", f"webhook.tls.caBundle={PEM}"),
)
CERT_MANAGER = {("Issuer", f"{NAME}-root"), ("Certificate", f"{NAME}-ca")}
CERT_MANAGER |= {("Issuer", NAME), ("Certificate", NAME)}


def configuration(objects: Objects) -> dict[str, Any]:
    (found,) = objects["ValidatingWebhookConfiguration", NAME]["webhooks"]
    assert isinstance(found, dict)
    return found


def pod(objects: Objects) -> dict[str, Any]:
    template: dict[str, Any] = objects["Deployment", NAME]["spec"]["template"]
    return template


def test_nothing_of_it_is_there_by_default(helm: Helm) -> None:
    assert "webhook" not in helm.template("--set", "crds.install=false").lower()


def test_it_adds_its_own_objects_and_changes_no_other(helm: Helm) -> None:
    without, with_it = helm.objects(), helm.objects(*ON)
    assert {key: with_it[key] for key in without} == without
    assert with_it.keys() - without.keys() == CERT_MANAGER | {
        (kind, NAME)
        for kind in (
            "Deployment",
            "PodDisruptionBudget",
            "Service",
            "ServiceAccount",
            "ValidatingWebhookConfiguration",
        )
    }


def test_only_creates_and_updates_of_tiers_are_asked_about_and_nothing_waits_for_it(
    helm: Helm,
) -> None:
    found = configuration(helm.objects(*ON))
    (rule,) = found["rules"]
    assert rule == {
        "apiGroups": [GROUP],
        "apiVersions": [VERSION],
        "resources": [PLURAL],
        "operations": ["CREATE", "UPDATE"],
        "scope": "Namespaced",
    }
    assert found["failurePolicy"] == "Ignore"
    assert found["sideEffects"] == "None"
    assert found["matchPolicy"] == "Equivalent"
    assert found["timeoutSeconds"] == 3
    assert found["admissionReviewVersions"] == ["v1"]
    assert "namespaceSelector" not in found


def test_configuration_service_pod_and_program_agree(helm: Helm) -> None:
    objects = helm.objects(*ON)
    service = configuration(objects)["clientConfig"]["service"]
    assert service == {"namespace": NAMESPACE, "name": NAME, "path": PATH, "port": 443}
    found = objects["Service", NAME]["spec"]
    labels = pod(objects)["metadata"]["labels"]
    assert found["selector"].items() <= labels.items()
    assert found["ports"] == [{"name": "https", "port": 443, "targetPort": "https"}]
    (container,) = pod(objects)["spec"]["containers"]
    command, *flags = container["args"]
    parser = argparse.ArgumentParser(allow_abbrev=False)
    webhook.add_arguments(parser)
    parsed = parser.parse_args(flags)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert command == "webhook"
    assert parsed.listen == f"0.0.0.0:{ports['https']}"
    assert parsed.metrics_listen == f"0.0.0.0:{ports['metrics']}"
    (mount,) = container["volumeMounts"]
    (volume,) = pod(objects)["spec"]["volumes"]
    assert mount["name"] == volume["name"]
    files = {f"{mount['mountPath']}/{item['path']}" for item in volume["secret"]["items"]}
    assert files == {parsed.tls_certificate, parsed.tls_key}


def test_controller_and_webhook_are_told_apart_by_every_selector(helm: Helm) -> None:
    objects = helm.objects(*ON, "--set", "monitoring.podMonitor.enabled=true")
    for name, other in (("kvtier", NAME), (NAME, "kvtier")):
        labels = objects["Deployment", other]["spec"]["template"]["metadata"]["labels"]
        for kind in ("Deployment", "PodMonitor"):
            selector = objects[kind, name]["spec"]["selector"]["matchLabels"]
            assert not selector.items() <= labels.items(), (kind, name)
    controller = objects["Deployment", "kvtier"]["spec"]["template"]["metadata"]["labels"]
    webhooks = objects["Service", NAME]["spec"]["selector"]
    assert not webhooks.items() <= controller.items()


def test_it_has_no_right_and_no_token(helm: Helm) -> None:
    objects = helm.objects(*ON)
    subjects = [
        subject["name"]
        for (kind, _), found in objects.items()
        if kind.endswith("Binding")
        for subject in found["subjects"]
    ]
    assert NAME not in subjects
    assert objects["ServiceAccount", NAME]["automountServiceAccountToken"] is False
    spec = pod(objects)["spec"]
    assert spec["serviceAccountName"] == NAME
    assert spec["automountServiceAccountToken"] is False


def test_its_pod_meets_the_restricted_pod_security_standard(helm: Helm) -> None:
    spec = pod(helm.objects(*ON))["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    assert {kind for volume in spec["volumes"] for kind in volume} == {"name", "secret"}
    (container,) = spec["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "memory" in container["resources"]["limits"]


def test_it_can_be_drained_and_rolled_without_a_gap(helm: Helm) -> None:
    objects = helm.objects(*ON)
    assert objects["PodDisruptionBudget", NAME]["spec"]["maxUnavailable"] == 1
    spec = objects["Deployment", NAME]["spec"]
    assert spec["replicas"] == 2
    assert spec["strategy"] == {"rollingUpdate": {"maxUnavailable": 0}}
    (container,) = pod(objects)["spec"]["containers"]
    grace = pod(objects)["spec"]["terminationGracePeriodSeconds"]
    assert container["lifecycle"]["preStop"]["sleep"]["seconds"] < grace - 5


def test_cert_manager_makes_the_secret_that_is_mounted_for_the_name_that_is_called(
    helm: Helm,
) -> None:
    objects = helm.objects(*ON)
    certificate = objects["Certificate", NAME]["spec"]
    (volume,) = pod(objects)["spec"]["volumes"]
    assert volume["secret"]["secretName"] == certificate["secretName"] == f"{NAME}-tls"
    assert certificate["dnsNames"] == [f"{NAME}.{NAMESPACE}.svc"]
    issuer = objects[certificate["issuerRef"]["kind"], certificate["issuerRef"]["name"]]["spec"]
    authority = objects["Certificate", f"{NAME}-ca"]["spec"]
    assert issuer == {"ca": {"secretName": authority["secretName"]}}
    assert authority["isCA"] is True
    root = authority["issuerRef"]
    assert objects[root["kind"], root["name"]]["spec"] == {"selfSigned": {}}
    found = objects["ValidatingWebhookConfiguration", NAME]
    injected = found["metadata"]["annotations"]["cert-manager.io/inject-ca-from"]
    assert injected == f"{NAMESPACE}/{NAME}"
    assert "caBundle" not in configuration(objects)["clientConfig"]


def test_a_certificate_of_ones_own_needs_no_cert_manager(helm: Helm) -> None:
    objects = helm.objects(*OWN)
    assert not CERT_MANAGER & objects.keys()
    assert "annotations" not in objects["ValidatingWebhookConfiguration", NAME]["metadata"]
    bundle = configuration(objects)["clientConfig"]["caBundle"]
    assert base64.b64decode(bundle).decode() == PEM
    (volume,) = pod(objects)["spec"]["volumes"]
    assert volume["secret"]["secretName"] == "mine"


@pytest.mark.parametrize(
    "values",
    [
        ["certManager=false"],
        ["certManager=false", "secretName=mine"],
        ["certManager=false", f"caBundle={PEM}"],
        ["secretName=mine"],
        [f"caBundle={PEM}"],
    ],
    ids=str,
)
def test_two_certificates_or_none_are_refused_in_one_line(helm: Helm, values: list[str]) -> None:
    settings = [part for value in values for part in ("--set", f"webhook.tls.{value}")]
    lines = [line for line in helm.refusal(*ON, *settings).splitlines() if "webhook.tls" in line]
    assert len(lines) == 1
    assert "set webhook.tls.certManager=" in lines[0] or "set them" in lines[0]


@pytest.mark.parametrize(
    ("values", "selector"),
    [
        ("watchNamespaces={a,b}", {"key": "kubernetes.io/metadata.name", "values": ["a", "b"]}),
        ("webhook.namespaceSelector.matchLabels.team=a", {"team": "a"}),
    ],
)
def test_it_is_asked_only_about_the_namespaces_that_are_served_or_chosen(
    helm: Helm, values: str, selector: dict[str, Any]
) -> None:
    found = configuration(helm.objects(*ON, "--set", values))["namespaceSelector"]
    if "key" in selector:
        assert found == {"matchExpressions": [selector | {"operator": "In"}]}
    else:
        assert found == {"matchLabels": selector}


def test_its_policy_lets_calls_and_scrapes_in_and_nothing_out(helm: Helm) -> None:
    source = "networkPolicy.metricsFrom[0].podSelector.matchLabels.a=b"
    assert ("NetworkPolicy", NAME) not in helm.objects(*ON)
    objects = helm.objects(*ON, "--set", f"networkPolicy.enabled=true,{source}")
    policy = objects["NetworkPolicy", NAME]["spec"]
    labels = pod(objects)["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    calls, scrapes = policy["ingress"]
    assert calls == {"ports": [{"port": "https", "protocol": "TCP"}]}
    assert [port["port"] for port in scrapes["ports"]] == ["metrics"]
    assert scrapes["from"] == [{"podSelector": {"matchLabels": {"a": "b"}}}]
    assert policy["egress"] == []
    assert policy["policyTypes"] == ["Ingress", "Egress"]


def test_the_certificate_needs_no_common_name_which_ends_at_64_characters(helm: Helm) -> None:
    objects = helm.objects(*ON, release="kvtier-" + "y" * 46)
    (certificate,) = (
        found["spec"]
        for (kind, _), found in objects.items()
        if kind == "Certificate" and "dnsNames" in found["spec"]
    )
    assert len(certificate["dnsNames"][0]) > 64
    assert "commonName" not in certificate


def test_the_values_page_says_that_it_is_off() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert values["webhook"]["enabled"] is False


def test_injection_is_off_by_default_and_adds_the_least_that_it_needs(helm: Helm) -> None:
    without, with_it = helm.objects(*ON), helm.objects(*INJECTING)
    assert with_it.keys() - without.keys() == {
        ("ClusterRole", NAME),
        ("ClusterRoleBinding", NAME),
        ("MutatingWebhookConfiguration", NAME),
    }
    changed = {key for key in without if with_it[key] != without[key]}
    assert changed == {("Deployment", NAME)}
    assert with_it["ClusterRole", NAME]["rules"] == [
        {"apiGroups": [GROUP], "resources": [PLURAL], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
    ]
    binding = with_it["ClusterRoleBinding", NAME]
    assert binding["roleRef"]["name"] == NAME
    assert [(each["name"], each["namespace"]) for each in binding["subjects"]] == [
        (NAME, NAMESPACE)
    ]


def test_rights_are_given_in_the_watched_namespaces_alone(helm: Helm) -> None:
    bindings = {
        (kind, found["metadata"].get("namespace"))
        for (kind, name), found in helm.objects(
            *INJECTING, "--set", "watchNamespaces={a,b}"
        ).items()
        if kind.endswith("Binding") and found["roleRef"]["name"] == NAME
    }
    assert bindings == {("RoleBinding", "a"), ("RoleBinding", "b")}


@pytest.mark.parametrize(
    "values", ["a=b", "watchNamespaces={a,b}", "webhook.namespaceSelector.matchLabels.team=a"]
)
def test_only_labelled_pods_are_asked_about_when_they_are_made(helm: Helm, values: str) -> None:
    objects = helm.objects(*INJECTING, *(() if values == "a=b" else ("--set", values)))
    (found,) = objects["MutatingWebhookConfiguration", NAME]["webhooks"]
    (rule,) = found["rules"]
    assert rule == {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "resources": ["pods"],
        "operations": ["CREATE"],
        "scope": "Namespaced",
    }
    (label,) = found["objectSelector"]["matchExpressions"]
    assert label == {"key": "kvtier.dev/tier", "operator": "Exists"}
    assert found["failurePolicy"] == "Ignore"
    assert found["sideEffects"] == "NoneOnDryRun"
    assert found["reinvocationPolicy"] == "IfNeeded"
    assert found["timeoutSeconds"] == 3
    judging = configuration(objects)
    assert found["clientConfig"]["service"] == {
        **judging["clientConfig"]["service"],
        "path": INJECT_PATH,
    }
    assert found.get("namespaceSelector") == judging.get("namespaceSelector")
    annotations = objects["MutatingWebhookConfiguration", NAME]["metadata"]["annotations"]
    assert annotations["cert-manager.io/inject-ca-from"] == f"{NAMESPACE}/{NAME}"


def test_with_a_certificate_of_ones_own_both_configurations_trust_its_ca(helm: Helm) -> None:
    objects = helm.objects(*OWN, "--set", "webhook.injection.enabled=true")
    (found,) = objects["MutatingWebhookConfiguration", NAME]["webhooks"]
    assert found["clientConfig"]["caBundle"] == configuration(objects)["clientConfig"]["caBundle"]
    assert "annotations" not in objects["MutatingWebhookConfiguration", NAME]["metadata"]


def test_the_program_is_told_and_its_pod_reaches_the_api_server(helm: Helm) -> None:
    objects = helm.objects(*INJECTING, "--set", "networkPolicy.enabled=true")
    spec = pod(objects)["spec"]
    assert spec["automountServiceAccountToken"] is True
    assert "--inject=true" in spec["containers"][0]["args"]
    ports = [
        each["port"]
        for rule in objects["NetworkPolicy", NAME]["spec"]["egress"]
        for each in rule["ports"]
    ]
    assert ports == [443, 6443, 53, 53]
    assert "--inject=true" not in pod(helm.objects(*ON))["spec"]["containers"][0]["args"]
