"""What the API server lets people and a stolen controller's token do: SECURITY.md says the same."""

import json
from collections.abc import Iterable

import pytest

from livecluster.cluster import LiveCluster
from livecluster.fixtures import NewTier
from livecluster.installation import USER, Installation

Right = tuple[str, str]
"""Verb and resource, the latter as kubectl writes it: plural.group/subresource."""

CONTROLLER_MAY = (
    # The heart of it: whoever has the controller's token runs what he likes where tiers are.
    ("create", "statefulsets.apps"),
    ("create", "jobs.batch"),
    ("get", "secrets"),
    ("delete", "pods"),
)
CONTROLLER_MAY_NOT = (
    ("list", "secrets"),
    ("watch", "secrets"),
    ("list", "jobs.batch"),
    ("create", "pods"),
    ("create", "pods/exec"),
    ("get", "pods/log"),
    ("create", "deployments.apps"),
    ("create", "serviceaccounts/token"),
    ("create", "roles.rbac.authorization.k8s.io"),
    ("bind", "clusterroles.rbac.authorization.k8s.io"),
    ("impersonate", "users"),
    ("patch", "kvcachetiers.kvtier.dev"),
    ("delete", "kvcachetiers.kvtier.dev"),
    ("patch", "nodes"),
    ("delete", "nodes"),
    ("delete", "namespaces"),
    ("create", "persistentvolumes"),
    ("patch", "customresourcedefinitions.apiextensions.k8s.io"),
)
PEOPLE = {
    "view": {
        ("get", "kvcachetiers.kvtier.dev"): True,
        ("create", "kvcachetiers.kvtier.dev"): False,
        ("get", "secrets"): False,
    },
    "edit": {
        ("create", "kvcachetiers.kvtier.dev"): True,
        ("delete", "kvcachetiers.kvtier.dev"): True,
        ("patch", "kvcachetiers.kvtier.dev/status"): False,
        ("update", "kvcachetiers.kvtier.dev/status"): False,
    },
}


def allowed(
    cluster: LiveCluster, who: str, rights: Iterable[Right], *, namespace: str = "default"
) -> dict[Right, bool]:
    """What the API server's authorizer says, asked as the administrator."""
    reviews = []
    for verb, resource in rights:
        path, _, subresource = resource.partition("/")
        plural, _, group = path.partition(".")
        what = {"verb": verb, "group": group, "resource": plural, "subresource": subresource}
        spec = {"user": who, "resourceAttributes": {**what, "namespace": namespace}}
        kind = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview"}
        reviews.append({**kind, "spec": spec})
    documents = "\n---\n".join(map(json.dumps, reviews))
    answer = 'jsonpath={.status.allowed}{"\\n"}'
    said = cluster.kubectl("create", "-f", "-", "-o", answer, stdin=documents)
    return {right: line == "true" for right, line in zip(rights, said.split(), strict=True)}


def test_a_stolen_token_of_the_controller_can_do_this_and_not_that(kvtier: Installation) -> None:
    found = allowed(kvtier.cluster, USER, [*CONTROLLER_MAY, *CONTROLLER_MAY_NOT])
    assert found == dict.fromkeys(CONTROLLER_MAY, True) | dict.fromkeys(CONTROLLER_MAY_NOT, False)


@pytest.mark.parametrize("role", PEOPLE)
def test_people_of_a_namespace_may_write_tiers_but_no_status(
    role: str, new_tier: NewTier, live: LiveCluster
) -> None:
    namespace = new_tier("chat").namespace
    live.kubectl(
        *("create", "rolebinding", "someone", f"--clusterrole={role}", "--user=someone"),
        *("-n", namespace),
    )
    rights = PEOPLE[role]
    assert allowed(live, "someone", rights, namespace=namespace) == rights
    assert not any(allowed(live, "someone", rights).values()), "outside of the namespace"
