"""The network policies of the chart and of the sample select the pods that they speak of."""

from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from chart_helm import NAMESPACE, ROOT, Helm

from kvtier.api.load import load_file
from kvtier.engines.endpoint import DEFAULT_PORT
from kvtier.generation.record import new_record
from kvtier.redact import new_token
from kvtier.render.probe import probe_job
from kvtier.render.render import RenderSettings, render

SAMPLES = ROOT / "deploy/samples"
Labels = Mapping[str, str]


def selects(selector: dict[str, Any], labels: Labels) -> bool:
    wanted = selector.get("matchLabels", {})
    exists = [term["key"] for term in selector.get("matchExpressions", [])]
    assert all(term["operator"] == "Exists" for term in selector.get("matchExpressions", []))
    return wanted.items() <= labels.items() and set(exists) <= labels.keys()


@pytest.fixture(scope="module")
def policies() -> dict[str, dict[str, Any]]:
    """The sample's policies by name."""
    documents = yaml.safe_load_all((SAMPLES / "network-policies.yaml").read_text())
    return {document["metadata"]["name"]: document["spec"] for document in documents}


@pytest.fixture(scope="module")
def rank() -> Labels:
    """Labels of a rank's pod, as rendered."""
    tier = load_file(str(SAMPLES / "laptop.yaml"))
    record = new_record(tier.spec, operator_token=new_token(), engine_token=new_token())
    objects = render(tier, record, settings=RenderSettings())
    sets = [each for each in objects if each["kind"] == "StatefulSet"]
    labels: Labels = sets[0]["spec"]["template"]["metadata"]["labels"]
    return labels


@pytest.fixture(scope="module")
def engine() -> Labels:
    """Labels of an engine's pod, as the sample pool has them."""
    pool = yaml.safe_load((SAMPLES / "prefill-pool.yaml").read_text())
    labels: Labels = pool["spec"]["template"]["metadata"]["labels"]
    return labels


def controller(helm: Helm) -> Labels:
    deployment = helm.objects()["Deployment", "kvtier"]
    labels: Labels = deployment["spec"]["template"]["metadata"]["labels"]
    return labels


def probe() -> Labels:
    """Labels of a probe's pod."""
    tier = load_file(str(SAMPLES / "smallest.yaml"))
    job = probe_job(tier, "node", image="kvtier")
    labels: Labels = job["spec"]["template"]["metadata"]["labels"]
    return labels


def test_the_samples_probe_policy_lets_probes_out_to_ranks_and_nobody_in(
    policies: dict[str, dict[str, Any]], rank: Labels, engine: Labels
) -> None:
    policy = policies["kvtier-probes"]
    assert selects(policy["podSelector"], probe())
    assert not selects(policy["podSelector"], rank)
    assert not selects(policy["podSelector"], engine)
    to_ranks, dns = policy["egress"]
    assert selects(to_ranks["to"][0]["podSelector"], rank)
    assert {port["port"] for port in to_ranks["ports"]} == {6379}
    assert {port["port"] for port in dns["ports"]} == {53}
    assert "ingress" not in policy
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}


def test_the_samples_rank_policy_covers_ranks_only_and_lets_engines_and_the_controller_in(
    helm: Helm, policies: dict[str, dict[str, Any]], rank: Labels, engine: Labels
) -> None:
    policy = policies["kvtier-ranks"]
    assert selects(policy["podSelector"], rank)
    assert not selects(policy["podSelector"], engine)
    (rule,) = policy["ingress"]
    assert rule["ports"] == [{"port": 6379, "protocol": "TCP"}]
    engines, probes, controllers, _ = rule["from"]
    assert "namespaceSelector" not in engines, "engines of another namespace have another tier"
    assert selects(engines["podSelector"], engine)
    assert not selects(engines["podSelector"], rank)
    assert "namespaceSelector" not in probes
    assert selects(probes["podSelector"], probe())
    assert not selects(probes["podSelector"], rank)
    assert selects(controllers["namespaceSelector"], {"kubernetes.io/metadata.name": NAMESPACE})
    assert selects(controllers["podSelector"], controller(helm))
    assert "egress" not in policy
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}


def test_the_samples_engine_policy_covers_engines_only_and_lets_them_out_to_ranks(
    policies: dict[str, dict[str, Any]], rank: Labels, engine: Labels
) -> None:
    policy = policies["kvtier-engines"]
    assert selects(policy["podSelector"], engine)
    assert not selects(policy["podSelector"], rank)
    to_ranks, dns = policy["egress"]
    assert selects(to_ranks["to"][0]["podSelector"], rank)
    assert {port["port"] for port in to_ranks["ports"]} == {6379}
    assert {port["port"] for port in dns["ports"]} == {53}


def test_the_charts_policy_is_for_the_controller_and_lets_it_out_to_ranks_of_any_namespace(
    helm: Helm, rank: Labels, engine: Labels
) -> None:
    assert ("NetworkPolicy", "kvtier") not in helm.objects()
    objects = helm.objects("--set", "networkPolicy.enabled=true")
    policy = objects["NetworkPolicy", "kvtier"]["spec"]
    assert selects(policy["podSelector"], controller(helm))
    assert not selects(policy["podSelector"], rank)
    to_ranks, to_engines = [rule for rule in policy["egress"] if "to" in rule]
    (peer,) = to_ranks["to"]
    assert peer["namespaceSelector"] == {}
    assert selects(peer["podSelector"], rank)
    assert not selects(peer["podSelector"], engine)
    (peer,) = to_engines["to"]
    assert peer["namespaceSelector"] == {}
    assert selects(peer["podSelector"], engine)
    assert not selects(peer["podSelector"], rank)
    reached = {port["port"] for rule in policy["egress"] for port in rule.get("ports", ())}
    assert reached == {443, 6443, 53, 6379}


def test_without_a_look_at_engines_the_controller_is_not_let_out_to_them(helm: Helm) -> None:
    off = ("--set", "networkPolicy.enabled=true", "--set", "controller.observeEngines=false")
    objects = helm.objects(*off)
    rules = objects["NetworkPolicy", "kvtier"]["spec"]["egress"]
    assert len([rule for rule in rules if "to" in rule]) == 1
    (container,) = objects["Deployment", "kvtier"]["spec"]["template"]["spec"]["containers"]
    assert "--observe-engines=false" in container["args"]


def test_the_samples_metrics_policy_lets_only_controller_and_limiter_in_to_engines(
    helm: Helm, policies: dict[str, dict[str, Any]], rank: Labels, engine: Labels
) -> None:
    policy = policies["kvtier-engine-metrics"]
    assert selects(policy["podSelector"], engine)
    assert not selects(policy["podSelector"], rank)
    (rule,) = policy["ingress"]
    assert rule["ports"] == [{"port": DEFAULT_PORT, "protocol": "TCP"}]
    for peer in rule["from"]:
        assert selects(peer["namespaceSelector"], {"kubernetes.io/metadata.name": NAMESPACE})
    controllers, limiters = (peer["podSelector"] for peer in rule["from"])
    assert selects(controllers, controller(helm))
    assert limiters["matchLabels"]["app.kubernetes.io/component"] == "limiter"
    assert policy["policyTypes"] == ["Ingress"]
