"""Pure: whether Envoy Gateway may be given the limit, and what its policy is to say.

Envoy Gateway takes, for a route, the oldest policy that names it, and none of the others: a second
one is ``Conflicted``, and one that names a rule of the route ``Overridden``. kvtier's is never to
be either, nor to make another one so; it waits until it is alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kvtier.admission.storm import State
from kvtier.api import reasons
from kvtier.api.types import KVCacheTier
from kvtier.plan.admission import View
from kvtier.plan.drift import contains
from kvtier.plan.observed import Object, is_leftover, is_owned_by
from kvtier.render.gateway import ROUTE, ROUTE_GROUP, RequestLimit, limit_in, request_limit
from kvtier.render.names import TIER_LABEL, policy_name

Problem = tuple[str, str]
"""(reason, message) of the condition AdmissionEnforced."""

SAME: Final = 0.1
"""Share by which the limit may move without being written."""
GAPS: Final = {"Second": 5.0, "Minute": 60.0}
"""Seconds between two writes of a limit, by its unit: Envoy makes a fresh, full bucket of each, and
lets a whole one in at once."""
MOST_QUOTED: Final = 200
_PARENTS: Final = ("Gateway", "ListenerSet")


@dataclass(frozen=True, slots=True)
class Around:
    """What stands around a tier's policy, as read.

    ``routes`` are the HTTPRoutes that the tier names, None for one that is not there; ``policies``
    all BackendTrafficPolicies of the tier's namespace and of its routes' gateways' namespaces.
    """

    routes: Mapping[str, Object | None] = field(default_factory=dict)
    policies: Sequence[Object] = ()


def is_wanted(tier: KVCacheTier) -> bool:
    """Whether Envoy Gateway is to hold the limit in this tier's storms."""
    return tier.spec.admission.enforces and tier.spec.admission.envoy_gateway is not None


def wanted_limit(
    tier: KVCacheTier, admission: Mapping[str, Any], view: View | None
) -> RequestLimit | None:
    """What each Envoy is to let in now by ``status.admission``; None for everything."""
    gateway = tier.spec.admission.envoy_gateway
    if not is_wanted(tier) or gateway is None or admission["state"] == State.OPEN:
        return None
    if view is None or view.limit is None:
        return None
    return request_limit(
        tokens=view.limit, mean_prompt=admission["meanPromptTokens"], replicas=gateway.replicas
    )


def parents(routes: Mapping[str, Object | None], namespace: str) -> set[tuple[str, str, str]]:
    """(kind, namespace, name) of what the routes are attached to."""
    return {
        (
            ref.get("kind", "Gateway"),
            ref.get("namespace", route["metadata"].get("namespace", namespace)),
            ref["name"],
        )
        for route in routes.values()
        if route is not None
        for ref in route.get("spec", {}).get("parentRefs") or ()
        if ref.get("kind", "Gateway") in _PARENTS
    }


def own_policy(tier: KVCacheTier, around: Around) -> Object | None:
    """What has the name of the tier's policy, whoever made it."""
    name, namespace = policy_name(tier.metadata.name), tier.metadata.namespace
    for each in around.policies:
        if (each["metadata"]["namespace"], each["metadata"]["name"]) == (namespace, name):
            return each
    return None


def problem_around(tier: KVCacheTier, around: Around) -> Problem | None:
    """Why the tier can have no policy, by what else is there; None if it can."""
    namespace, own = tier.metadata.namespace, own_policy(tier, around)
    for name, found in around.routes.items():
        if found is None:
            return reasons.ROUTE_NOT_FOUND, (
                f"There is no HTTPRoute {namespace}/{name}: correct"
                " spec.admission.envoyGateway.routes, or make it."
            )
    if own is not None and not is_owned_by(own, tier.metadata.uid):
        name = policy_name(tier.metadata.name)
        if is_leftover(own, tier):
            fix = "it is a deleted tier's and goes by itself."
        else:
            fix = "it is left alone. Delete it, or give the tier another name."
        return reasons.NAME_CONFLICT, (
            f"BackendTrafficPolicy {name} exists and is not this tier's: {fix}"
        )
    attached = parents(around.routes, namespace)
    for other in around.policies:
        if other is own or (own is not None and _yields(other, to=own)):
            continue
        route = _route_of(other, around.routes, namespace)
        if route is not None:
            return reasons.POLICY_CONFLICT, (
                f"HTTPRoute {route} is under BackendTrafficPolicy {_named(other)} already, and"
                " Envoy Gateway takes one for each route: have that one target the Gateway, where"
                " kvtier's is merged into it, or take envoyGateway out of spec.admission."
            )
        parent = _parent_of(other, attached)
        if parent is not None and _limits_locally(other):
            return reasons.POLICY_CONFLICT, (
                f"BackendTrafficPolicy {_named(other)} of {parent} has a rateLimit.local, which"
                " kvtier's would replace on the routes: have it limit by rateLimit.global, or take"
                " envoyGateway out of spec.admission."
            )
    return None


