"""Carrying out a plan. Only here does kvtier write."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvtier.api.types import KVCacheTier
from kvtier.cluster.protocol import (
    POD,
    AlreadyExists,
    ApiError,
    Cluster,
    Conflict,
    Invalid,
    Kind,
    Object,
    kind_of,
)
from kvtier.generation.acl import OPERATOR_USER, acl_revision, users
from kvtier.generation.record import Record
from kvtier.plan.drift import contains
from kvtier.plan.observed import (
    Apply,
    ChildKey,
    Delete,
    LoadAcl,
    Plan,
    RankState,
    ReloadCertificate,
    SetConfig,
    StoreAction,
    child_key,
    is_owned_by,
)
from kvtier.plan.tls import engines_trust, published_ca, rank_address, trusted_ca
from kvtier.reconcile.memory import TierMemory
from kvtier.reconcile.observe import LISTED_CHILDREN, proof
from kvtier.render.valkey_conf import certificate_reload
from kvtier.store.apply import apply_live_settings
from kvtier.store.protocol import (
    Connect,
    Credentials,
    PeerCertificate,
    Store,
    StoreError,
    StoreUntrusted,
)

_KINDS: Mapping[str, Kind] = {kind.kind: kind for kind in (*LISTED_CHILDREN, POD)}


class NotLeading(Exception):
    """The Lease is not held any more: nothing may be written."""

    def __init__(self) -> None:
        super().__init__("the lease is not held")


@dataclass(slots=True)
class Report:
    """What happened.

    ``applied`` says it in words, ``taken`` are names that others were found to have, ``forced`` the
    pods that were deleted by force, ``retry`` is the first error worth a backoff; ``reread`` asks
    for a new look at everything at once. ``reloaded`` are the ranks that serve a renewed
    certificate now, ``undelivered`` those whose pods do not have it yet, ``untrusted`` those that
    serve one which nobody trusts.
    """

    failures: list[str] = field(default_factory=list)
    created: list[ChildKey] = field(default_factory=list)
    applied: list[str] = field(default_factory=list)
    taken: list[ChildKey] = field(default_factory=list)
    forced: list[Delete] = field(default_factory=list)
    unverified: dict[int, str] = field(default_factory=dict)
    reloaded: list[int] = field(default_factory=list)
    undelivered: list[int] = field(default_factory=list)
    untrusted: set[int] = field(default_factory=set)
    retry: ApiError | None = None
    reread: Conflict | None = None


class Executor:
    """Writes to one API server and to the ranks, as long as ``leads()`` says so."""

    def __init__(self, *, cluster: Cluster, connect: Connect, leads: Callable[[], bool]) -> None:
        self._cluster = cluster
        self._connect = connect
        self._leads = leads

    async def carry_out(
        self, plan: Plan, *, tier: KVCacheTier, record: Record, memory: TierMemory
    ) -> Report:
        """Secrets first, one by one; once all are right the other children at once; then pods and
        stores. Raises NotLeading before the first write that the Lease does not cover."""
        report = Report()
        for obj in plan.creates:
            if obj["kind"] == "Secret":
                await self._guarded(self._create(dict(obj), tier, memory, report), obj, report)
            if report.retry or report.reread or report.taken:
                # Another process made one first, or nobody knows: its tokens are not ours.
                return report
        for apply in plan.applies:
            if apply.intent["kind"] == "Secret":
                await self._guarded(self._apply(apply, memory, report), apply.intent, report)
        # What a template says of the record must be in the record first.
        later = {"Secret", "StatefulSet"} if report.retry or report.reread else {"Secret"}
        jobs = [
            self._guarded(self._create(dict(obj), tier, memory, report), obj, report)
            for obj in plan.creates
            if obj["kind"] not in later
        ]
        jobs += [
            self._guarded(self._apply(apply, memory, report), apply.intent, report)
            for apply in plan.applies
            if apply.intent["kind"] not in later
        ]
        await _all(jobs)
        for deletion in (*plan.restarts, *plan.moves):
            await self._delete(deletion, tier.metadata.namespace, report)
        await self.free(plan.lost, namespace=tier.metadata.namespace, report=report)
        await self._tell_stores(plan, tier=tier, record=record, memory=memory, report=report)
        return report

    async def _create(
        self, obj: Object, tier: KVCacheTier, memory: TierMemory, report: Report
    ) -> None:
        key = child_key(obj)
        try:
            memory.put(await self._cluster.create(obj))
            report.created.append(key)
        except AlreadyExists:
            metadata = obj["metadata"]
            found = await self._cluster.get(kind_of(obj), metadata["namespace"], metadata["name"])
            if found is None:
                raise
            memory.put(found)
            if not is_owned_by(found, tier.metadata.uid):
                report.taken.append(key)
            elif obj["kind"] == "Secret":
                # Made meanwhile, perhaps by another process with other tokens: read them first.
                raise
            else:
                # Ours, but without the label that it is listed by.
                memory.put(await self._cluster.apply(obj, uid=found["metadata"]["uid"]))

    async def _apply(self, apply: Apply, memory: TierMemory, report: Report) -> None:
        key = child_key(apply.intent)
        before = memory.children[key]["metadata"].get("resourceVersion")
        futile = f"{key[0]} {key[1]}: {apply.field} does not stay as kvtier applies it"
        if memory.futile.get(key) == before:
            report.failures.append(futile)
            return
        result = await self._cluster.apply(apply.intent, uid=apply.uid)
        memory.put(result)
        memory.futile.pop(key, None)
        if contains(result, apply.intent):
            report.applied.append(f"{apply.field} of {key[0]} {key[1]}")
        else:
            memory.futile[key] = result["metadata"]["resourceVersion"]
            report.failures.append(futile)

    async def _guarded(
        self, job: Coroutine[Any, Any, None], obj: Mapping[str, object], report: Report
    ) -> None:
        """Run one write; what the server answers becomes part of the report."""
        if not self._leads():
            job.close()
            raise NotLeading
        kind, name = child_key(obj)
        try:
            await job
        except AlreadyExists as error:
            report.reread = Conflict(status=409, reason="Conflict", message=error.message)
        except Conflict as error:
            report.reread = error
        except ApiError as error:
            report.failures.append(f"{kind} {name}: {error}")
            if not isinstance(error, Invalid):
                report.retry = report.retry or error

    async def free(self, lost: Iterable[Delete], *, namespace: str, report: Report) -> None:
        """Delete by force the pods that no kubelet will; their StatefulSets then make new ones."""
        for deletion in lost:
            await self._delete(deletion, namespace, report, by_force=True)

    async def _delete(
        self, deletion: Delete, namespace: str, report: Report, *, by_force: bool = False
    ) -> None:
        if not self._leads():
            raise NotLeading
        delete = self._cluster.force_delete if by_force else self._cluster.delete
        try:
            await delete(_KINDS[deletion.kind], namespace, deletion.name, uid=deletion.uid)
        except Conflict as error:
            report.reread = error
        except ApiError as error:
            report.failures.append(f"{deletion.kind} {deletion.name}: {error}")
            report.retry = report.retry or error
        else:
            if by_force:
                report.forced.append(deletion)

    async def _tell_stores(
        self,
        plan: Plan,
        *,
        tier: KVCacheTier,
        record: Record,
        memory: TierMemory,
        report: Report,
    ) -> None:
        """Carry out store actions and take down which ranks are proven to be as wanted."""
        by_rank: dict[int, list[StoreAction]] = {}
        for action in plan.store_actions:
            by_rank.setdefault(action.rank, []).append(action)
        credentials = Credentials(username=OPERATOR_USER, password=record.operator_token)
        published = published_ca(tier, memory.children)
        ca = trusted_ca(memory.tls, published)
        reloadable = engines_trust(memory.tls, published)

        def prove(state: RankState) -> None:
            if not plan.pending:
                memory.proven[state.rank] = proof(tier, record=record, state=state, tls=memory.tls)

        async def tell(state: RankState, actions: list[StoreAction]) -> None:
            address = rank_address(tier, state, ca=ca)
            wanted = [each for each in actions if isinstance(each, ReloadCertificate)]
            served: PeerCertificate | None = None
            held = bool(wanted) and not reloadable
            if held:
                # Their Secret was to be written first, and that failed.
                actions = [each for each in actions if each not in wanted]
                wanted = []
            try:
                if not self._leads():
                    raise NotLeading
                async with self._connect(address, credentials) as store:
                    problem = await self._run(store, actions, record)
                if wanted:
                    # What a new handshake shows is what clients get from now on.
                    async with self._connect(address, credentials) as store:
                        served = store.peer
            except StoreError as error:
                problem = str(error)
                if isinstance(error, StoreUntrusted):
                    report.untrusted.add(state.rank)
            if held:
                problem = problem or "its certificate waits until engines have the CA of it"
            if served is not None:
                memory.served_until[state.rank] = served.not_after
                if served.fingerprint == wanted[0].fingerprint:
                    report.reloaded.append(state.rank)
                elif served.expired:
                    problem = problem or (
                        "it serves a certificate that has expired, the renewed one is not "
                        "delivered to its pod yet"
                    )
                else:
                    report.undelivered.append(state.rank)
            if problem:
                report.unverified[state.rank] = problem
            elif state.rank not in report.undelivered:
                prove(state)

        jobs = []
        for state in plan.ranks:
            facts = memory.stores.get(state.rank)
            if facts is None or state.rank in plan.outdated:
                continue
            if facts.error is not None:
                report.unverified[state.rank] = facts.error
                if facts.untrusted:
                    report.untrusted.add(state.rank)
            elif state.rank in by_rank:
                jobs.append(tell(state, by_rank[state.rank]))
            else:
                prove(state)
        await _all(jobs)

    async def _run(self, store: Store, actions: list[StoreAction], record: Record) -> str | None:
        """Carry out one rank's actions; returns why it is not as wanted, None if it is."""
        problems: list[str] = []
        for action in actions:
            match action:
                case SetConfig(values=values):
                    applied = await apply_live_settings(store, values)
                    problems.extend(f"{name}: {why}" for name, why in applied.not_applied.items())
                case LoadAcl(rank=rank):
                    loaded = await store.acl_load(users(record, rank=rank))
                    if loaded != acl_revision(record, rank=rank):
                        problems.append("its ACL file is not delivered yet")
                case ReloadCertificate():
                    await store.config_set(certificate_reload())
        return "; ".join(problems) or None


async def _all(jobs: Iterable[Awaitable[None]]) -> None:
    """Run all at once and wait for all of them; then raise the first error, if any."""
    for result in await asyncio.gather(*jobs, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
