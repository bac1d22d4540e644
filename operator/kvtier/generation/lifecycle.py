"""The life of generations, as a pure machine: a record and what is known go in, a record comes out.

It decides only. The record that comes out is written first, and only then are ranks told; what they
prove is part of the next look. So the machine can be stopped anywhere: the next look goes on.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from kvtier.api import reasons
from kvtier.api.rollout import OnPoolDrift, Revocation
from kvtier.generation.case import Case
from kvtier.generation.entry import (
    POISONED,
    Cause,
    GenerationEntry,
    GenerationState,
    RetiredToken,
    Retirement,
)
from kvtier.generation.record import Record
from kvtier.generation.step import Step, Told

MOST_ELAPSED = 30.0
"""Seconds of a drain that one look may count: what happened in a longer pause nobody saw."""
CHECKPOINTS = 8
"""A drain is written down so often: a restart of the operator costs it no more than that part."""
STOPPED = -1.0
"""A clock that stands, whatever is written down of it."""

State = GenerationState


def advance(record: Record, case: Case) -> Step:
    """The record after everything that is due now, and what to tell of it."""
    look = _Look(case, record)
    for rule in _RULES:
        record = rule(look, record)
    return Step(record, tuple(look.told), look.clocks, look.leaving)


class _Look:
    """One pass of the rules; each takes the record and returns it, changed or not."""

    def __init__(self, case: Case, record: Record) -> None:
        self.case = case
        # What is proven is of these: a token that is retired in this look is not among them.
        self.ended = {
            each.token
            for entry in record.generations
            for each in entry.retired
            if each.state is not Retirement.VALID
        }
        self.told: list[Told] = []
        self.clocks: dict[str, float] = {}
        self.leaving: frozenset[str] = frozenset()

    def tell(self, reason: str, message: str, *, warning: bool = False) -> None:
        self.told.append(Told(reason, message, warning))

    def moved(self, entry: GenerationEntry, state: State, **changes: Any) -> GenerationEntry:
        fresh: dict[str, Any] = {"cause": None, "note": None, "drained": 0.0}
        return replace(entry, state=state, since=self.case.now, **(fresh | changes))

    def made(self, name: str, state: State, fields: Mapping[str, Any]) -> GenerationEntry:
        token, now = self.case.new_token(), self.case.now
        return GenerationEntry(id=name, state=state, token=token, identity=dict(fields), since=now)

    # What the spec names

    def heed_spec(self, record: Record) -> Record:
        """The generation that the spec names is the one to use; the one before it drains."""
        case, wanted = self.case, self.case.wanted_id
        if case.policy.paused or record.current_id == wanted:
            return record
        before = record.current
        if before.state is State.LIVE:
            record = record.put(self.moved(before, State.DRAINING))
        entry = record.find(wanted)
        if entry is None:
            entry = self.made(wanted, State.LIVE, case.wanted)
            self.tell(
                reasons.GENERATION_LIVE,
                f"Generation {wanted} is the one for engines to use; {self._after(before)}.",
            )
        elif entry.serves_at_once:
            self.tell(
                reasons.GENERATION_LIVE,
                f"Generation {wanted} is the one for engines to use again, with what it still "
                f"holds; {before.id} drains.",
            )
            entry = self.moved(entry, State.LIVE, identity=dict(case.wanted))
        else:
            entry = replace(entry, identity=dict(case.wanted))
            self.tell(
                reasons.GENERATION_FENCED,
                f"The spec names generation {wanted} again: it gets access once its keys are "
                f"deleted ({_why(entry)}).",
            )
        return replace(record.put(entry), current_id=wanted)

    def _after(self, before: GenerationEntry) -> str:
        """What becomes of the generation before, in words."""
        known = before.identity
        if known is not None and known.get("salt") != self.case.wanted.get("salt"):
            return f"{before.id} is fenced at once, since model.salt changed"
        return (
            f"{before.id} drains until engines have used the new one for "
            f"{self.case.policy.drain_timeout:g} s"
        )

    def heed_salt(self, record: Record) -> Record:
        """Another salt is the owner's word that weights changed in place: no drain."""
        wanted = self.case.wanted
        for entry in record.generations:
            if entry.id == self.case.wanted_id or entry.identity is None:
                continue
            if entry.has_access and entry.identity.get("salt") != wanted.get("salt"):
                record = record.put(self.fence(entry, Cause.SALT_CHANGED, "model.salt changed"))
        return record

    def heed_drift(self, record: Record) -> Record:
        """Engines that run what the spec does not name, without a Secret of the tier."""
        case = self.case
        if case.policy.on_pool_drift is not OnPoolDrift.NEW_GENERATION or case.policy.paused:
            return record
        for generation, fields in case.offered.items():
            if record.find(generation) is None and len(record.generations) < MOST_GENERATIONS:
                record = record.put(self.pending(generation, fields))
        return record

    def pending(self, generation: str, fields: Mapping[str, Any]) -> GenerationEntry:
        self.tell(
            reasons.GENERATION_PENDING,
            f"Generation {generation} was made for engines of the pool that run another identity "
            "than the spec's: have them mount its Secret, or bring the spec to what they run.",
        )
        return self.made(generation, State.PENDING, fields)

    # What pods do

    def contaminate(self, record: Record) -> Record:
        """KV of other weights may be in it, and nobody can tell which: take access from all."""
        for entry in record.generations:
            if not entry.has_access:
                continue
            why = self.case.foreign(entry.id, entry.identity)
            if why is not None:
                note = why[:MOST_NOTE]
                record = record.put(
                    self.moved(entry, State.CONTAMINATED, cause=Cause.CONTAMINATED, note=note)
                )
                self.tell(
                    reasons.GENERATION_CONTAMINATED,
                    f"Generation {entry.id} may hold KV of other weights: {note}. Nobody reads it "
                    "any more, and its keys are deleted.",
                    warning=True,
                )
        return record

    # Tokens

    def rotate(self, record: Record) -> Record:
        policy = self.case.policy
        if policy.paused:
            return record
        at_once = policy.revocation is Revocation.IMMEDIATE
        if policy.credential_epoch != record.credential_epoch:
            state = Retirement.REVOKED if at_once else Retirement.VALID
            # Those without access too: they may come back.
            for entry in record.generations:
                record = record.put(self.renewed(entry, state))
            record = record.with_new_tokens(
                epoch=policy.credential_epoch, token=self.case.new_token
            )
            last = "end now" if at_once else f"end in {policy.drain_timeout:g} s"
            self.tell(
                reasons.CREDENTIALS_ROTATED,
                f"Engines have new credentials (epoch {policy.credential_epoch}); the old ones "
                f"{last}.",
            )
        if at_once:
            for entry in record.generations:
                retired = tuple(
                    replace(each, state=Retirement.REVOKED)
                    if each.state is Retirement.VALID
                    else each
                    for each in entry.retired
                )
                record = record.put(replace(entry, retired=retired))
        return record

    def renewed(self, entry: GenerationEntry, state: Retirement) -> GenerationEntry:
        old = RetiredToken(token=entry.token, state=state)
        return replace(entry, token=self.case.new_token(), retired=(*entry.retired, old))

    # Time

    def run_clocks(self, record: Record) -> Record:
        """Fence what has drained. A clock that stops begins anew."""
        case = self.case
        current = record.current
        drifts = self._drifts()
        # With the policy Fence the engines that left the spec's identity are what comes after it.
        in_use = current.state is State.LIVE and case.ready_users(current.id) > 0
        for entry in record.generations:
            match entry.state:
                case State.DRAINING:
                    runs, cause = in_use or drifts, Cause.DRAINED
                    why = f"engines have used {current.id} for {case.policy.drain_timeout:g} s"
                case State.PENDING:
                    runs, cause = not self._wanted_by_pods(entry.id), Cause.DRAINED
                    why = "no engine runs its identity any more"
                case State.LIVE:
                    runs, cause = drifts, Cause.POOL_DRIFTED
                    why = "engines run another identity without a Secret of the tier"
                case _:
                    continue
            entry, over = self._ticked(entry, runs=runs)
            record = record.put(self.fence(entry, cause, why) if over else entry)
        for entry in record.generations:
            retired = tuple(map(self._aged, entry.retired))
            if retired != entry.retired:
                record = record.put(replace(entry, retired=retired))
        return record

    def bound(self, record: Record) -> Record:
        """Edits that no engine ever followed leave generations behind: the oldest go."""
        for entry in record.generations:
            held = sum(each.has_access for each in record.generations)
            unused = entry.state is State.DRAINING and not self.case.users(entry.id)
            if held > MOST_GENERATIONS and unused:
                why = f"no pod uses it, and there are more than {MOST_GENERATIONS} generations"
                record = record.put(self.fence(entry, Cause.DRAINED, why))
        return record

    def _drifts(self) -> bool:
        """Whether the pool left the spec's identity, and the policy is to fence then."""
        fences = self.case.policy.on_pool_drift is OnPoolDrift.FENCE
        return fences and any(pod.ready for pod in self.case.drifted().values())

    def _wanted_by_pods(self, generation: str) -> bool:
        return generation in self.case.offered or bool(self.case.users(generation))

    def _ticked(self, entry: GenerationEntry, *, runs: bool) -> tuple[GenerationEntry, bool]:
        # The time of one state says nothing of another.
        key = f"{entry.id} {entry.state}"
        drained, written = self._clock(key, entry.drained, runs=runs)
        over = runs and drained >= self.case.policy.drain_timeout
        return replace(entry, drained=written), over

    def _aged(self, retired: RetiredToken) -> RetiredToken:
        if retired.state is not Retirement.VALID:
            return retired
        drained, written = self._clock(retired.token, retired.drained, runs=True)
        over = drained >= self.case.policy.drain_timeout
        return replace(
            retired, drained=written, state=Retirement.FENCED if over else Retirement.VALID
        )

    def _clock(self, key: str, written: float, *, runs: bool) -> tuple[float, float]:
        """Seconds now, and those to write down: none while paused, when only fences are written."""
        paused = self.case.policy.paused
        if not runs:
            if paused and written:
                self.clocks[key] = STOPPED
            return 0.0, written if paused else 0.0
        before = self.case.clocks.get(key, written or STOPPED)
        now = max(before, 0.0)
        if before != STOPPED:
            # The first look starts the clock: nobody knows for how long it might have run.
            now += min(max(self.case.elapsed, 0.0), MOST_ELAPSED)
        self.clocks[key] = now
        if paused:
            return now, written
        grain = max(self.case.policy.drain_timeout / CHECKPOINTS, 1.0)
        return now, math.floor(now / grain) * grain

    # Fences

    def fence(self, entry: GenerationEntry, cause: Cause, why: str) -> GenerationEntry:
        self.tell(
            reasons.GENERATION_FENCED,
            f"Generation {entry.id} has no access any more: {why}." + self._still(entry.id),
        )
        return self.moved(entry, State.FENCED, cause=cause)

    def _still(self, generation: str) -> str:
        count = self.case.ready_users(generation)
        if count == 1:
            return " 1 Ready engine still uses it and misses."
        return f" {count} Ready engines still use it and miss." if count else ""

    def settle(self, record: Record) -> Record:
        """What is fenced and empty everywhere goes on: to nothing, or back to life."""
        fences = self.case.fences
        for entry in record.generations:
            fenced = entry.state in (State.FENCED, State.CONTAMINATED)
            if fenced and fences.empty(entry.id):
                entry = replace(entry, state=State.PURGED, since=self.case.now)
                record = record.put(entry)
                self.tell(
                    reasons.GENERATION_PURGED,
                    f"Generation {entry.id} is fenced on all ranks, and its keys are deleted.",
                )
        current = record.current
        if not current.has_access and self.case.wanted_id == current.id:
            record = self._revive(record, current)
        return self._let_go(record)

    def _revive(self, record: Record, entry: GenerationEntry) -> Record:
        if self.case.policy.paused:
            # Its Secret is not written now.
            return record
        poisoned = entry.cause in POISONED
        # A rank that came back with an old file let its pods store again, until it was told.
        clean = entry.state is State.PURGED and self.case.fences.empty(entry.id)
        if not (clean if poisoned else entry.serves_at_once):
            return record
        if entry.cause is Cause.POOL_DRIFTED and self._drifts():
            return record
        if self.case.foreign(entry.id, entry.identity) is not None:
            return record
        if poisoned:
            # Who wrote to it may have the old tokens still.
            entry = self.renewed(entry, Retirement.FENCED)
            entry = replace(entry, retired=tuple(map(_without_keys, entry.retired)))
        self.tell(
            reasons.GENERATION_LIVE,
            f"Generation {entry.id} is the one for engines to use again"
            + (", with new credentials." if poisoned else "."),
        )
        return record.put(self.moved(entry, State.LIVE))

    def _let_go(self, record: Record) -> Record:
        """Forget tokens and generations that nobody holds any more."""
        fences, policy, leaving = self.case.fences, self.case.policy, set()
        if policy.paused:
            return record
        makes_anew = policy.on_pool_drift is OnPoolDrift.NEW_GENERATION
        for entry in record.generations:
            kept = tuple(
                each
                for each in entry.retired
                if each.token not in self.ended or not fences.without_sessions(each.token)
            )
            if kept != entry.retired and fences.hold:
                entry = replace(entry, retired=kept)
                record = record.put(entry)
            unused = (
                entry.state is State.PURGED
                and entry.id not in (record.current_id, self.case.wanted_id)
                and not self.case.users(entry.id)
                and fences.hold
                and fences.without_sessions(*entry.tokens())
            )
            if unused and makes_anew and entry.id in self.case.offered:
                # Gone and made for them in one look: both have the same Secret.
                record = record.put(self.pending(entry.id, self.case.offered[entry.id]))
            elif unused and entry.id in self.case.kept:
                leaving.add(entry.id)
            elif unused:
                record = record.without(entry.id)
                self.tell(
                    reasons.GENERATION_GONE,
                    f"Generation {entry.id} is gone: nobody uses it, its Secret is deleted.",
                )
        self.leaving = frozenset(leaving)
        return record


MOST_NOTE = 400
MOST_GENERATIONS = 8
"""Pods may show any number of identities; a tier keeps no more generations than this."""

_RULES: tuple[Callable[[_Look, Record], Record], ...] = (
    _Look.heed_spec,
    _Look.heed_salt,
    _Look.heed_drift,
    _Look.contaminate,
    _Look.rotate,
    _Look.run_clocks,
    _Look.bound,
    _Look.settle,
)


def _without_keys(each: RetiredToken) -> RetiredToken:
    return replace(each, state=Retirement.FENCED) if each.state is Retirement.VALID else each


def _why(entry: GenerationEntry) -> str:
    return entry.note or (entry.cause.value if entry.cause else entry.state.value)