def problem_told(policy: Object) -> Problem | None:
    """What Envoy Gateway says against the policy as it is now."""
    name, generation = policy["metadata"]["name"], policy["metadata"].get("generation")
    for ancestor in (policy.get("status") or {}).get("ancestors") or ():
        for each in ancestor.get("conditions") or ():
            if each.get("observedGeneration", generation) != generation:
                continue
            said = " ".join(str(each.get("message", "")).split())[:MOST_QUOTED]
            what = (
                f"Envoy Gateway says of BackendTrafficPolicy {name}: {each.get('reason')}, {said}"
            )
            what = f"{what}{'' if what.endswith('.') else '.'}"
            refused = each["type"] == "Accepted" and each["status"] == "False"
            if (each["type"] == "Overridden" and each["status"] == "True") or (
                refused and each.get("reason") == "Conflicted"
            ):
                return reasons.POLICY_CONFLICT, f"{what} It was taken back."
            if refused:
                return reasons.POLICY_NOT_ACCEPTED, f"{what} It was taken back."
    return None


def is_accepted(policy: Object) -> bool:
    """Whether some Gateway's controller has taken the policy up."""
    return any(
        (each["type"], each["status"]) == ("Accepted", "True")
        for ancestor in (policy.get("status") or {}).get("ancestors") or ()
        for each in ancestor.get("conditions") or ()
    )


def differs(intent: Object, live: Object, *, ago: float) -> bool:
    """Whether the policy is to be written again, ``ago`` seconds after the last time."""
    wanted, found = limit_in(intent), limit_in(live)
    assert wanted is not None
    if found is None:
        return ago >= GAPS["Second"]
    if abs(wanted.rate - found.rate) >= SAME * found.rate:
        return ago >= max(GAPS[wanted.unit], GAPS[found.unit])
    names = ("labels", "ownerReferences")
    rest = {name: intent["metadata"][name] for name in names}
    same = contains(live["metadata"], rest)
    for name in ("targetRefs", "mergeType"):
        # The list is one value: a route more is not ours.
        same = same and live["spec"].get(name) == intent["spec"][name]
    return not same and ago >= GAPS["Second"]


def _yields(other: Object, *, to: Object) -> bool:
    """Whether ``other`` is a tier's too, and the younger of both: that one goes."""
    if TIER_LABEL not in other["metadata"].get("labels", {}):
        return False

    def age(policy: Object) -> tuple[str, str]:
        return policy["metadata"].get("creationTimestamp", ""), policy["metadata"]["name"]

    return age(other) > age(to)


def _route_of(policy: Object, routes: Mapping[str, Object | None], namespace: str) -> str | None:
    """The first of the routes that the policy is about, or about a rule of."""
    here = policy["metadata"]["namespace"] == namespace
    for kind, name in _targets(policy):
        if here and kind == ROUTE and name in routes:
            return name
    for selector in policy["spec"].get("targetSelectors") or ():
        if selector.get("kind") != ROUTE or selector.get("group", ROUTE_GROUP) != ROUTE_GROUP:
            continue
        if not here and (selector.get("namespaces") or {}).get("from", "Same") == "Same":
            continue
        for name, route in routes.items():
            if route is not None and selects(selector, route["metadata"].get("labels") or {}):
                return name
    return None


def _parent_of(policy: Object, attached: set[tuple[str, str, str]]) -> str | None:
    """What the routes are attached to that the policy is about. Of selectors all count: whether one
    takes a Gateway is in that Gateway's labels, which kvtier does not read."""
    namespace = policy["metadata"]["namespace"]
    for kind, name in _targets(policy):
        if (kind, namespace, name) in attached:
            return f"{kind} {namespace}/{name}"
    for selector in policy["spec"].get("targetSelectors") or ():
        for kind, where, name in sorted(attached):
            if selector.get("kind") == kind:
                return f"{kind} {where}/{name}"
    return None


def _targets(policy: Object) -> Iterator[tuple[str, str]]:
    spec = policy["spec"]
    for ref in (
        *([spec["targetRef"]] if spec.get("targetRef") else []),
        *(spec.get("targetRefs") or ()),
    ):
        if ref.get("group") == ROUTE_GROUP:
            yield ref["kind"], ref["name"]


def _limits_locally(policy: Object) -> bool:
    return bool((policy["spec"].get("rateLimit") or {}).get("local"))


def _named(policy: Object) -> str:
    return f"{policy['metadata']['namespace']}/{policy['metadata']['name']}"


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a label selector takes an object with these labels; an empty one does."""
    for key, value in (selector.get("matchLabels") or {}).items():
        if labels.get(key) != value:
            return False
    for each in selector.get("matchExpressions") or ():
        key, values = each["key"], each.get("values") or ()
        found = {
            "In": labels.get(key) in values,
            "NotIn": labels.get(key) not in values,
            "Exists": key in labels,
            "DoesNotExist": key not in labels,
        }
        # An operator that is not known here may take the route.
        if not found.get(each.get("operator"), True):
            return False
    return True
