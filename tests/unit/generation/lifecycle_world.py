"""A tier around the pure machine: pods with tokens, servers with users and keys, and a record that
is written before servers are told. What the machine may never do is asserted at every look."""

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count

from lifecycle_growth import check_growth, ended

from kvtier.api.types import KVCacheTierSpec
from kvtier.generation.acl import acl_file, acl_revision, fenced_tokens, key_prefix, users
from kvtier.generation.case import Case, Fences, Pod, Policy
from kvtier.generation.entry import Cause, GenerationEntry, GenerationState
from kvtier.generation.identity import id_of, identity
from kvtier.generation.lifecycle import MOST_ELAPSED, MOST_GENERATIONS, Step, advance
from kvtier.generation.pods.read import PodIdentity
from kvtier.generation.record import Record, from_json, new_record, to_json
from kvtier.store.fake_server import FakeServer
from small_tier import spec

RANKS = (0, 1)
TIMEOUT = 60.0
DURING = 1e-6
State = GenerationState
POISON = (Cause.CONTAMINATED, Cause.SALT_CHANGED)
WITHOUT = (State.FENCED, State.PURGED, State.CONTAMINATED)


@cache
def parsed(revision: str, salt: str) -> KVCacheTierSpec:
    document = spec()
    document["model"] |= {"revision": revision, "salt": salt}
    return KVCacheTierSpec.model_validate(document)


def named(revision: str, salt: str = "1") -> str:
    return id_of(identity(parsed(revision, salt)))


@dataclass(slots=True)
class Engine:
    """A pod: what it runs, whose Secret it mounts, and every token that it read there."""

    revision: str
    mounts: str | None
    ready: bool = True
    tokens: set[str] = field(default_factory=set)

    @property
    def pod(self) -> Pod:
        found = PodIdentity(
            generations=frozenset({self.mounts} - {None}),  # type: ignore[arg-type]
            fields={"revision": self.revision, "tokenizerRevision": self.revision},
            settings={},
            unreadable={},
            declared=False,
        )
        return Pod(ready=self.ready, identity=found)


@dataclass(frozen=True, slots=True)
class Proof:
    run: str
    revision: str
    gone: bool
    delivered: bool


