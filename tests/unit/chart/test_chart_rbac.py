"""The controller's rights: least, as documented, and where they apply.

`UPDATE_GOLDEN=1 pytest tests/unit/chart/test_chart_rbac.py` writes the golden files anew: a right
more needs a reason on the install page, and a word in SECURITY.md if a stolen token is worth more.
"""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart_helm import NAMESPACE, ROOT, Helm, Objects

INSTALL_PAGE = ROOT / "docs/install.md"
ROLES = [
    ("ClusterRole", "kvtier-tiers"),
    ("ClusterRole", "kvtier-cluster"),
    ("Role", "kvtier-lease"),
]
READ = {"get", "list", "watch"}
GATEWAY_VERBS = ("get", "list", "create", "patch", "delete")


def rights(rules: list[dict[str, Any]]) -> dict[tuple[str, str], set[str]]:
    """(API group, resource) -> verbs."""
    granted: dict[tuple[str, str], set[str]] = {}
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                granted.setdefault((group, resource), set()).update(rule["verbs"])
    return granted


def documented(role: str) -> dict[tuple[str, str], set[str]]:
    """The table below the role's name on the install page; each row must tell why."""
    _, found, section = INSTALL_PAGE.read_text().partition(f"ole `<release>-{role}`")
    assert found, role
    section = section[: section.find("\n\n", section.find("|---"))]
    granted: dict[tuple[str, str], set[str]] = {}
    for row in re.findall(r"^\| (?!API group)([^-].*) \|$", section, re.MULTILINE):
        group, resources, verbs, why = (cell.strip() for cell in f"{row}".split("|"))
        assert why, row
        for resource in resources.split(", "):
            granted.setdefault((group, resource), set()).update(verbs.split(", "))
    return granted


@pytest.mark.parametrize(
    ("case", "values"),
    [
        ("rbac", ()),
        ("rbac-namespaced", ("--set", "watchNamespaces={prefill-a,prefill-b}")),
        ("rbac-envoy-gateway", ("--set", "envoyGateway.enabled=true")),
    ],
)
def test_roles_and_bindings_are_those_that_were_reviewed(
    helm: Helm, case: str, values: tuple[str, ...]
) -> None:
    found = [
        {name: part for name, part in each.items() if name != "metadata"}
        | {"name": each["metadata"]["name"], "namespace": each["metadata"].get("namespace", "")}
        for (kind, _), each in helm.objects(*values).items()
        if kind.endswith(("Role", "RoleBinding"))
    ]
    found.sort(key=lambda each: (each["kind"], each["namespace"], each["name"]))
    golden = Path(__file__).parent / "golden" / f"{case}.yaml"
    if os.environ.get("UPDATE_GOLDEN") and helm.version == 4:
        golden.write_text(yaml.safe_dump_all(found, sort_keys=False))
    assert found == list(yaml.safe_load_all(golden.read_text()))


@pytest.mark.parametrize(("kind", "name"), ROLES)
def test_the_install_page_explains_exactly_the_verbs_granted(
    helm: Helm, kind: str, name: str
) -> None:
    granted = rights(helm.objects()[kind, name]["rules"])
    assert granted == documented(name.removeprefix("kvtier-"))


@pytest.mark.parametrize(("kind", "name"), ROLES)
def test_no_right_is_a_wildcard_or_lets_the_controller_raise_its_own(
    helm: Helm, kind: str, name: str
) -> None:
    for (group, resource), verbs in rights(helm.objects()[kind, name]["rules"]).items():
        assert "*" not in {group, resource, *verbs}
        assert not verbs & {"bind", "escalate", "impersonate", "deletecollection"}
        assert group != "rbac.authorization.k8s.io"


def test_with_envoy_gateway_it_may_write_policies_and_read_routes_and_no_more(helm: Helm) -> None:
    objects = helm.objects("--set", "envoyGateway.enabled=true")
    more = rights(objects["ClusterRole", "kvtier-tiers"]["rules"])
    assert {each: more.pop(each) for each in more.keys() - documented("tiers").keys()} == {
        ("gateway.envoyproxy.io", "backendtrafficpolicies"): {*GATEWAY_VERBS},
        ("gateway.networking.k8s.io", "httproutes"): {"get"},
    }
    assert more == rights(helm.objects()["ClusterRole", "kvtier-tiers"]["rules"])
    (container,) = objects["Deployment", "kvtier"]["spec"]["template"]["spec"]["containers"]
    without = helm.objects()["Deployment", "kvtier"]["spec"]["template"]["spec"]["containers"]
    assert {*container["args"]} - {*without[0]["args"]} == {"--envoy-gateway"}


