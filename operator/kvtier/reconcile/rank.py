"""Telling one rank's server what it is to be, and taking down what it proved."""

from collections.abc import Sequence
from dataclasses import replace

from kvtier.generation.acl import (
    acl_revision,
    fenced_tokens,
    key_prefix,
    revoked_tokens,
    users,
)
from kvtier.generation.record import Record
from kvtier.plan.observed import (
    LoadAcl,
    RankState,
    ReloadCertificate,
    SetConfig,
    SetUsers,
    StoreAction,
    StoreFacts,
)
from kvtier.reconcile.memory import AccessProof, TierMemory
from kvtier.render.valkey_conf import certificate_reload
from kvtier.store.apply import apply_live_settings
from kvtier.store.fence import access_gone
from kvtier.store.protocol import Store


class Telling:
    """One rank's actions, in one session; ``now`` is monotonic."""

    def __init__(self, memory: TierMemory, *, record: Record, state: RankState, now: float) -> None:
        self._memory = memory
        self._record = record
        self._state = state
        self._now = now
        self._revision = acl_revision(record, rank=state.rank)

    async def run(
        self, store: Store, actions: Sequence[StoreAction], facts: StoreFacts
    ) -> str | None:
        """Carry out ``actions``; returns why the rank is not as wanted, None if it is.

        Raises StoreError.
        """
        problems: list[str] = []
        note_loaded(self._memory, self._record, self._state, facts)
        # Who may read comes first: settings can wait, a fence cannot.
        for action in sorted(actions, key=lambda each: not isinstance(each, SetUsers)):
            match action:
                case SetUsers():
                    problems += await self._set_users(store, facts)
                case LoadAcl():
                    await self._load(store, facts)
                case SetConfig(values=values):
                    applied = await apply_live_settings(store, values)
                    problems.extend(f"{name}: {why}" for name, why in applied.not_applied.items())
                case ReloadCertificate():
                    await store.config_set(certificate_reload())
        return "; ".join(problems) or None

    async def _set_users(self, store: Store, facts: StoreFacts) -> list[str]:
        rank = self._state.rank
        await store.acl_setusers(users(self._record, rank=rank))
        for token in revoked_tokens(self._record):
            await store.client_kill(token)
        left = await self._still_open(store)
        before = self._memory.access.get(rank)
        if before is None or not self._is_of(before, facts):
            # The kubelet may need a while; a check of the same users puts off nothing.
            self._memory.loaded_at[rank] = self._now
        self._note(facts, gone=not left, delivered=facts.acl_revision == self._revision)
        self._memory.unchecked.discard(rank)
        return [f"generation {generation} still has access" for generation in left]

    async def _load(self, store: Store, facts: StoreFacts) -> None:
        """An old file does no harm: the record's users are put over it in the same transaction."""
        rank = self._state.rank
        self._memory.loaded_at[rank] = self._now
        loaded = await store.acl_load(users(self._record, rank=rank))
        left = await self._still_open(store)
        self._note(facts, gone=not left, delivered=loaded == self._revision)

    async def _still_open(self, store: Store) -> list[str]:
        """Generations of which a fenced token reaches a key here."""
        return [
            generation
            for token, generation in fenced_tokens(self._record).items()
            if not await access_gone(store, token, prefix=key_prefix(generation, self._state.rank))
        ]

    def _is_of(self, proof: AccessProof, facts: StoreFacts) -> bool:
        """Whether it is of this run of the server, and of these users."""
        run = ((self._state.pod_uid, self._state.container), facts.run_id)
        return (proof.of, proof.run_id) == run and proof.revision == self._revision

    def _note(self, facts: StoreFacts, *, gone: bool, delivered: bool) -> None:
        state = self._state
        self._memory.access[state.rank] = AccessProof(
            of=(state.pod_uid, state.container),
            run_id=facts.run_id,
            revision=self._revision,
            gone=gone,
            delivered=delivered,
        )


def note_loaded(memory: TierMemory, record: Record, state: RankState, facts: StoreFacts) -> bool:
    """Take down that a rank has loaded the record's file, if it has; whether it has."""
    revision = acl_revision(record, rank=state.rank)
    if facts.acl_revision != revision:
        return False
    proof = memory.access.get(state.rank)
    if proof is not None and facts.users_set and not proof.delivered:
        memory.access[state.rank] = replace(proof, delivered=True)
    return True


def is_delivered(memory: TierMemory, record: Record, state: RankState) -> bool:
    """Whether a rank that was just told has loaded the record's file."""
    proof = memory.access.get(state.rank)
    if proof is not None and proof.revision == acl_revision(record, rank=state.rank):
        return proof.delivered
    facts = memory.stores.get(state.rank)
    return facts is not None and facts.acl_revision == acl_revision(record, rank=state.rank)
