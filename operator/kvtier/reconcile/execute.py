"""Carrying out a plan. Only here does kvtier write."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvtier.api.types import KVCacheTier
from kvtier.cluster.protocol import (
    POD,
    SECRET,
    AlreadyExists,
    ApiError,
    Cluster,
    Conflict,
    Invalid,
    Kind,
    Object,
    kind_of,
)
from kvtier.generation.acl import OPERATOR_USER
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
    SetUsers,
    StoreAction,
    StoreFacts,
    child_key,
    is_owned_by,
)
from kvtier.plan.tls import engines_trust, published_ca, rank_address, trusted_ca
from kvtier.reconcile.memory import TierMemory
from kvtier.reconcile.observe import LISTED_CHILDREN, proof
from kvtier.reconcile.rank import Telling, is_delivered, note_loaded
from kvtier.reconcile.record import is_recorded
from kvtier.render.names import TIER_LABEL, acl_name, operator_name
from kvtier.store.protocol import (
    Connect,
    Credentials,
    PeerCertificate,
    StoreError,
    StoreUntrusted,
)

_KINDS: Mapping[str, Kind] = {kind.kind: kind for kind in (*LISTED_CHILDREN, POD, SECRET)}


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

    def __init__(
        self,
        *,
        cluster: Cluster,
        connect: Connect,
        leads: Callable[[], bool],
        monotonic: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._connect = connect
        self._leads = leads
        self._monotonic = monotonic

    async def carry_out(
        self, plan: Plan, *, tier: KVCacheTier, record: Record, memory: TierMemory
    ) -> Report:
        """Secrets first, one by one; once all are right the other children at once; then pods and
        stores. Raises NotLeading before the first write that the Lease does not cover."""
        report = Report()
        before = _record_version(tier, memory)
        await self._keep_record(plan, tier=tier, memory=memory, report=report)
        if report.retry or report.reread or report.taken:
            # Another process made one first, or nobody knows: its tokens are not ours.
            return report
        recorded = is_recorded(memory, tier, record)
        if recorded:
            await self._publish(plan, tier=tier, memory=memory, report=report)
        made = {child_key(obj) for obj in plan.creates if obj["kind"] == "Secret"}
        if not report.taken and made <= set(report.created):
            # Nothing is made that mounts what could not be made.
            await self._bring_about(plan, tier=tier, memory=memory, report=report)
        if recorded and (
            not any(isinstance(each, SetUsers | LoadAcl) for each in plan.store_actions)
            or before != _record_version(tier, memory)
            or await self._is_newest(tier, memory, report)
        ):
            await self._tell_stores(plan, tier=tier, record=record, memory=memory, report=report)
        return report

    async def _is_newest(self, tier: KVCacheTier, memory: TierMemory, report: Report) -> bool:
        """Whether the record is as it was read: an old one would lift another operator's fence."""
        name = acl_name(tier.metadata.name)
        try:
            found = await self._cluster.get(SECRET, tier.metadata.namespace, name)
        except ApiError as error:
            report.failures.append(f"Secret {name}: {error}")
            report.retry = report.retry or error
            return False
        version = found["metadata"]["resourceVersion"] if found else None
        if version == _record_version(tier, memory):
            return True
        report.reread = Conflict(
            status=409, reason="Conflict", message=f"Secret {name}: another operator wrote it"
        )
        return False

    async def _bring_about(
        self, plan: Plan, *, tier: KVCacheTier, memory: TierMemory, report: Report
    ) -> None:
        """Everything but Secrets."""
        # What a template says of the record must be in the record first.
        unsure = report.retry or report.reread
        later = {"Secret", "StatefulSet"} if unsure else {"Secret"}
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

    async def _keep_record(
        self, plan: Plan, *, tier: KVCacheTier, memory: TierMemory, report: Report
    ) -> None:
        """The record and the operator's own token: before anybody is told anything."""
        own = _record_names(tier)
        await self._secrets(plan, tier, memory, report, of=lambda name: name in own)

    async def _publish(
        self, plan: Plan, *, tier: KVCacheTier, memory: TierMemory, report: Report
    ) -> None:
        """The other Secrets: what they give away is in the record."""
        own = _record_names(tier)
        if not await self._secrets(plan, tier, memory, report, of=lambda name: name not in own):
            return
        for deletion in plan.unneeded:
            if await self._delete(deletion, tier.metadata.namespace, report):
                memory.children.pop((deletion.kind, deletion.name), None)

    async def _secrets(
        self,
        plan: Plan,
        tier: KVCacheTier,
        memory: TierMemory,
        report: Report,
        *,
        of: Callable[[str], bool],
    ) -> bool:
        """Write the plan's Secrets of these names one by one; whether all that lacked were made."""
        for obj in plan.creates:
            if obj["kind"] == "Secret" and of(obj["metadata"]["name"]):
                await self._guarded(self._create(dict(obj), tier, memory, report), obj, report)
                if report.retry or report.reread or report.taken:
                    return False
        for apply in plan.applies:
            if apply.intent["kind"] == "Secret" and of(apply.intent["metadata"]["name"]):
                await self._guarded(self._apply(apply, memory, report), apply.intent, report)
        return True

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
        # Another operator may have written a fence meanwhile: it must not be taken back.
        of_record = key == ("Secret", acl_name(apply.intent["metadata"]["labels"][TIER_LABEL]))
        result = await self._cluster.apply(
            apply.intent, uid=apply.uid, resource_version=before if of_record else None
        )
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
    ) -> bool:
        """Whether it is gone, or was."""
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
            return True
        return False

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
            if not plan.pending and state.rank not in plan.outdated:
                memory.proven[state.rank] = proof(tier, record=record, state=state, tls=memory.tls)

        async def tell(state: RankState, actions: list[StoreAction], facts: StoreFacts) -> None:
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
                    telling = Telling(memory, record=record, state=state, now=self._monotonic())
                    problem = await telling.run(store, actions, facts)
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
            elif state.rank not in report.undelivered and is_delivered(memory, record, state):
                prove(state)

        jobs = []
        for state in plan.ranks:
            facts = memory.stores.get(state.rank)
            if facts is None:
                continue
            if facts.error is not None:
                if state.rank not in plan.outdated:
                    report.unverified[state.rank] = facts.error
                if facts.untrusted and state.rank not in plan.outdated:
                    report.untrusted.add(state.rank)
            elif state.rank in by_rank:
                jobs.append(tell(state, by_rank[state.rank], facts))
            elif note_loaded(memory, record, state, facts):
                prove(state)
        await _all(jobs)


def _record_names(tier: KVCacheTier) -> set[str]:
    """The Secrets that are written before anybody is told anything."""
    return {operator_name(tier.metadata.name), acl_name(tier.metadata.name)}


def _record_version(tier: KVCacheTier, memory: TierMemory) -> str | None:
    found = memory.children.get((SECRET.kind, acl_name(tier.metadata.name)))
    return found["metadata"].get("resourceVersion") if found else None


async def _all(jobs: Iterable[Awaitable[None]]) -> None:
    """Run all at once and wait for all of them; then raise the first error, if any."""
    for result in await asyncio.gather(*jobs, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
