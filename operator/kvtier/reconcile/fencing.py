"""What ranks prove of who may read, and deleting the keys of generations that nobody may.

A proof is of one run of one server: its pod, its container, its run id, and the revision of the
users that it was told. Another run proves nothing.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvtier.api.types import KVCacheTier
from kvtier.generation.acl import OPERATOR_USER, acl_revision, key_prefix
from kvtier.generation.case import Fences
from kvtier.generation.entry import GenerationEntry, GenerationState
from kvtier.generation.record import Record
from kvtier.plan.observed import Object, RankState, is_owned_by
from kvtier.plan.tls import published_ca, rank_address, trusted_ca
from kvtier.reconcile.memory import AccessProof, TierMemory
from kvtier.render.names import rank_name
from kvtier.store.protocol import Connect, Credentials, Store, StoreError
from kvtier.store.purge import Pace, purge

PURGE_SLICE = 2.0
"""Seconds of one go at a rank's keys: so long other events of the tier wait."""
SESSIONS_EVERY = 10.0
"""Seconds until ranks are asked again who has sessions."""
EMPTYING = frozenset({GenerationState.FENCED, GenerationState.CONTAMINATED})


@dataclass(slots=True)
class Purges:
    """What one look at the ranks deleted: keys by generation, and the ranks that have more."""

    keys: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    unfinished: bool = False


def fences(
    memory: TierMemory, tier: KVCacheTier, record: Record, *, states: Sequence[RankState]
) -> Fences:
    """What the ranks prove of this record, by what is remembered of them."""
    ranks = frozenset(state.rank for state in states)
    gone, delivered = set(), set()
    purged: dict[str, set[int]] = {entry.id: set() for entry in record.generations}
    sessions: dict[str, int] | None = {}
    for state in states:
        if is_absent(memory, tier, state):
            # It can only start with the record's own file.
            gone.add(state.rank)
            delivered.add(state.rank)
            for held in purged.values():
                held.add(state.rank)
            continue
        proof = memory.access.get(state.rank)
        holds = (
            proof is not None
            and proof.of == (state.pod_uid, state.container)
            and proof.revision == acl_revision(record, rank=state.rank)
            and proof.gone
        )
        if proof is None or not holds or lingers(memory, tier, state):
            sessions = None
            continue
        gone.add(state.rank)
        if proof.delivered:
            delivered.add(state.rank)
        for generation, held in purged.items():
            if memory.purged.get((generation, state.rank)) == proof.run:
                held.add(state.rank)
        found = memory.sessions.get(state.rank)
        if found is None or found[0] != proof.run:
            sessions = None
        elif sessions is not None:
            for token in (token for entry in record.generations for token in entry.tokens()):
                sessions[token] = sessions.get(token, 0) + found[1].get(token, 0)
    return Fences(
        ranks=ranks,
        gone=frozenset(gone),
        delivered=frozenset(delivered),
        purged={generation: frozenset(held) for generation, held in purged.items()},
        sessions=sessions,
    )


def is_absent(memory: TierMemory, tier: KVCacheTier, state: RankState) -> bool:
    """Whether no process of the rank can be there: it has no pod at all."""
    return state.pod_uid is None and not _pods_of(memory, tier, state.rank)


def lingers(memory: TierMemory, tier: KVCacheTier, state: RankState) -> bool:
    """Whether an earlier pod of the rank is still there: its server may live on out of reach."""
    pods = _pods_of(memory, tier, state.rank)
    return any(pod["metadata"]["uid"] != state.pod_uid for pod in pods)


def _pods_of(memory: TierMemory, tier: KVCacheTier, rank: int) -> list[Object]:
    owner = memory.children.get(("StatefulSet", rank_name(tier.metadata.name, rank)))
    if owner is None:
        return []
    uid = owner["metadata"]["uid"]
    return [pod for pod in memory.pods if is_owned_by(pod, uid)]


