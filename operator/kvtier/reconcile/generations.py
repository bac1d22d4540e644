"""One look at a tier's generations: the pool's pods and the ranks' proofs in, a record out."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from kvtier.api.types import KVCacheTier
from kvtier.cluster.protocol import CONFIGMAP, ApiError, Cluster, Object
from kvtier.generation.case import Case
from kvtier.generation.entry import GenerationState
from kvtier.generation.identity import identity
from kvtier.generation.lifecycle import MOST_ELAPSED, advance
from kvtier.generation.record import Record
from kvtier.generation.step import Step, Told
from kvtier.placement.findings import Finding
from kvtier.plan.generations import kept
from kvtier.plan.observed import EventSpec, EventType, Plan, RankState
from kvtier.plan.pool import config_maps_wanted, offered, policy_of, pool_pods
from kvtier.plan.pool_findings import pool_findings
from kvtier.reconcile.fencing import fences, forget_filled
from kvtier.reconcile.memory import TierMemory
from kvtier.redact import new_token

DRAIN_LOOK = MOST_ELAPSED / 2
"""Seconds between two looks while a clock runs: less than one look may count."""
FENCE_LOOK = 1.0
"""Seconds between two looks while a fence or a purge is under way."""


async def read_pool(
    cluster: Cluster, memory: TierMemory, tier: KVCacheTier, pods: Sequence[Object]
) -> None:
    """What the pods of the pool run.

    ConfigMaps that they take their arguments from are read each time: no event tells of them, and
    a pod that starts after an edit must not be read by what was there before.
    """
    config_maps: dict[str, Object] = {}
    for name in config_maps_wanted(pods):
        # One that cannot be read is not readable, and is reported as that.
        with suppress(ApiError):
            found = await cluster.get(CONFIGMAP, tier.metadata.namespace, name)
            if found is not None:
                config_maps[name] = found
    read = pool_pods(pods, tier=tier.metadata.name, config_maps=config_maps)
    memory.pool = {pod.name: pod for pod in read}


def look(
    memory: TierMemory,
    tier: KVCacheTier,
    record: Record,
    *,
    states: Sequence[RankState],
    monotonic: float,
    now: str,
    token: Callable[[], str] = new_token,
) -> Step:
    """What is due now. ``now`` is RFC 3339; the record that comes out is not written yet."""
    wanted = identity(tier.spec, version=record.identity_version)
    before = memory.looked_at
    forget_filled(memory, record)
    step = advance(
        record,
        Case(
            wanted=wanted,
            policy=policy_of(tier),
            pods={name: each.pod for name, each in memory.pool.items()},
            fences=fences(memory, tier, record, states=states),
            elapsed=0.0 if before is None else monotonic - before,
            now=now,
            new_token=token,
            clocks=memory.clocks,
            offered=offered(wanted, list(memory.pool.values())),
            kept=kept(list(memory.children), tier=tier, record=record),
        ),
    )
    memory.looked_at, memory.clocks = monotonic, step.clocks
    return step


def found_in_pool(memory: TierMemory, tier: KVCacheTier, record: Record) -> tuple[Finding, ...]:
    """What speaks against the pods of the pool."""
    wanted = identity(tier.spec, version=record.identity_version)
    return pool_findings(tier, record, wanted=wanted, pods=memory.pool.values())


def events(told: Sequence[Told]) -> list[EventSpec]:
    return [
        EventSpec(
            EventType.WARNING if each.warning else EventType.NORMAL, each.reason, each.message
        )
        for each in told
    ]


def next_look(record: Record, *, step: Step, unfinished: bool) -> float | None:
    """Seconds until the generations are to be looked at again, None if nothing is under way."""
    states = {entry.state for entry in record.generations}
    if unfinished or states & {GenerationState.FENCED, GenerationState.CONTAMINATED}:
        return FENCE_LOOK
    retiring = any(entry.retired for entry in record.generations)
    if step.clocks or step.leaving or retiring or GenerationState.PURGED in states:
        return DRAIN_LOOK
    return None


def sooner(plan: Plan, seconds: float | None) -> Plan:
    """The plan with this look, if it is before the one that it asks for."""
    wanted = [each for each in (plan.requeue_after, seconds) if each is not None]
    return replace(plan, requeue_after=min(wanted, default=None))
