"""A tier's policy for Envoy Gateway: written in a storm, removed once there is no limit.

It is written and removed by reconciles; what is there is read again every few seconds while there
is one, and every few minutes otherwise, so that what stands in the way is known before a storm.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kvtier.admission.storm import State
from kvtier.api import reasons
from kvtier.api.conditions import find
from kvtier.api.types import KVCacheTier
from kvtier.breakeven.words import counted
from kvtier.cluster.protocol import (
    HTTP_ROUTE,
    TRAFFIC_POLICY,
    ApiError,
    Cluster,
    Forbidden,
    Invalid,
    NotFound,
    Object,
)
from kvtier.metrics import Metrics
from kvtier.plan.admission import Enforcement, PolicyTold, View
from kvtier.plan.gateway import (
    MOST_QUOTED,
    Around,
    Problem,
    differs,
    is_accepted,
    is_wanted,
    own_policy,
    parents,
    problem_around,
    problem_told,
    wanted_limit,
)
from kvtier.plan.observed import EventSpec, EventType, Plan, is_owned_by
from kvtier.reconcile.clock import Clock
from kvtier.reconcile.execute import NotLeading
from kvtier.reconcile.memory import GatewayMemory, Key, TierMemory
from kvtier.render.gateway import RequestLimit, admission_policy, limit_in
from kvtier.render.names import policy_name

log = logging.getLogger(__name__)

STEP: Final = 5.0
"""Seconds between two steps of a tier that is not Open."""
LOOK: Final = 10.0
"""Seconds for which what was read holds, in a storm."""
REST: Final = 240.0
"""The same while all is let in: each resync looks."""
REFUSED: Final = 600.0
"""Seconds for which a policy that Envoy Gateway refused is not written again."""
SILENT: Final = 60.0
"""Seconds that Envoy Gateway has to say something about a policy."""


@dataclass(slots=True)
class Look:
    """What one look brought."""

    events: list[EventSpec] = field(default_factory=list)
    requeue_after: float | None = None

    def sooner(self, plan: Plan) -> Plan:
        """The plan, with the next look no later than the policy asks for."""
        waits = (plan.requeue_after, self.requeue_after)
        return replace(plan, requeue_after=min(filter(None, waits), default=None))


class GatewayPolicies:
    """Writes as long as ``leads()`` says so. Without a ``cluster`` it may not, and asks nothing."""

    def __init__(
        self,
        cluster: Cluster | None,
        *,
        leads: Callable[[], bool],
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._cluster = cluster
        self._leads = leads
        self._clock = clock
        self._metrics = metrics

    async def look(
        self, key: Key, memory: TierMemory, tier: KVCacheTier, admission: Mapping[str, Any]
    ) -> Look:
        """Bring the tier's policy to what ``admission``, its status to be, asks for; the view then
        tells of it. What the API server refuses costs this look and nothing else. Raises
        NotLeading.
        """
        found, state, now = Look(), memory.gateway, self._clock.monotonic()
        try:
            problem = await self._advance(memory, tier, admission, found)
        except (Forbidden, Invalid, NotFound) as error:
            # No try soon mends it: rights, a kind that is not served, another release's schema.
            problem = state.refused = reasons.ADAPTER_UNAVAILABLE, _unavailable(error)
            state.looked, state.not_before = now, now + REST
            state.generation = tier.metadata.generation
            found.requeue_after = REST if is_wanted(tier) else None
        except ApiError as error:
            log.warning("%s/%s: no look at its BackendTrafficPolicy: %s", *key, error)
            # Perhaps it was written, or deleted, all the same.
            state.looked = float("-inf")
            found.requeue_after = max(STEP, error.retry_after or 0.0)
            problem = state.told.problem if state.told else None
        before = state.told.problem if state.told else None
        state.told = None
        if is_wanted(tier):
            state.told = PolicyTold(policy_name(tier.metadata.name), problem)
            if self._cluster is not None and admission["state"] != State.OPEN:
                found.requeue_after = found.requeue_after or STEP
            if problem is not None and problem[0] != (before[0] if before else _said(tier)):
                found.events.append(EventSpec(EventType.WARNING, *problem))
        if memory.view is not None:
            memory.view = _with_policy(memory.view, state.told)
        own = limit_in(state.own) if state.own is not None else None
        self._metrics.admission.show_policy(*key, rate=own.per_second if own else None)
        return found

    async def withdraw(self, memory: TierMemory, body: Object) -> None:
        """Take the policy of a tier back whose spec is refused. Raises NotLeading."""
        metadata, state = body["metadata"], memory.gateway
        if self._cluster is None or (state.own is None and state.looked > float("-inf")):
            return
        key = metadata["namespace"], metadata["name"]
        try:
            own = await self._cluster.get(TRAFFIC_POLICY, key[0], policy_name(key[1]))
            if own is not None and is_owned_by(own, metadata["uid"]):
                await self._delete(self._cluster, own)
        except NotFound:
            pass
        except ApiError as error:
            log.warning("%s/%s: its BackendTrafficPolicy stays: %s", *key, error)
            return
        state.own, state.looked = None, self._clock.monotonic()
        self._metrics.admission.show_policy(*key, rate=None)

    async def _advance(
        self,
        memory: TierMemory,
        tier: KVCacheTier,
        admission: Mapping[str, Any],
        found: Look,
    ) -> Problem | None:
        cluster = self._cluster
        if cluster is None:
            return reasons.ADAPTER_UNAVAILABLE, (
                "The controller runs without --envoy-gateway: set envoyGateway.enabled in the"
                " chart's values, or take envoyGateway out of spec.admission."
            )
        state, now = memory.gateway, self._clock.monotonic()
        limit = wanted_limit(tier, admission, memory.view)
        if state.own is None and self._waits(state, tier, now=now):
            return state.refused
        if self._is_due(state, tier, limit, now=now):
            await self._read(cluster, state, tier, now=now)
        if not is_wanted(tier):
            await self._remove(cluster, state, found, "it is not asked for any more")
            return None
        problem = problem_around(tier, state.around) or self._refusal(state, now=now)
        if problem is not None:
            await self._remove(cluster, state, found, f"{problem[0]}, see the tier's conditions")
        elif limit is not None:
            await self._write(cluster, state, tier, limit, found, now=now)
        elif memory.view is not None or admission["state"] == State.OPEN:
            # A new process that finds a storm waits until somebody has looked.
            await self._remove(cluster, state, found, "all is let in")
        return problem or _silence(state, now=now)

    def _is_due(
        self, state: GatewayMemory, tier: KVCacheTier, limit: RequestLimit | None, *, now: float
    ) -> bool:
        age = now - state.looked
        if not is_wanted(tier):
            # Once by each process: nobody else makes it.
            return age == float("inf")
        active = limit is not None or state.own is not None
        return state.generation != tier.metadata.generation or age >= (LOOK if active else REST)

    @staticmethod
    def _waits(state: GatewayMemory, tier: KVCacheTier, *, now: float) -> bool:
        """Whether asking again so soon would only bring the same refusal."""
        if state.generation != tier.metadata.generation:
            state.not_before = float("-inf")
        said = state.refused is not None and state.refused[0] == reasons.ADAPTER_UNAVAILABLE
        return said and now < state.not_before

    @staticmethod
    async def _read(
        cluster: Cluster, state: GatewayMemory, tier: KVCacheTier, *, now: float
    ) -> None:
        namespace, wanted = tier.metadata.namespace, tier.spec.admission.envoy_gateway
        routes: dict[str, Object | None] = {}
        policies: list[Object] = []
        if is_wanted(tier) and wanted is not None:
            policies += await cluster.list(TRAFFIC_POLICY, namespace)
            for name in wanted.routes:
                routes[name] = await cluster.get(HTTP_ROUTE, namespace, name)
            others = {where for _, where, _ in parents(routes, namespace)} - {namespace}
            for where in sorted(others):
                policies += await cluster.list(TRAFFIC_POLICY, where)
        else:
            name = policy_name(tier.metadata.name)
            own = await cluster.get(TRAFFIC_POLICY, namespace, name)
            policies += [own] if own is not None else []
        state.around = Around(routes=routes, policies=tuple(policies))
        kept = own_policy(tier, state.around)
        mine = kept is not None and is_owned_by(kept, tier.metadata.uid)
        state.own = dict(kept) if kept is not None and mine else None
        state.looked, state.generation = now, tier.metadata.generation

    def _refusal(self, state: GatewayMemory, *, now: float) -> Problem | None:
        """What Envoy Gateway has against the policy, or had lately."""
        told = problem_told(state.own) if state.own is not None else None
        if told is not None:
            state.refused, state.not_before = told, now + REFUSED
        return state.refused if now < state.not_before else None

    async def _write(
        self,
        cluster: Cluster,
        state: GatewayMemory,
        tier: KVCacheTier,
        limit: RequestLimit,
        found: Look,
        *,
        now: float,
    ) -> None:
        intent = admission_policy(tier, limit)
        if state.own is None:
            self._may_write()
            state.own = await cluster.create(intent)
            found.events.append(_written(tier, limit))
        elif differs(intent, state.own, ago=now - state.wrote):
            self._may_write()
            state.own = await cluster.apply(intent, uid=state.own["metadata"]["uid"])
        else:
            return
        state.wrote = now

    async def _remove(self, cluster: Cluster, state: GatewayMemory, found: Look, why: str) -> None:
        if state.own is None:
            return
        await self._delete(cluster, state.own)
        name = state.own["metadata"]["name"]
        state.own, state.wrote = None, float("-inf")
        text = f"BackendTrafficPolicy {name} is removed: {why}."
        found.events.append(EventSpec(EventType.NORMAL, reasons.POLICY_REMOVED, text))

    async def _delete(self, cluster: Cluster, policy: Object) -> None:
        self._may_write()
        metadata = policy["metadata"]
        await cluster.delete(
            TRAFFIC_POLICY, metadata["namespace"], metadata["name"], uid=metadata["uid"]
        )

    def _may_write(self) -> None:
        if not self._leads():
            raise NotLeading


def _said(tier: KVCacheTier) -> str | None:
    """The reason that the status has: what it tells already is no event again."""
    reason: str | None = find(tier.status.get("conditions", ()), reasons.ADMISSION_ENFORCED).get(
        "reason"
    )
    return reason


def _with_policy(view: View, told: PolicyTold | None) -> View:
    enforcement: Enforcement = replace(view.enforcement, policy=told)
    return replace(view, enforcement=enforcement)


def _silence(state: GatewayMemory, *, now: float) -> Problem | None:
    """That nobody has taken the policy up, a while after it was written."""
    if state.own is None or is_accepted(state.own) or now - state.wrote < SILENT:
        return None
    return reasons.POLICY_NOT_ACCEPTED, (
        f"No Gateway has taken BackendTrafficPolicy {state.own['metadata']['name']} up: see that"
        " Envoy Gateway runs, and that the HTTPRoutes are attached to a Gateway of its class."
    )


def _unavailable(error: ApiError) -> str:
    said = " ".join(error.message.split())[:MOST_QUOTED]
    if isinstance(error, NotFound):
        return (
            "The cluster does not know BackendTrafficPolicy or HTTPRoute: install Envoy Gateway, or"
            " take envoyGateway out of spec.admission."
        )
    if isinstance(error, Forbidden):
        return f"The controller may not: {said}. Set envoyGateway.enabled in the chart's values."
    return f"The API server does not take the policy: {said}."


def _written(tier: KVCacheTier, limit: RequestLimit) -> EventSpec:
    gateway = tier.spec.admission.envoy_gateway
    assert gateway is not None
    text = (
        f"BackendTrafficPolicy {policy_name(tier.metadata.name)} lets each of"
        f" {counted(gateway.replicas, 'Envoy')} pass {counted(limit.requests, 'request')} a"
        f" {limit.unit.lower()} on {', '.join(gateway.routes)}."
    )
    return EventSpec(EventType.NORMAL, reasons.POLICY_WRITTEN, text)