class Purger:
    """Deletes the keys of generations that have no access, a slice at a time."""

    def __init__(
        self, *, connect: Connect, leads: Callable[[], bool], pace: Pace | None = None
    ) -> None:
        self._connect = connect
        self._leads = leads
        self._pace = pace or Pace()

    async def work(
        self,
        memory: TierMemory,
        tier: KVCacheTier,
        record: Record,
        *,
        states: Sequence[RankState],
        now: float,
    ) -> Purges:
        """One slice at every rank that needs it, and who has sessions where that decides.

        ``now`` is monotonic. A rank that does not answer is tried again by a later look.
        """
        done = Purges()
        emptying = [entry for entry in record.generations if _is_emptied(record, entry)]
        asks = bool(_waiting_for_sessions(record))
        if not asks:
            # Who had a session then says nothing of the next time that it matters.
            memory.sessions.clear()
            memory.sessions_at.clear()
        ca = trusted_ca(memory.tls, published_ca(tier, memory.children))
        credentials = Credentials(username=OPERATOR_USER, password=record.operator_token)

        async def rank(state: RankState, proof: AccessProof) -> None:
            wanted = [
                entry
                for entry in emptying
                if memory.purged.get((entry.id, state.rank)) != proof.run
            ]
            asked_at = memory.sessions_at.get(state.rank, float("-inf"))
            counts = asks and now - asked_at >= SESSIONS_EVERY
            if not wanted and not counts:
                return
            try:
                async with self._connect(rank_address(tier, state, ca=ca), credentials) as store:
                    if (await store.info("server")).get("run_id") != proof.run_id:
                        return
                    for entry in wanted:
                        await self._purge(memory, store, entry, state.rank, proof, done)
                    if counts:
                        memory.sessions_at[state.rank] = now
                        memory.sessions[state.rank] = (proof.run, dict(await store.sessions()))
            except StoreError:
                done.unfinished = done.unfinished or bool(wanted)

        jobs = []
        for state in states:
            proof = memory.access.get(state.rank)
            if proof is None or proof.of != (state.pod_uid, state.container) or not proof.gone:
                continue
            if proof.revision == acl_revision(record, rank=state.rank) and self._leads():
                jobs.append(rank(state, proof))
        await asyncio.gather(*jobs)
        return done

    async def _purge(
        self,
        memory: TierMemory,
        store: Store,
        entry: GenerationEntry,
        rank: int,
        proof: AccessProof,
        done: Purges,
    ) -> None:
        place = (entry.id, rank)
        run, cursor = memory.purging.get(place, (proof.run, 0))
        if run != proof.run:
            cursor = 0
        found = await purge(
            store,
            prefix=key_prefix(entry.id, rank),
            pace=self._pace,
            leads=self._leads,
            cursor=cursor,
            most_seconds=PURGE_SLICE,
        )
        done.keys[entry.id] = done.keys.get(entry.id, 0) + found.keys
        done.seconds[entry.id] = max(done.seconds.get(entry.id, 0.0), found.seconds)
        if found.whole:
            memory.purging.pop(place, None)
            memory.purged[place] = proof.run
        else:
            memory.purging[place] = (proof.run, found.cursor)
            done.unfinished = True


def _waiting_for_sessions(record: Record) -> list[str]:
    """Tokens that go once nobody has a session of theirs."""
    found = []
    for entry in record.generations:
        if entry.state is GenerationState.PURGED and entry.id != record.current_id:
            found += list(entry.tokens())
        found += [token for token in entry.fenced_tokens() if token != entry.token]
    return found


def forget_filled(memory: TierMemory, record: Record) -> None:
    """Drop what is remembered of purges of generations that may have been stored to since.

    ``record`` is the stored one, before anything is decided.
    """
    known = memory.record
    if known is not None and known.generations != record.generations:
        # Another operator wrote it: nobody here saw what it allowed meanwhile.
        memory.purged.clear()
        memory.purging.clear()
        memory.sessions.clear()
    kept = {entry.id for entry in record.generations if _is_emptied(record, entry)}
    memory.purged = {place: run for place, run in memory.purged.items() if place[0] in kept}
    memory.purging = {place: at for place, at in memory.purging.items() if place[0] in kept}


def _is_emptied(record: Record, entry: GenerationEntry) -> bool:
    """Whether its keys are to be deleted, again at a rank that runs anew if it is to come back."""
    returns = entry.id == record.current_id and entry.state is GenerationState.PURGED
    return entry.state in EMPTYING or returns
