"""What the API server lets people and a stolen controller's token do: SECURITY.md says the same."""

import pytest

from livecluster.cluster import Failed, LiveCluster
from livecluster.fixtures import NewTier
from livecluster.installation import USER, Installation

CONTROLLER_MAY = (
    # The heart of it: whoever has the controller's token runs what he likes where tiers are.
    ("create", "statefulsets.apps"),
    ("get", "secrets"),
    ("delete", "pods"),
)
CONTROLLER_MAY_NOT = (
    ("list", "secrets"),
    ("watch", "secrets"),
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
    ("list", "nodes"),
    ("patch", "nodes"),
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


def may(
    cluster: LiveCluster, who: str, right: tuple[str, str], *, namespace: str = "default"
) -> bool:
    verb, resource = right
    plural, _, subresource = resource.partition("/")
    sub = [f"--subresource={subresource}"] if subresource else []
    try:
        said = cluster.kubectl(
            *("auth", "can-i", verb, plural, *sub, f"--as={who}", "-n", namespace)
        )
    except Failed:
        # The answer "no" is exit code 1.
        return False
    return said.strip() == "yes"


def test_a_stolen_token_of_the_controller_can_do_this_and_not_that(kvtier: Installation) -> None:
    for right in CONTROLLER_MAY:
        assert may(kvtier.cluster, USER, right), right
    for right in CONTROLLER_MAY_NOT:
        assert not may(kvtier.cluster, USER, right), right


@pytest.mark.parametrize("role", PEOPLE)
def test_people_of_a_namespace_may_write_tiers_but_no_status(
    role: str, new_tier: NewTier, live: LiveCluster
) -> None:
    namespace = new_tier("chat").namespace
    live.kubectl(
        *("create", "rolebinding", "someone", f"--clusterrole={role}", "--user=someone"),
        *("-n", namespace),
    )
    for right, allowed in PEOPLE[role].items():
        assert may(live, "someone", right, namespace=namespace) is allowed, right
        assert not may(live, "someone", right), "outside of the namespace"
