"""Reading where engines and ranks are, and choosing where the ranks belong."""

import asyncio
from collections.abc import Collection, Sequence

from kvtier.api.types import KVCacheTier
from kvtier.cluster.protocol import NODE, POD, Cluster, Forbidden
from kvtier.generation.acl import OPERATOR_USER
from kvtier.generation.record import Record
from kvtier.plan.lost_nodes import node_facts
from kvtier.plan.observed import RankState
from kvtier.plan.placement import (
    choose_domain,
    engine_of,
    holds_nothing,
    lacks_room,
    movable,
    topology_of,
)
from kvtier.plan.tls import published_ca, rank_address, trusted_ca
from kvtier.reconcile.generations import read_pool
from kvtier.reconcile.memory import TierMemory
from kvtier.render.names import POOL_LABEL
from kvtier.store.protocol import Connect, Credentials, StoreError

ENGINE = "Engine"
"""What an event of a pod of the pool makes dirty. Rank pods are pods too, and send no event."""


class Placer:
    """Fills a TierMemory. Every method raises ApiError when the API server does not answer."""

    def __init__(self, *, cluster: Cluster, connect: Connect) -> None:
        self._cluster = cluster
        self._connect = connect

    async def read_engines(self, memory: TierMemory, tier: KVCacheTier) -> None:
        """The pods of the tier's pool."""
        label = f"{POOL_LABEL}={tier.metadata.name}"
        pods = await self._cluster.list(POD, tier.metadata.namespace, label)
        memory.engines = {found.name: found for pod in pods if (found := engine_of(pod))}
        await read_pool(self._cluster, memory, tier, pods)

    async def read_candidates(
        self, memory: TierMemory, tier: KVCacheTier, *, states: Collection[RankState]
    ) -> None:
        """The nodes that ranks without one might run on; once until the next full read.

        Not while all ranks have a node: it is the one list of everything that a tier costs.
        """
        if not lacks_room(states):
            memory.candidates = None
        elif memory.candidates is None:
            selector = ",".join(f"{k}={v}" for k, v in tier.spec.store.node_selector.items())
            try:
                found = await self._cluster.list(NODE, "", selector)
            except Forbidden:
                # Roles of an earlier release: the scheduler says the same, later and with less.
                return
            memory.candidates = {node["metadata"]["name"]: node_facts(node) for node in found}

    async def place(
        self, memory: TierMemory, tier: KVCacheTier, record: Record, *, states: Sequence[RankState]
    ) -> tuple[Record, dict[int, int]]:
        """The record with the domain that holds from now on, and how many keys the ranks have for
        which that matters."""
        place = topology_of(
            tier, nodes=memory.nodes, engines=memory.engines.values(), states=states
        )
        asked = movable(tier, record, topology=place, states=states)
        keys = await self._count_keys(memory, tier, record, states=asked.ranks)
        empty = asked.all_ranks and all(holds_nothing(state, keys) for state in states)
        return choose_domain(tier, record, topology=place, hold_nothing=empty), keys

    async def _count_keys(
        self,
        memory: TierMemory,
        tier: KVCacheTier,
        record: Record,
        *,
        states: Collection[RankState],
    ) -> dict[int, int]:
        """By rank, of those that are ready and answer."""
        credentials = Credentials(username=OPERATOR_USER, password=record.operator_token)
        ca = trusted_ca(memory.tls, published_ca(tier, memory.children))

        async def count(state: RankState) -> tuple[int, int] | None:
            try:
                async with self._connect(rank_address(tier, state, ca=ca), credentials) as store:
                    return state.rank, await store.dbsize()
            except StoreError:
                return None

        answers = await asyncio.gather(
            *(count(state) for state in states if state.ready and state.address)
        )
        return dict(answer for answer in answers if answer is not None)
