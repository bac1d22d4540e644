"""The optional limiter: off by default, with the least rights, found by gateways and peers."""

from typing import Any

import pytest
from chart_helm import NAMESPACE, Helm, Objects
from test_chart_network import engine, policies, rank, selects
from test_chart_rbac import documented, rights

__all__ = ["engine", "policies", "rank"]

NAME = "kvtier-limiter"
PEERS = "kvtier-peers"
ON = ("--set", "limiter.enabled=true")
POLICED = ("--set", "limiter.enabled=true,networkPolicy.enabled=true")
ROLE = ("ClusterRole", NAME)


def pod(objects: Objects) -> dict[str, Any]:
    template: dict[str, Any] = objects["Deployment", NAME]["spec"]["template"]
    return template


def arguments(objects: Objects) -> list[str]:
    (container,) = pod(objects)["spec"]["containers"]
    found: list[str] = container["args"]
    return found


def test_nothing_of_it_is_there_by_default(helm: Helm) -> None:
    assert "limiter" not in helm.template("--set", "crds.install=false").lower()


def test_it_adds_its_own_objects_and_tells_the_controller_where_it_is(helm: Helm) -> None:
    without, with_it = helm.objects(), helm.objects(*ON)
    (container,) = with_it["Deployment", "kvtier"]["spec"]["template"]["spec"]["containers"]
    container["args"].remove(f"--limiter-service={PEERS}.{NAMESPACE}.svc:8080")
    assert {key: with_it[key] for key in without} == without
    assert with_it.keys() - without.keys() == {
        ("Service", PEERS),
        *(
            (kind, NAME)
            for kind in (
                "ClusterRole",
                "ClusterRoleBinding",
                "Deployment",
                "PodDisruptionBudget",
                "Service",
                "ServiceAccount",
            )
        ),
    }


def test_it_reads_tiers_and_pods_and_secrets_by_name_and_writes_nothing(helm: Helm) -> None:
    granted = rights(helm.objects(*ON)[ROLE]["rules"])
    assert granted == {
        ("kvtier.dev", "kvcachetiers"): {"list", "watch"},
        ("", "pods"): {"list", "watch"},
        ("", "secrets"): {"get"},
    }
    assert granted == documented("limiter")


def test_with_named_namespaces_its_rights_end_at_them(helm: Helm) -> None:
    objects = helm.objects("--set", "limiter.enabled=true,watchNamespaces={a,b}")
    bound = {key for key in objects if key[0].endswith("Binding") and key[1].endswith(NAME)}
    assert bound == {("RoleBinding", f"a/{NAME}"), ("RoleBinding", f"b/{NAME}")}
    for key in bound:
        (subject,) = objects[key]["subjects"]
        assert (subject["name"], subject["namespace"]) == (NAME, NAMESPACE)
    assert [each for each in arguments(objects) if "namespaces" in each] == [
        "--namespaces=a",
        "--namespaces=b",
    ]


