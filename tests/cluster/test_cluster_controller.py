"""The controller's process and its rights."""

import json

from livecluster.api import condition
from livecluster.audit import Request, described
from livecluster.fixtures import NewTier
from livecluster.installation import NAMESPACE, Installation
from livecluster.waiting import eventually


def test_a_restarted_controller_writes_to_no_child_and_the_tier_stays_ready(
    new_tier: NewTier, kvtier: Installation
) -> None:
    tier = new_tier("chat")
    tier.apply()
    tier.wait_ready()
    since = condition(tier.body(), "Ready")["lastTransitionTime"]
    before, begin = tier.children(), kvtier.cluster.audit.mark()
    old = kvtier.pod()["metadata"]["uid"]
    pods = ("pods", "-l", "app.kubernetes.io/component=controller")
    kvtier.cluster.kubectl("delete", *pods, "-n", NAMESPACE)
    eventually(lambda: kvtier.pod()["metadata"]["uid"] != old, seconds=60, what="another pod")
    # It has looked at the tier once it answers for an edit, here one that no child shows.
    tier.patch({"workload": {"promptTokens": [{"quantile": "0.5", "tokens": 8000}]}})
    tier.wait("EarningItsKeep", "Unknown")
    made = kvtier.requests(begin)
    beside = described(
        made,
        keep=lambda each: (
            each.is_write
            and each.namespace == tier.namespace
            and each.resource not in ("kvcachetiers/status", "events")
        ),
    )
    assert beside == ""
    versions = {key: obj["metadata"]["resourceVersion"] for key, obj in before.items()}
    after = {key: obj["metadata"]["resourceVersion"] for key, obj in tier.children().items()}
    assert after == versions
    assert condition(tier.body(), "Ready")["lastTransitionTime"] == since
    assert tier.condition("Ready")["status"] == "True"


def test_the_charts_roles_were_enough_for_the_whole_session(
    new_tier: NewTier, kvtier: Installation
) -> None:
    """Runs last. A namespace that is being deleted answers 403 too: only what the roles forbid
    counts, and not while `helm uninstall` takes them away. An API server that has just started
    forbids for a moment what it allows before and after: it has not read its roles yet."""
    tier = new_tier("chat")
    tier.apply()
    tier.wait_ready()
    requests = kvtier.requests_while_installed()
    assert any(request.is_write and request.code == 201 for request in requests)
    allowed = {right(request) for request in requests if not request.denied}
    denied = [each for each in requests if each.denied and right(each) not in allowed]
    assert denied == [], described(denied, keep=lambda _: True)
    print(f"rights that no request of this session used: {unused(kvtier, requests)}")


def right(request: Request) -> tuple[str, str, bool]:
    """What a rule grants: a verb on a resource, in a namespace or cluster-wide."""
    return request.verb, request.resource, bool(request.namespace)


def unused(kvtier: Installation, requests: list[Request]) -> list[str]:
    """Creating by apply is a patch in the log, and takes the right to create all the same."""
    role = json.loads(kvtier.cluster.kubectl("get", "clusterrole", "kvtier-tiers", "-o", "json"))
    granted = {
        f"{verb} {resource}"
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    return sorted(granted - {f"{each.verb} {each.resource}" for each in requests})
