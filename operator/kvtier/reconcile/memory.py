"""What the reconciler keeps of each tier between two runs. All of it can be lost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from kvtier.admission.signals import TokenSignal
from kvtier.breakeven.assessment import LinkFigures
from kvtier.breakeven.observed import SeenRate
from kvtier.cluster.protocol import Object
from kvtier.generation.record import Record
from kvtier.placement.hysteresis import Shown
from kvtier.placement.judgement import Judgement
from kvtier.placement.topology import Engine
from kvtier.plan.admission import PolicyTold, View
from kvtier.plan.gateway import Around, Problem
from kvtier.plan.limiters import Limiters
from kvtier.plan.observed import (
    ChildKey,
    NodeFacts,
    RankState,
    StoreFacts,
    TlsFacts,
    is_owned_by,
)
from kvtier.plan.planned import Asked
from kvtier.plan.pool import PoolPod
from kvtier.plan.probing import NodeResult, Places
from kvtier.plan.rank_events import Down

SECRETS_SECONDS = 20.0
"""Most ranks are there within so long; then Secrets are looked at once in so many seconds."""
Key = tuple[str, str]
"""(namespace, name) of a tier."""


@dataclass(slots=True)
class ProbeMemory:
    """A tier's probe as far as it has come.

    ``looked``: whether a Job of another process was looked for. ``taken``: its name is another's.
    ``job`` is the uid of the one that runs from ``node``, ``pending`` are the nodes that come after
    it, ``results`` those that are done. ``places`` are what this probe, or the last one, is of,
    ``began`` when, ``asked`` the request that it has heard. ``next_look`` and ``not_before`` are
    monotonic.
    """

    looked: bool = False
    taken: bool = False
    job: str | None = None
    node: str = ""
    pending: list[str] = field(default_factory=list)
    results: list[NodeResult] = field(default_factory=list)
    places: Places | None = None
    began: datetime | None = None
    asked: str | None = None
    failures: int = 0
    next_look: float = 0.0
    not_before: float = 0.0


@dataclass(frozen=True, slots=True)
class AccessProof:
    """What one run of a rank's server was told and proved.

    ``of`` are its pod's uid and its container, ``revision`` that of the users it was given;
    ``gone``: no fenced token reaches a key; ``delivered``: it has loaded the file of the revision.
    """

    of: tuple[str | None, str | None]
    run_id: str
    revision: str
    gone: bool
    delivered: bool = False

    @property
    def run(self) -> str:
        return "/".join((*map(str, self.of), self.run_id))


@dataclass(slots=True)
class PlannedMemory:
    """A tier's planned work. ``announced`` is when this process first saw it announced (monotonic),
    ``asked`` which request to roll it has heard, ``rolled`` when ranks restarted last for it, and
    ``gone`` the uids of their pods: one that cannot be deleted is tried again for ever.
    """

    announced: float | None = None
    asked: Asked | None = None
    rolled: float | None = None
    gone: frozenset[str] = frozenset()


@dataclass(slots=True)
class GatewayMemory:
    """A tier's BackendTrafficPolicy. ``own`` is what there is of it and ``around`` what stands
    there too, as read at ``looked`` for the ``generation`` of the spec; ``wrote`` is when it was
    last written. ``refused`` is what was said against it, for which it is not written again before
    ``not_before``. Times are monotonic.
    """

    own: Object | None = None
    around: Around = field(default_factory=Around)
    looked: float = float("-inf")
    generation: object = None
    wrote: float = float("-inf")
    refused: Problem | None = None
    not_before: float = float("-inf")
    told: PolicyTold | None = None


@dataclass(slots=True)
class TierMemory:
    """One tier as last read.

    Kinds that no event has named dirty are not read again until the resync; Secrets send no events
    (they are neither listed nor watched), so they are read at the resync only.
    """

    body: Object | None = None
    children: dict[ChildKey, Object] = field(default_factory=dict)
    pods: list[Object] = field(default_factory=list)
    engines: dict[str, Engine] = field(default_factory=dict)
    nodes: dict[str, NodeFacts] = field(default_factory=dict)
    stale_nodes: set[str] = field(default_factory=set)
    """Nodes that an event showed otherwise than they were read."""
    candidates: dict[str, NodeFacts] | None = None
    """Nodes that ranks without one might run on, None if they are to be listed."""
    stores: dict[int, StoreFacts] = field(default_factory=dict)
    tls: TlsFacts | None = None
    tls_secret: str | None = None
    """The Secret that ``tls`` was read of; None: it is to be read again."""
    ca: str | None = None
    """Whom sessions with ranks trust (PEM), as of the last reconcile."""
    served_until: dict[int, float] = field(default_factory=dict)
    """By rank: when the certificate ends that it last served, in seconds since the epoch."""
    proven: dict[int, str] = field(default_factory=dict)
    """By rank: the run of the server, settings and users that were last seen to be as wanted."""
    access: dict[int, AccessProof] = field(default_factory=dict)
    """By rank: what it proved last of who may read."""
    unchecked: set[int] = field(default_factory=set)
    """The ranks that are to prove it again, whatever was said since."""
    loaded_at: dict[int, float] = field(default_factory=dict)
    """By rank: when it was last told its users, with its ACL file or without (monotonic)."""
    purged: dict[tuple[str, int], str] = field(default_factory=dict)
    """By generation and rank: the run of the server that holds no key of it."""
    purging: dict[tuple[str, int], tuple[str, int]] = field(default_factory=dict)
    """By generation and rank: the run whose keys are being deleted, and the cursor."""
    sessions: dict[int, tuple[str, Mapping[str, int]]] = field(default_factory=dict)
    """By rank: a run of its server, and the sessions of each user then."""
    sessions_at: dict[int, float] = field(default_factory=dict)
    fencing: dict[tuple[str, str], float] = field(default_factory=dict)
    """By generation and stage that is not proven yet: when its fence was decided (monotonic)."""
    purge_began: dict[str, float] = field(default_factory=dict)
    """By generation: when its first key was deleted (monotonic)."""
    clocks: Mapping[str, float] = field(default_factory=dict)
    """Seconds of drains, by generation or token."""
    looked_at: float | None = None
    """Monotonic time of the last look at the generations."""
    pool: dict[str, PoolPod] = field(default_factory=dict)
    """The pods of the pool that have not ended, by name."""
    record: Record | None = None
    full_at: float = float("-inf")
    """Monotonic time of the last full read."""
    secrets_at: float = float("-inf")
    """Monotonic time of the last look at its Secrets."""
    restart_reason: str | None = None
    written: Object | None = None
    """The status as last written by this process."""
    rereads: int = 0
    """How often in a row another writer was in between."""
    waiting_since: float | None = None
    """Monotonic time at which ranks were first found not to be ready, None if all are."""
    down: Down = field(default_factory=dict)
    asked_at: dict[int, tuple[str, float]] = field(default_factory=dict)
    """By rank that did not answer: the run of its server, and when it was tried last."""
    probe: ProbeMemory = field(default_factory=ProbeMemory)
    futile: dict[ChildKey, str] = field(default_factory=dict)
    """By child: the resourceVersion at which applying the intent changed nothing."""

    link: LinkFigures | None = None
    """The newest link that was measured; None: none was, or it is not known any more."""
    shown: Shown | None = None
    """The verdict that people see, and what newer probes say."""
    seen: SeenRate | None = None
    """The prefill rate that engines show; None: not known yet."""
    watches_engines: bool = False
    """Whether somebody looks: without, what the status keeps of it is of the past."""
    ranks: Sequence[RankState] = ()
    """The ranks as the last reconcile saw them."""
    runs: dict[int, str] = field(default_factory=dict)
    """By rank: the run of its server when it last answered for metrics."""
    tokens: TokenSignal | None = None
    """What engines counted since somebody last took it from here."""
    view: View | None = None
    """The tier's admission as last seen; None: nobody has looked."""
    admission_told: object = None
    """What a reconcile was last asked to write of it."""
    planned: PlannedMemory = field(default_factory=PlannedMemory)
    gateway: GatewayMemory = field(default_factory=GatewayMemory)
    judged: tuple[Mapping[str, Any], Judgement] | None = None
    """The last judgement, and what was known for it."""

    def needs_full_read(self, *, now: float, every: float) -> bool:
        return self.body is None or now - self.full_at >= every

    def may_lack_secrets(self, *, now: float) -> bool:
        """Whether ranks have waited for so long, since and since Secrets were read, that one may be
        missing: a pod cannot mount it then, and no event tells."""
        since = self.waiting_since
        return since is not None and now - max(since, self.secrets_at) >= SECRETS_SECONDS

    def check_access(self) -> None:
        """Have every rank prove again that fenced tokens reach no key; until then it holds."""
        self.unchecked = set(self.access)

    def forget_full_read(self) -> None:
        self.full_at = float("-inf")

    def note_waiting(self, ranks: Sequence[RankState], *, now: float) -> None:
        """Take down since when some rank is not ready. ``now`` is monotonic."""
        if all(state.ready for state in ranks):
            self.waiting_since = None
        elif self.waiting_since is None:
            self.waiting_since = now

    def certificate_ends(self, ranks: Sequence[RankState]) -> list[float]:
        """When the certificates end that the tier has: its Secret's, and those that ranks serve."""
        running = {state.rank for state in ranks if state.tls}
        served = [ends for rank, ends in self.served_until.items() if rank in running]
        found = self.tls.not_after if self.tls else None
        return served if found is None else [*served, found]

    def put(self, obj: Object) -> None:
        self.children[obj["kind"], obj["metadata"]["name"]] = obj

    def replace_kind(self, kind: str, objects: list[Object], *, uid: str) -> None:
        """Take a fresh list of one kind. Foreign objects that occupy a name stay until re-read."""
        foreign = {
            key: obj
            for key, obj in self.children.items()
            if key[0] == kind and not is_owned_by(obj, uid)
        }
        self.children = {key: obj for key, obj in self.children.items() if key[0] != kind}
        self.children |= foreign
        for obj in objects:
            self.put(obj)


