"""What a reconcile saw and what it decided, as plain data that prints well."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from kvtier.api.types import KIND, KVCacheTier
from kvtier.generation.case import Fences
from kvtier.generation.record import Record
from kvtier.placement.findings import Finding
from kvtier.placement.topology import Engine
from kvtier.store.protocol import PeerCertificate

Object = Mapping[str, Any]
ChildKey = tuple[str, str]
"""(kind, name) of a child in the tier's namespace."""


def child_key(obj: Object) -> ChildKey:
    return obj["kind"], obj["metadata"]["name"]


def is_leftover(obj: Object, tier: KVCacheTier) -> bool:
    """Whether the object is one of a deleted tier of the same name, soon to be collected."""
    return any(
        owner.get("controller")
        and owner.get("kind") == KIND
        and owner.get("name") == tier.metadata.name
        and owner.get("uid") != tier.metadata.uid
        for owner in obj["metadata"].get("ownerReferences", [])
    )


def is_owned_by(obj: Object, uid: str) -> bool:
    """Whether the object's controller is the tier with this uid."""
    return any(
        owner.get("uid") == uid and owner.get("controller")
        for owner in obj["metadata"].get("ownerReferences", [])
    )


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """What one rank's Valkey answered.

    ``config`` holds CONFIG GET readback, ``run_id`` names the run of the server, ``acl_revision``
    what it has loaded (None when it has loaded none). ``users_set``: this run was told the record's
    users, and no fenced one reaches a key; ``load_due``: enough time has passed since for the
    kubelet to have brought the file. ``certificate`` is what it served (None without TLS),
    ``error`` why there is no answer; ``untrusted``: because of its certificate.
    """

    config: Mapping[str, str] = field(default_factory=dict)
    run_id: str = ""
    acl_revision: str | None = None
    users_set: bool = False
    load_due: bool = False
    certificate: PeerCertificate | None = None
    error: str | None = None
    untrusted: bool = False


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node as read.

    ``ready`` is the status of its Ready condition (True, False, Unknown, or nothing yet), ``since``
    when that last changed (RFC 3339). ``unreachable``: it carries the taint of that name.
    ``allocatable_memory`` is in bytes, None where that cannot be read.
    """

    exists: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)
    ready: str | None = None
    since: str | None = None
    unreachable: bool = False
    cordoned: bool = False
    allocatable_memory: int | None = None

    @property
    def reports(self) -> bool:
        """Whether its kubelet can still tell of its pods. One that is not ready does report."""
        silent = self.ready == "Unknown" or (self.ready == "False" and self.unreachable)
        return self.exists and not silent


@dataclass(frozen=True, slots=True)
class TlsFacts:
    """What the Secret that a tier names for TLS holds.

    ``ca`` is its CA in PEM, ``fingerprint`` the SHA-256 of its certificate in hex, ``not_after``
    when that ends, in seconds since the epoch; None where it cannot be read. ``problem`` is
    (reason, message) of why ranks cannot be started with it.
    """

    ca: str | None = None
    fingerprint: str | None = None
    not_after: float | None = None
    problem: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Observed:
    """One tier and everything around it, as read.

    ``refusals`` say of ranks without a pod why they got none, where that is known. ``keys`` are
    those of the ranks that were asked how many they hold. ``candidates`` are the nodes that ranks
    without one might run on, None where nobody asked. ``leaving`` are generations whose Secret
    nobody needs, ``fences`` what the ranks proved before this look. ``to_restart`` are the uids of
    ranks' pods that somebody asked to restart.
    """

    tier: KVCacheTier
    record: Record
    children: Mapping[ChildKey, Object] = field(default_factory=dict)
    pods: Sequence[Object] = ()
    nodes: Mapping[str, NodeFacts] = field(default_factory=dict)
    stores: Mapping[int, StoreFacts] = field(default_factory=dict)
    tls: TlsFacts | None = None
    refusals: Mapping[int, str] = field(default_factory=dict)
    engines: Sequence[Engine] = ()
    keys: Mapping[int, int] = field(default_factory=dict)
    candidates: Mapping[str, NodeFacts] | None = None
    leaving: frozenset[str] = frozenset()
    fences: Fences | None = None
    to_restart: frozenset[str] = frozenset()


class EventType(StrEnum):
    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True)
class EventSpec:
    type: EventType
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Apply:
    """Bring a child that exists back to the intent; ``field`` is the first that differs."""

    intent: Object
    uid: str
    field: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete exactly this object. ``why`` is one sentence for the event, where there is one."""

    kind: str
    name: str
    uid: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class SetConfig:
    """CONFIG SET on one rank, then read back."""

    rank: int
    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SetUsers:
    """Give one rank the record's users at once, without its file, and prove what is fenced."""

    rank: int