def test_the_page_explains_what_envoy_gateway_adds(helm: Helm) -> None:
    page = INSTALL_PAGE.read_text()
    rows = re.findall(r"^\| (gateway\.\S+) \| (\S+) \| ([^|]+) \| \S[^|]+ \|$", page, re.MULTILINE)
    assert {(group, name): {*verbs.split(", ")} for group, name, verbs in rows} == {
        ("gateway.envoyproxy.io", "backendtrafficpolicies"): {*GATEWAY_VERBS},
        ("gateway.networking.k8s.io", "httproutes"): {"get"},
    }


def test_secrets_are_never_listed_or_watched(helm: Helm) -> None:
    granted = rights(helm.objects()["ClusterRole", "kvtier-tiers"]["rules"])
    assert granted["", "secrets"] == {"get", "create", "patch", "delete"}


def test_the_controller_cannot_change_a_tier_but_for_its_status(helm: Helm) -> None:
    granted = rights(helm.objects()["ClusterRole", "kvtier-tiers"]["rules"])
    assert granted["kvtier.dev", "kvcachetiers"] == READ
    assert granted["kvtier.dev", "kvcachetiers/status"] == {"patch"}
    assert granted["", "pods"] == {*READ, "delete"}


def test_only_the_releases_own_lease_can_be_changed(helm: Helm) -> None:
    rules = helm.objects(release="other")["Role", "other-kvtier-lease"]["rules"]
    assert [(r.get("resourceNames"), r["verbs"]) for r in rules] == [
        (["other-kvtier"], ["get", "update"]),
        (None, ["create"]),
    ]


def bindings(objects: Objects) -> set[tuple[str, str, str]]:
    """(kind and name of the binding, role, ServiceAccount) of every binding."""
    return {
        (f"{kind} {name}", object_["roleRef"]["name"], subject["name"])
        for (kind, name), object_ in objects.items()
        if kind.endswith("Binding")
        for subject in object_["subjects"]
        if (subject["kind"], subject["namespace"]) == ("ServiceAccount", NAMESPACE)
    }


def test_by_default_the_whole_cluster_is_served(helm: Helm) -> None:
    assert bindings(helm.objects()) == {
        ("ClusterRoleBinding kvtier-tiers", "kvtier-tiers", "kvtier"),
        ("ClusterRoleBinding kvtier-cluster", "kvtier-cluster", "kvtier"),
        (f"RoleBinding {NAMESPACE}/kvtier-lease", "kvtier-lease", "kvtier"),
    }
    args = helm.objects()["Deployment", "kvtier"]["spec"]["template"]["spec"]["containers"][0][
        "args"
    ]
    assert not [arg for arg in args if arg.startswith("--namespace")]


def test_with_named_namespaces_rights_on_objects_end_at_them(helm: Helm) -> None:
    objects = helm.objects("--set", "watchNamespaces={a,b}")
    assert bindings(objects) == {
        ("RoleBinding a/kvtier-tiers", "kvtier-tiers", "kvtier"),
        ("RoleBinding b/kvtier-tiers", "kvtier-tiers", "kvtier"),
        ("ClusterRoleBinding kvtier-cluster", "kvtier-cluster", "kvtier"),
        (f"RoleBinding {NAMESPACE}/kvtier-lease", "kvtier-lease", "kvtier"),
    }
    args = objects["Deployment", "kvtier"]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert [arg for arg in args if arg.startswith("--namespace")] == [
        "--namespace=a",
        "--namespace=b",
    ]


def test_a_foreign_service_account_is_used_and_not_made(helm: Helm) -> None:
    objects = helm.objects("--set", "serviceAccount.create=false,serviceAccount.name=mine")
    assert "ServiceAccount" not in {kind for kind, _ in objects}
    assert {account for _, _, account in bindings(objects)} == {"mine"}
    pod = objects["Deployment", "kvtier"]["spec"]["template"]["spec"]
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == ("mine", True)


def test_people_with_the_clusters_roles_get_tiers_and_never_their_status(helm: Helm) -> None:
    objects = helm.objects()
    edit, view = objects["ClusterRole", "kvtier-edit"], objects["ClusterRole", "kvtier-view"]
    assert rights(edit["rules"]).keys() == rights(view["rules"]).keys()
    assert rights(view["rules"]) == {("kvtier.dev", "kvcachetiers"): READ}
    prefix = "rbac.authorization.k8s.io/aggregate-to-"
    roles = [{k for k in o["metadata"]["labels"] if k.startswith(prefix)} for o in (edit, view)]
    assert roles == [{prefix + "admin", prefix + "edit"}, {prefix + "view"}]
    assert ("ClusterRole", "kvtier-edit") not in helm.objects("--set", "rbac.aggregate=false")