class Memory:
    """The tiers that this process knows."""

    def __init__(self) -> None:
        self._tiers: dict[Key, TierMemory] = {}
        self.watches_engines = False
        self.limiters = Limiters()

    def of(self, key: Key) -> TierMemory:
        if key not in self._tiers:
            self._tiers[key] = TierMemory(watches_engines=self.watches_engines)
        return self._tiers[key]

    def find(self, key: Key) -> TierMemory | None:
        return self._tiers.get(key)

    def keys(self) -> list[Key]:
        """Every tier that was looked at and not forgotten."""
        return list(self._tiers)

    def renew(self, key: Key, body: Object) -> TierMemory:
        """The memory of the tier that has this name now: nothing is kept of one before it."""
        tier = self.of(key)
        if tier.body is not None and tier.body["metadata"]["uid"] != body["metadata"]["uid"]:
            self.forget(key)
            tier = self.of(key)
        tier.body = body
        return tier

    def forget(self, key: Key) -> None:
        self._tiers.pop(key, None)

    def tiers_with_engine(self, namespace: str, pod: str) -> list[Key]:
        """The tiers whose pool has, or had, a pod of this name."""
        return [
            key
            for key, tier in self._tiers.items()
            if key[0] == namespace and (pod in tier.engines or pod in tier.pool)
        ]

    def is_known_engine(
        self, key: Key, pod: str, engine: Engine | None, *, digest: str | None
    ) -> bool:
        """Whether an event of an engine's pod tells nothing that anybody looks at. ``digest`` is of
        what it runs, None if it has ended."""
        tier = self._tiers.get(key)
        if tier is None:
            return True
        known = tier.pool.get(pod)
        return tier.engines.get(pod) == engine and (known and known.digest) == digest

    def note_node(self, name: str, facts: NodeFacts) -> list[Key]:
        """Take down that a node is otherwise than it was read; the tiers that have something on
        it."""
        using = [
            (key, tier)
            for key, tier in self._tiers.items()
            if name in tier.nodes and tier.nodes[name] != facts
        ]
        for _, tier in using:
            tier.stale_nodes.add(name)
        return [key for key, _ in using]

    def is_known_version(self, key: Key, obj: Object) -> bool:
        """Whether an event only tells what this process wrote or has read already."""
        tier = self._tiers.get(key)
        if tier is None:
            return False
        known = tier.children.get((obj["kind"], obj["metadata"]["name"]))
        return (
            known is not None
            and known["metadata"].get("resourceVersion") == obj["metadata"]["resourceVersion"]
        )
