"""Reading one tier and everything around it, no more than what changed."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from kvtier.api.base import MAX_NAME_LENGTH
from kvtier.api.types import KVCacheTier
from kvtier.cluster.protocol import (
    CONFIGMAP,
    EVENT,
    NODE,
    POD,
    SECRET,
    SERVICE,
    STATEFULSET,
    ApiError,
    Cluster,
    Forbidden,
    Kind,
    Object,
)
from kvtier.generation.acl import OPERATOR_USER, acl_revision
from kvtier.generation.record import Record
from kvtier.plan.lost_nodes import needs_its_node, node_facts
from kvtier.plan.observed import RankState, StoreFacts, TlsFacts, is_owned_by
from kvtier.plan.plan import STORE_RETRY
from kvtier.plan.ranks import surviving_ranks
from kvtier.plan.refusals import refusals
from kvtier.plan.tls import hosts, published_ca, rank_address, trusted_ca, usable
from kvtier.reconcile.certificate import examine
from kvtier.reconcile.memory import TierMemory
from kvtier.render.names import TIER_LABEL
from kvtier.render.valkey_conf import settings as valkey_settings
from kvtier.store.protocol import (
    REVISION_USER,
    Address,
    Connect,
    Credentials,
    StoreError,
    StoreUntrusted,
)

LOAD_EVERY = 10.0
"""Seconds between two attempts to load an ACL file that the kubelet has not brought yet: each one
ends the sessions of users that the old file lacks."""
LISTED_CHILDREN = (STATEFULSET, SERVICE, CONFIGMAP)
_BY_KIND: Mapping[str, Kind] = {kind.kind: kind for kind in LISTED_CHILDREN}


class Observer:
    """Fills a TierMemory. Every method raises ApiError when the API server does not answer."""

    def __init__(self, *, cluster: Cluster, connect: Connect) -> None:
        self._cluster = cluster
        self._connect = connect

    async def read_children(
        self, memory: TierMemory, metadata: Object, *, kinds: Collection[str]
    ) -> None:
        """List the objects of these kinds that the tier with this metadata has; pods go with their
        StatefulSets."""
        labels = f"{TIER_LABEL}={metadata['name']}"
        namespace = metadata["namespace"]

        async def read(kind: Kind) -> None:
            objects = await self._cluster.list(kind, namespace, labels)
            if kind is POD:
                memory.pods = objects
            else:
                memory.replace_kind(kind.kind, objects, uid=metadata["uid"])

        wanted = [_BY_KIND[kind] for kind in kinds if kind in _BY_KIND]
        await asyncio.gather(*(read(kind) for kind in wanted))
        if STATEFULSET in wanted or POD.kind in kinds:
            # After their StatefulSets: no event tells of a pod, so what is read of pods may not be
            # older than the StatefulSet whose event is then taken for known.
            await read(POD)

    async def read_survivors(self, memory: TierMemory, body: Object) -> Sequence[RankState] | None:
        """The ranks of a tier whose spec does not tell them, None if it has none."""
        metadata = body["metadata"]
        if len(metadata["name"]) > MAX_NAME_LENGTH:
            # It never had any, and the API server refuses to list by too long a label.
            return None
        memory.nodes.clear()
        await self.read_children(memory, metadata, kinds={STATEFULSET.kind})
        known = (entry["rank"] for entry in (body.get("status") or {}).get("rankStates", ()))
        found = surviving_ranks(
            metadata["uid"], known=known, children=memory.children, pods=memory.pods
        )
        return found or None

    async def read_foreign(self, memory: TierMemory, tier: KVCacheTier) -> None:
        """Look again at objects of others that occupy one of the tier's names."""
        for (kind, name), obj in list(memory.children.items()):
            if kind in _BY_KIND and not is_owned_by(obj, tier.metadata.uid):
                memory.children.pop((kind, name))
                fresh = await self._cluster.get(_BY_KIND[kind], tier.metadata.namespace, name)
                if fresh is not None:
                    memory.put(fresh)

    async def read_secrets(
        self, memory: TierMemory, tier: KVCacheTier, *, names: list[str]
    ) -> None:
        """Get these Secrets by name: kvtier may neither list nor watch Secrets."""

        async def read(name: str) -> None:
            secret = await self._cluster.get(SECRET, tier.metadata.namespace, name)
            if secret is None:
                memory.children.pop((SECRET.kind, name), None)
            else:
                memory.put(secret)

        await asyncio.gather(*(read(name) for name in names))

    async def read_tls(self, memory: TierMemory, tier: KVCacheTier) -> None:
        """The Secret that the tier names for TLS, and whether ranks can serve with it."""
        tls = tier.spec.store.tls
        memory.tls, memory.tls_secret = None, tls.secret_name if tls else None
        if tls is not None:
            secret = await self._cluster.get(SECRET, tier.metadata.namespace, tls.secret_name)
            # Off the event loop: a certificate with a large key takes milliseconds for each rank.
            memory.tls = await asyncio.to_thread(
                examine, secret, name=tls.secret_name, hosts=hosts(tier)
            )

    async def read_nodes(
        self, memory: TierMemory, states: Collection[RankState], *, now: datetime
    ) -> None:
        """The nodes of ranks and engines, once per node until the next full read.

        Again after an event that showed one otherwise, and each time where only the node can tell
        what became of a pod. ``now`` is wall-clock time.
        """

        async def read(name: str) -> None:
            memory.stale_nodes.discard(name)
            try:
                memory.nodes[name] = node_facts(await self._cluster.get(NODE, "", name))
            except ApiError:
                memory.stale_nodes.add(name)
                raise

        used = {state.node for state in states if state.node}
        used |= {engine.node for engine in memory.engines.values()}
        known = memory.nodes.keys() - memory.stale_nodes
        asked = {state.node for state in states if state.node and needs_its_node(state, now=now)}
        wanted = (used - known) | asked
        await asyncio.gather(*(read(name) for name in sorted(wanted)))

    async def read_refusals(
        self, memory: TierMemory, tier: KVCacheTier, *, states: Collection[RankState]
    ) -> dict[int, str]:
        """Why ranks got no pod: a quota, a limit range, an admission policy. Only events tell."""
        try:
            events = await self._cluster.list(
                EVENT,
                tier.metadata.namespace,
                field_selector=f"involvedObject.kind={STATEFULSET.kind}",
            )
        except Forbidden:
            # Roles of an earlier release: the message says less, and that is all.
            return {}
        return refusals(
            tier.metadata.name, events=events, states=tuple(states), children=memory.children
        )

    async def read_stores(
        self,
        memory: TierMemory,
        tier: KVCacheTier,
        *,
        record: Record,
        states: Collection[RankState],
        now: float,
    ) -> None:
        """Ask the running ranks that are not proven to be as wanted. ``now`` is monotonic."""
        wanted = valkey_settings(tier.spec).live
        credentials = Credentials(username=OPERATOR_USER, password=record.operator_token)
        ca = memory.ca = trusted_ca(memory.tls, published_ca(tier, memory.children))

        async def ask(state: RankState) -> None:
            address = rank_address(tier, state, ca=ca)
            facts = await self._facts(address, credentials, names=list(wanted))
            facts = _with_proof(facts, memory, state, record=record, now=now)
            memory.stores[state.rank] = facts
            if facts.certificate is not None:
                memory.served_until[state.rank] = facts.certificate.not_after
            if facts.error is None:
                memory.asked_at.pop(state.rank, None)
            else:
                memory.asked_at[state.rank] = (_run(state), now)

        def rests(state: RankState) -> bool:
            run, at = memory.asked_at.get(state.rank, ("", 0.0))
            return run == _run(state) and now - at < STORE_RETRY

        asked = [
            state
            for state in states
            if state.address
            and state.ready
            and memory.proven.get(state.rank)
            != proof(tier, record=record, state=state, tls=memory.tls)
            # A rank that does not answer costs a timeout: events of others do not wait for it.
            and not rests(state)
        ]
        ready = {state.rank for state in states if state.ready}
        memory.stores = {
            rank: facts for rank, facts in memory.stores.items() if facts.error and rank in ready
        }
        await asyncio.gather(*(ask(state) for state in asked))

    async def _facts(
        self, address: Address, credentials: Credentials, *, names: list[str]
    ) -> StoreFacts:
        try:
            async with self._connect(address, credentials) as store:
                config = await store.config_get(*names)
                server = await store.info("server")
                revision = await store.acl_getuser(REVISION_USER)
        except StoreError as error:
            return StoreFacts(error=str(error), untrusted=isinstance(error, StoreUntrusted))
        passwords = sorted(revision.passwords) if revision else []
        return StoreFacts(
            config=config,
            run_id=server.get("run_id", ""),
            acl_revision=passwords[0] if passwords else None,
            certificate=store.peer,
        )


def _with_proof(
    facts: StoreFacts, memory: TierMemory, state: RankState, *, record: Record, now: float
) -> StoreFacts:
    """The facts with what this run of the server has proved before."""
    found = memory.access.get(state.rank)
    told = (
        found is not None
        and (found.of, found.run_id) == ((state.pod_uid, state.container), facts.run_id)
        and found.revision == acl_revision(record, rank=state.rank)
    )
    told_at = memory.loaded_at.get(state.rank, float("-inf"))
    return replace(
        facts,
        users_set=told and found is not None and found.gone and state.rank not in memory.unchecked,
        load_due=told and now - told_at >= LOAD_EVERY,
    )


def proof(tier: KVCacheTier, *, record: Record, state: RankState, tls: TlsFacts | None) -> str:
    """Names the run of a rank's server and what it was told: another run, or another wish, and
    nothing is proven any more."""
    settings = sorted(valkey_settings(tier.spec).live.items())
    revision = acl_revision(record, rank=state.rank)
    facts = usable(tls)
    certificate = facts.fingerprint if facts else None
    return f"{_run(state)}/{revision}/{settings}/{certificate}"


def _run(state: RankState) -> str:
    """Names the run of a rank's server."""
    return f"{state.pod_uid}/{state.container}"