@dataclass(frozen=True, slots=True)
class LoadAcl:
    """Make one rank load its ACL file, in one transaction with the users of the record."""

    rank: int


@dataclass(frozen=True, slots=True)
class ReloadCertificate:
    """Make one rank load the mounted certificate again, until it serves the one wanted."""

    rank: int
    fingerprint: str


StoreAction = SetConfig | SetUsers | LoadAcl | ReloadCertificate


@dataclass(frozen=True, slots=True)
class RankState:
    """One rank as its pod shows it, times in RFC 3339.

    ``started_at`` is when the container started, ``unready_since`` since when its pod is not Ready,
    ``leaves_at`` by when a pod that is being deleted should be gone. ``restart_hash`` and
    ``restarted_at`` are what the pod was made from, at ``created_at``. ``tls``: its server
    speaks TLS only. ``held``: it was deleted by force already, and only finalizers keep it.
    """

    rank: int
    pod: str | None = None
    pod_uid: str | None = None
    address: str | None = None
    container: str | None = None
    node: str | None = None
    ready: bool = False
    started_at: str | None = None
    waiting: str | None = None
    restart_hash: str | None = None
    restarted_at: str | None = None
    created_at: str | None = None
    unready_since: str | None = None
    leaves_at: str | None = None
    tls: bool = False
    held: bool = False
    affinity: Object = field(default_factory=dict)

    @property
    def leaving(self) -> bool:
        return self.leaves_at is not None

    @property
    def fell_silent(self) -> bool:
        """Whether this run of its server was ready and is not any more, though it runs."""
        return bool(
            not self.ready
            and not self.leaving
            and self.started_at
            and self.unready_since
            and self.unready_since > self.started_at
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do, in this order: creates, applies, pod deletions, store actions.

    ``moves`` are pods of ranks that hold nothing, to be made again where the ranks belong;
    ``moving`` all such ranks, also those whose StatefulSet does not know yet where that is.
    ``lost`` are pods to delete by force, since no kubelet will.
    ``conflicts`` are names that others have, ``leftovers`` names that a deleted tier of the same
    name still has. ``outdated`` are the ranks whose pods were not made from what the spec asks for.
    ``restart_reason`` is the field whose change asks for the restart that is due, if one is known.
    ``unneeded`` are Secrets of generations that nobody uses any more.
    ``pending`` says what is not done while the tier is paused, ``missing`` which children that
    leaves out. ``waits_for`` is (reason, message) of why nothing is made or restarted that mounts
    the TLS Secret, ``rejected`` why nothing is made at all. ``held`` is why ranks that are to
    restart do not yet.
    """

    creates: tuple[Object, ...] = ()
    applies: tuple[Apply, ...] = ()
    restarts: tuple[Delete, ...] = ()
    lost: tuple[Delete, ...] = ()
    moves: tuple[Delete, ...] = ()
    moving: tuple[int, ...] = ()
    store_actions: tuple[StoreAction, ...] = ()
    conflicts: tuple[ChildKey, ...] = ()
    leftovers: tuple[ChildKey, ...] = ()
    outdated: tuple[int, ...] = ()
    unneeded: tuple[Delete, ...] = ()
    restart_reason: str | None = None
    pending: tuple[str, ...] = ()
    missing: tuple[ChildKey, ...] = ()
    waits_for: tuple[str, str] | None = None
    rejected: Finding | None = None
    held: str | None = None
    events: tuple[EventSpec, ...] = ()
    ranks: tuple[RankState, ...] = ()
    requeue_after: float | None = None