class Tier:
    """The record in its Secret, servers, pods, and one operator process after the other."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self.wanted = ("r1", "1")
        self.policy = Policy(drain_timeout=TIMEOUT)
        self.pods: dict[str, Engine] = {}
        self.record = new_record(
            parsed(*self.wanted),
            operator_token=self.token(),
            engine_token=self.token(),
            probe_token=self.token(),
        )
        self.secrets = {self.record.current_id}
        self.servers = {
            rank: FakeServer(acl_file=acl_file(self.record, rank=rank)) for rank in RANKS
        }
        self.dead: set[str] = set()
        """Tokens that lost their keys for more than time: they never get any again."""
        self.counted: dict[tuple[str, str], float] = {}
        """Seconds for which what fences by time was seen, by generation and kind."""
        self.start()

    def token(self) -> str:
        return f"token-{next(self._numbers):04d}"

    def start(self) -> None:
        """Another process of the operator: it knows the record, and nothing else."""
        self.record = from_json(to_json(self.record))
        self.clocks: dict[str, float] = {}
        self.first = True
        self.proofs: dict[int, Proof] = {}
        self.purged: dict[tuple[str, int], str] = {}
        self.sessions: dict[int, tuple[str, Counter[str]]] = {}

    # Servers

    def tell(self, rank: int, *, load: bool = False) -> None:
        """SETUSER of the record's users, or ACL LOAD with them behind it; then the proof."""
        server, record = self.servers[rank], self.record
        if load:
            server.load_users()
        server.set_users(users(record, rank=rank))
        self.proofs[rank] = Proof(
            run=server.run_id,
            revision=acl_revision(record, rank=rank),
            gone=not any(
                self.reads(rank, token, generation)
                for token, generation in fenced_tokens(record).items()
            ),
            delivered=load and server.acl_file == acl_file(record, rank=rank),
        )
        self.sessions.pop(rank, None)

    def deliver(self, rank: int) -> None:
        self.servers[rank].acl_file = acl_file(self.record, rank=rank)

    def proven(self, rank: int) -> Proof | None:
        proof, server = self.proofs.get(rank), self.servers[rank]
        told = (server.run_id, acl_revision(self.record, rank=rank))
        return proof if proof and proof.gone and (proof.run, proof.revision) == told else None

    def purge(self, rank: int) -> None:
        if self.proven(rank) is None:
            return
        server = self.servers[rank]
        for entry in self.record.generations:
            if self.is_emptied(entry):
                prefix = key_prefix(entry.id, rank)
                server.keys = {key for key in server.keys if not key.startswith(f"{prefix}@")}
                self.purged[entry.id, rank] = server.run_id

    def is_emptied(self, entry: GenerationEntry) -> bool:
        waits = entry.state is State.PURGED and entry.id == self.record.current_id
        return entry.state in (State.FENCED, State.CONTAMINATED) or waits

    def count_sessions(self, rank: int) -> None:
        if self.proven(rank) is not None:
            found: Counter[str] = Counter()
            for pod in self.pods.values():
                found.update(t for t in pod.tokens if pod.ready and self.connects(rank, t))
            self.sessions[rank] = (self.servers[rank].run_id, found)

    def connects(self, rank: int, token: str) -> bool:
        user = self.servers[rank].users.get(token)
        return user is not None and user.enabled

    def reads(self, rank: int, token: str, generation: str) -> bool:
        user = self.servers[rank].users.get(token)
        key = f"{key_prefix(generation, rank)}@x"
        return user is not None and user.enabled and user.may_run("get", key)

    def write(self, name: str) -> None:
        """An engine stores wherever one of its tokens may."""
        pod = self.pods[name]
        for rank, server in self.servers.items():
            if pod.mounts and any(self.reads(rank, token, pod.mounts) for token in pod.tokens):
                server.keys.add(f"{key_prefix(pod.mounts, rank)}@{name}")

    # Pods

    def run(self, name: str, *, revision: str, mounts: str | None, ready: bool = True) -> None:
        if mounts is None or mounts in self.secrets:
            self.pods[name] = Engine(revision=revision, mounts=mounts, ready=ready)
            self._refresh_mounts()

    def _refresh_mounts(self) -> None:
        for pod in self.pods.values():
            found = self.record.find(pod.mounts) if pod.mounts else None
            if found is not None:
                pod.tokens.add(found.token)

    def foreign(self, entry: GenerationEntry) -> bool:
        runs = {pod.revision for pod in self.pods.values() if pod.mounts == entry.id}
        return bool(runs - {entry.identity["revision"]}) if entry.identity else False

    # A look

    def fences(self) -> Fences:
        proofs = {rank: proof for rank in RANKS if (proof := self.proven(rank))}
        known = {
            rank: found
            for rank, (run, found) in self.sessions.items()
            if rank in proofs and run == self.servers[rank].run_id
        }
        return Fences(
            ranks=frozenset(RANKS),
            gone=frozenset(proofs),
            delivered=frozenset(rank for rank, proof in proofs.items() if proof.delivered),
            purged={
                entry.id: frozenset(
                    rank
                    for rank, proof in proofs.items()
                    if self.purged.get((entry.id, rank)) == proof.run
                )
                for entry in self.record.generations
            },
            sessions=sum(known.values(), Counter()) if len(known) == len(RANKS) else None,
        )

    def case(self, elapsed: float) -> Case:
        wanted = identity(parsed(*self.wanted))
        offered = {}
        for pod in self.pods.values():
            if pod.mounts is None and pod.revision != wanted["revision"]:
                fields = identity(parsed(pod.revision, self.wanted[1]))
                offered[id_of(fields)] = fields
        emptied = {entry.id for entry in self.record.generations if self.is_emptied(entry)}
        self.purged = {place: run for place, run in self.purged.items() if place[0] in emptied}
        return Case(
            wanted=wanted,
            policy=self.policy,
            pods={name: pod.pod for name, pod in self.pods.items()},
            fences=self.fences(),
            elapsed=0.0 if self.first else elapsed,
            now="2026-01-01T00:00:00Z",
            new_token=self.token,
            clocks=self.clocks,
            offered=offered,
            kept=frozenset(self.secrets),
        )

    def look(self, elapsed: float = 0.0, *, written: bool = True) -> Step:
        """One look of the operator; not ``written``: it is stopped before it writes."""
        case, before = self.case(elapsed), self.record
        step = advance(before, case)
        self._check_step(before, case, step)
        if not written:
            self.start()
            return step
        self.counted = self._counted_after(step.record, case)
        self._bury(before, step.record)
        self.record, self.clocks, self.first = step.record, step.clocks, False
        self.secrets = {e.id for e in step.record.generations if e.id not in step.leaving}
        self._refresh_mounts()
        self.check_servers()
        return step

    def settle(self, seconds: float = 0.0) -> None:
        """Everybody works: looks, servers told, files delivered, keys purged, sessions counted."""
        passed = 0.0
        while True:
            for _ in range(4):
                self.look()
                for rank in RANKS:
                    self.tell(rank)
                    self.deliver(rank)
                    self.tell(rank, load=True)
                    self.purge(rank)
                    self.count_sessions(rank)
            if passed >= seconds:
                return
            turn = min(15.0, seconds - passed)
            passed += turn
            self.look(turn)

    # What may never be

    def running(self, record: Record, case: Case) -> dict[tuple[str, str], bool]:
        """What fences by time, and whether it is so now."""
        current = record.current
        in_use = current.state is State.LIVE and any(
            pod.ready for pod in self.pods.values() if pod.mounts == current.id
        )
        fence = self.policy.on_pool_drift.value == "Fence"
        drifts = fence and any(
            pod.ready and pod.mounts is None and pod.revision != self.wanted[0]
            for pod in self.pods.values()
        )
        found = {}
        for entry in record.generations:
            wanted = entry.id in case.offered or entry.id in {p.mounts for p in self.pods.values()}
            found[entry.id, State.DRAINING] = in_use or drifts
            found[entry.id, State.LIVE] = drifts
            found[entry.id, State.PENDING] = not wanted
        return found

    def _counted_after(self, record: Record, case: Case) -> dict[tuple[str, str], float]:
        passed = min(max(case.elapsed, 0.0), MOST_ELAPSED)
        states = {(entry.id, entry.state.value) for entry in record.generations}
        return {
            key: self.counted[key] + passed if key in self.counted else 0.0
            for key, runs in self.running(record, case).items()
            if runs and (key[0], str(key[1])) in states
        }

    def _check_step(self, before: Record, case: Case, step: Step) -> None:
        after = step.record
        assert from_json(to_json(after)) == after
        check_growth(before, case, after)
        live = [entry.id for entry in after.generations if entry.state is State.LIVE]
        assert len(live) <= 1
        if not self.policy.paused:
            assert after.current_id == case.wanted_id
            assert live in ([], [case.wanted_id])
        for old in before.generations:
            new = after.find(old.id)
            if new is None:
                self._check_removal(old, case)
            elif old.has_access and not new.has_access:
                self._check_loss(old, new, after, case)
            elif new.has_access and not old.has_access:
                self._check_gain(old, new, case)
        for token in self.dead:
            for rank in RANKS:
                rules = users(after, rank=rank).get(token, ())
                assert not [rule for rule in rules if rule.startswith("~")], "a fence was lifted"
        self._check_fixed_point(case, step)

    def _check_removal(self, old: GenerationEntry, case: Case) -> None:
        assert old.id not in {pod.mounts for pod in self.pods.values()}
        assert not old.has_access
        assert case.fences.hold
        assert case.fences.sessions is not None
        assert not any(case.fences.sessions.get(token) for token in old.tokens())

    def _check_loss(
        self, old: GenerationEntry, new: GenerationEntry, after: Record, case: Case
    ) -> None:
        if new.cause is Cause.SALT_CHANGED:
            assert old.identity is not None
            assert old.identity["salt"] != case.wanted["salt"]
        elif new.cause is Cause.CONTAMINATED:
            assert self.foreign(new)
        elif case.users(old.id) or len(after.generations) <= MOST_GENERATIONS:
            # In the look itself it may have come into the state that the clock is of.
            state = State.DRAINING if old.state is State.LIVE else old.state
            if new.cause is Cause.POOL_DRIFTED or (
                old.state is State.PENDING and new.id == after.current_id
            ):
                state = State.LIVE
            runs = self.running(after, case).get((old.id, state), False)
            passed = min(max(case.elapsed, 0.0), MOST_ELAPSED)
            counted = self.counted.get((old.id, state.value), -passed) + passed
            assert runs, "what fences by time is not so"
            assert counted >= self.policy.drain_timeout - DURING, f"{counted} s only"

    def _check_gain(self, old: GenerationEntry, new: GenerationEntry, case: Case) -> None:
        assert not self.foreign(new)
        if old.cause not in POISON:
            return
        assert new.token not in set(old.tokens()), "with the token that was fenced"
        assert case.fences.hold
        for rank, server in self.servers.items():
            prefix = key_prefix(new.id, rank)
            left = [key for key in server.keys if key.startswith(f"{prefix}@")]
            assert not left, f"rank {rank} still has {left}"

    def _check_fixed_point(self, case: Case, step: Step) -> None:
        """Until something else is proven. A token that ends is forgotten by a later look than the
        one that ended it, also where no rank has to be told."""
        same = ended(self.record) == ended(step.record) and all(
            acl_revision(self.record, rank=rank) == acl_revision(step.record, rank=rank)
            for rank in RANKS
        )
        again = replace(
            case,
            elapsed=0.0,
            clocks=step.clocks,
            fences=case.fences if same else Fences(ranks=frozenset(RANKS)),
        )
        second = advance(step.record, again)
        assert second.record == step.record
        assert not second.told

    def _bury(self, before: Record, after: Record) -> None:
        for entry in after.generations:
            if not entry.has_access and entry.cause in POISON:
                self.dead |= set(entry.tokens())
        self.dead |= ended(after)
        # Whatever the record forgets of fenced ones stays dead too.
        kept = {token for entry in after.generations for token in entry.tokens()}
        gone = {token for entry in before.generations for token in entry.tokens()} - kept
        self.dead |= gone

    def check_servers(self) -> None:
        """Where the fence is proven, no token that is fenced or dead reaches a key."""
        owners = fenced_tokens(self.record)
        ids = [entry.id for entry in self.record.generations]
        for rank in RANKS:
            if self.proven(rank) is None:
                continue
            for token in owners.keys() | self.dead:
                for generation in ids:
                    assert not self.reads(rank, token, generation), f"{token} reads on {rank}"

    def set_policy(self, **changes: object) -> None:
        self.policy = replace(self.policy, **changes)  # type: ignore[arg-type]