def test_two_replicas_on_two_nodes_of_which_a_drain_takes_one_at_a_time(helm: Helm) -> None:
    objects = helm.objects(*ON)
    spec = objects["Deployment", NAME]["spec"]
    labels = pod(objects)["metadata"]["labels"]
    assert spec["replicas"] == 2
    assert spec["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    (spread,) = pod(objects)["spec"]["topologySpreadConstraints"]
    assert spread["topologyKey"] == "kubernetes.io/hostname"
    budget = objects["PodDisruptionBudget", NAME]["spec"]
    assert budget["maxUnavailable"] == 1
    for selector in (spec["selector"], spread["labelSelector"], budget["selector"]):
        assert selects(selector, labels)
    controller = objects["Deployment", "kvtier"]["spec"]["selector"]
    assert not selects(controller, labels)


def test_gateways_peers_probes_and_the_program_agree_on_the_port(helm: Helm) -> None:
    objects = helm.objects(*ON)
    (container,) = pod(objects)["spec"]["containers"]
    assert container["ports"] == [{"name": "http", "containerPort": 8080}]
    for name in (NAME, PEERS):
        service = objects["Service", name]["spec"]
        assert service["ports"] == [{"name": "http", "port": 8080, "targetPort": "http"}]
        assert service["selector"].items() <= pod(objects)["metadata"]["labels"].items()
    assert objects["Service", PEERS]["spec"]["clusterIP"] == "None"
    assert "clusterIP" not in objects["Service", NAME]["spec"]
    assert arguments(objects) == [
        "limiter",
        "--listen=0.0.0.0:8080",
        f"--peers-service={PEERS}.{NAMESPACE}.svc:8080",
        "--log-format=json",
        "--log-level=info",
    ]
    probes = ("startupProbe", "livenessProbe", "readinessProbe")
    assert {container[probe]["httpGet"]["port"] for probe in probes} == {"http"}


def test_a_prometheus_is_asked_where_one_is_named(helm: Helm) -> None:
    objects = helm.objects(*ON, "--set", "limiter.prometheus=http://p.monitoring.svc:9090")
    assert "--prometheus=http://p.monitoring.svc:9090" in arguments(objects)


def test_its_pod_meets_the_restricted_pod_security_standard(helm: Helm) -> None:
    spec = pod(helm.objects(*ON))["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC", "volumes"} & set(spec)
    (container,) = spec["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["requests"].keys() == {"cpu", "memory"}
    assert "memory" in container["resources"]["limits"]


def test_its_metrics_are_found_and_keep_the_tiers_namespace_label(helm: Helm) -> None:
    objects = helm.objects(*ON, "--set", "monitoring.podMonitor.enabled=true")
    monitor = objects["PodMonitor", NAME]["spec"]
    assert selects(monitor["selector"], pod(objects)["metadata"]["labels"])
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["honorLabels"]) == ("http", True)
    controllers = objects["PodMonitor", "kvtier"]["spec"]["selector"]
    assert not selects(controllers, pod(objects)["metadata"]["labels"])


def test_its_policy_lets_it_out_to_ranks_engines_and_its_replicas(
    helm: Helm, rank: dict[str, str], engine: dict[str, str]
) -> None:
    objects = helm.objects(*POLICED)
    own = pod(objects)["metadata"]["labels"]
    policy = objects["NetworkPolicy", NAME]["spec"]
    assert selects(policy["podSelector"], own)
    assert not selects(policy["podSelector"], rank)
    (rule,) = policy["ingress"]
    assert rule == {"ports": [{"port": "http", "protocol": "TCP"}]}
    to_ranks, to_replicas, to_engines = [each for each in policy["egress"] if "to" in each]
    assert selects(to_ranks["to"][0]["podSelector"], rank)
    assert selects(to_replicas["to"][0]["podSelector"], own)
    assert selects(to_engines["to"][0]["podSelector"], engine)
    assert not selects(to_engines["to"][0]["podSelector"], rank)
    reached = {port["port"] for each in policy["egress"] for port in each.get("ports", ())}
    assert reached == {443, 6443, 53, 6379, 8080}


def test_with_a_prometheus_it_is_let_out_to_its_port_and_not_to_engines(helm: Helm) -> None:
    objects = helm.objects(*POLICED, "--set", "limiter.prometheus=http://p:9090")
    egress = objects["NetworkPolicy", NAME]["spec"]["egress"]
    assert {"ports": [{"port": 9090, "protocol": "TCP"}]} in egress
    assert len([each for each in egress if "to" in each]) == 2


def test_where_gateways_are_named_only_they_its_replicas_and_the_controller_ask_it(
    helm: Helm,
) -> None:
    gateway = "networkPolicy.limiterFrom[0].namespaceSelector.matchLabels.gateways=yes"
    objects = helm.objects(*POLICED, "--set-string", gateway)
    (rule,) = objects["NetworkPolicy", NAME]["spec"]["ingress"]
    replicas, controllers, gateways = rule["from"]
    assert selects(replicas["podSelector"], pod(objects)["metadata"]["labels"])
    controller = objects["Deployment", "kvtier"]["spec"]["template"]["metadata"]["labels"]
    assert selects(controllers["podSelector"], controller)
    assert gateways == {"namespaceSelector": {"matchLabels": {"gateways": "yes"}}}


def test_the_controller_is_let_out_to_it(helm: Helm) -> None:
    objects = helm.objects(*POLICED)
    egress = objects["NetworkPolicy", "kvtier"]["spec"]["egress"]
    (rule,) = [each for each in egress if each.get("ports", [{}])[0].get("port") == 8080]
    (peer,) = rule["to"]
    assert selects(peer["podSelector"], pod(objects)["metadata"]["labels"])


@pytest.mark.parametrize("name", ["kvtier-ranks", "kvtier-engine-metrics"])
def test_the_samples_policies_let_it_in_to_ranks_and_to_engines_metrics(
    helm: Helm, policies: dict[str, dict[str, Any]], name: str
) -> None:
    (rule,) = policies[name]["ingress"]
    namespace = {"kubernetes.io/metadata.name": NAMESPACE}
    labels = pod(helm.objects(*ON))["metadata"]["labels"]
    assert [
        peer
        for peer in rule["from"]
        if "namespaceSelector" in peer
        and selects(peer["namespaceSelector"], namespace)
        and selects(peer["podSelector"], labels)
    ]
