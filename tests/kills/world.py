"""A whole operator on fakes that can be struck at any call, and goes on as another process.

The queue, the watcher, the recorder and the reconciler are the real ones. Time jumps: whenever the
operator waits, the cluster's controllers, kubelets and garbage collector work, and once nobody has
anything to do the clock stands at the next timer.
"""

import asyncio
import base64
import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from kvtier.api.types import API_VERSION, KIND
from kvtier.cluster.fake import FakeCluster, Request, Stopped
from kvtier.cluster.protocol import EVENT, NODE, POD, SECRET, TIER, Object
from kvtier.controller import Watcher
from kvtier.generation.record import Record, from_json
from kvtier.metrics import Metrics
from kvtier.process import PACE
from kvtier.reconcile.events import Recorder
from kvtier.reconcile.fencing import Purger
from kvtier.reconcile.memory import Key, TierMemory
from kvtier.reconcile.queue import KeyedQueue
from kvtier.reconcile.reconciler import Reconciler, ReconcilerSettings
from kvtier.render.names import (
    POOL_LABEL,
    RANK_LABEL,
    RECORD_KEY,
    TIER_LABEL,
    TOKEN_KEY,
    acl_key,
    acl_name,
)
from kvtier.render.probe import NODE_ANNOTATION, PROBE_LABEL
from kvtier.render.render import RenderSettings
from kvtier.store.fake import FakeServer, FakeStores
from kvtier.store.protocol import Address
from kvtier.store.purge import Pace
from small_tier import probe_message, read_conf

KEY: Key = ("serving", "demo")
RESYNC = 300.0
QUIET = 35.0
"""Seconds without a write after which nothing more is to come but the resync; every retry of the
operator after one failure, and every second look at what others have, comes sooner."""
MOST_CALLS = 2000
"""What no run comes near: an operator that never stops asking ends here."""
DOWNTIME = 30.0

When = Literal["before", "after"]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the operator, of the API server or of a rank's Valkey, counted from 0."""

    index: int
    to: Literal["api", "store"]
    verb: str
    what: str

    def __str__(self) -> str:
        return f"call {self.index} ({self.verb} {self.what})"

    @property
    def writes(self) -> bool:
        return self.to == "api" and self.verb not in ("get", "list")


Strike = Callable[[Call, When], BaseException | None]


@dataclass(slots=True)
class Gate:
    """Counts the calls to API server and Valkeys together and strikes where it is told to."""

    strikes: Sequence[Strike] = ()
    calls: list[Call] = field(default_factory=list)
    stopped: bool = False

    def on_request(self, request: Request, when: When) -> BaseException | None:
        # What comes behind the dot of an Event's name is drawn by lot.
        what = f"{request.kind.kind} {request.name.partition('.')[0]}".strip()
        return self._pass(when, to="api", verb=request.verb, what=what)

    def on_store(self, address: Address, call: str, when: When) -> BaseException | None:
        return self._pass(when, to="store", verb=call, what=str(address))

    def _pass(
        self, when: When, *, to: Literal["api", "store"], verb: str, what: str
    ) -> BaseException | None:
        if self.stopped:
            return Stopped()
        if when == "before":
            assert len(self.calls) < MOST_CALLS, "the operator never stops asking"
            self.calls.append(Call(len(self.calls), to, verb, what))
        for strike in self.strikes:
            if (error := strike(self.calls[-1], when)) is not None:
                # A process that was stopped does nothing any more, in no task.
                self.stopped = isinstance(error, Stopped)
                return error
        return None


class Settled(Exception):
    """Nothing but the resync is left to do."""


class SimClock:
    """The clock of world and operator, which only ``World.idle`` moves."""

    def __init__(self, idle: Callable[[asyncio.Event, float | None], Any]) -> None:
        self.seconds = 0.0
        self._idle = idle

    def monotonic(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.seconds)

    async def wait(self, event: asyncio.Event, timeout: float | None) -> bool:
        await self._idle(event, timeout)
        return event.is_set()


class World:
    """The cluster, its Valkeys, and one operator process after the other.

    With ``downtime`` all others finish what they do before the next process starts; without, it
    starts at once. ``incarnations`` counts the pods made by name, ``tokens`` are all that any
    Secret ever held, by the owner's uid and the role: several only where a scenario ``rotates``
    them. ``wrong`` is what was seen on the way and may never be.
    """

    def __init__(self, *, downtime: bool = False) -> None:
        self.clock = SimClock(self._idle)
        self.cluster = FakeCluster(clock=self.clock)
        self.stores = FakeStores()
        self.gate = Gate()
        self.collect_at = float("-inf")
        self.incarnations: Counter[str] = Counter()
        self.tokens: dict[tuple[str, str], set[str]] = {}
        self.rotates = False
        self.wrong: set[str] = set()
        self._downtime = downtime
        self._served: dict[Address, str] = {}
        self._quiet_since = 0.0
        self._changes = 0
        self.cluster.watch(self._on_change)
        self.cluster.faults.append(self.gate.on_request)
        self.stores.strikes += [self.gate.on_store, self._note_store]
        self._start_process()

    def save(self) -> bytes:
        """Everything outside of the operator's process, to go on from in another world."""
        storage = self.cluster._storage
        state = (storage._objects, storage._owned, storage._version, self.stores.servers)
        return pickle.dumps((*state, self._served, self.clock.seconds))

    @classmethod
    def load(cls, saved: bytes, *, downtime: bool = False) -> "World":
        """A world with this state and a new operator process, which has read nothing yet."""
        world = cls(downtime=downtime)
        storage = world.cluster._storage
        objects, owned, version, servers, served, seconds = pickle.loads(saved)
        storage._objects, storage._owned, storage._version = objects, owned, version
        world.stores.servers, world._served = servers, served
        world.clock.seconds = world._quiet_since = seconds
        for secret in world.cluster.all(SECRET):
            world._note_tokens(secret)
        world._list()
        return world

    # What there is

    def record(self) -> Record | None:
        """The record in its Secret."""
        secret = self.cluster.peek(SECRET, KEY[0], acl_name(KEY[1]))
        return from_json(base64.b64decode(secret["data"][RECORD_KEY])) if secret else None

    def states(self) -> dict[str, str]:
        record = self.record()
        assert record is not None
        return {entry.id: entry.state.value for entry in record.generations}

    def memory(self) -> TierMemory | None:
        """What the running process knows."""
        return self._reconciler.memory.find(KEY)

    def ranks(self) -> dict[int, FakeServer]:
        found = {}
        for pod in self.cluster.all(POD):
            rank = pod["metadata"]["labels"].get(RANK_LABEL)
            server = self.stores.servers.get(Address(host=pod.get("status", {}).get("podIP", "")))
            if rank is not None and server is not None:
                found[int(rank)] = server
        return found

    def rank_servers(self) -> list[FakeServer]:
        return [server for _, server in sorted(self.ranks().items())]

    # What users do

    def apply(self, tier_spec: dict[str, Any]) -> Object:
        """``kubectl apply`` of the tier."""
        if self.cluster.peek(TIER, *KEY) is not None:
            return self.cluster.edit(TIER, *KEY, {"spec": tier_spec})
        return self.cluster.seed(
            {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "metadata": {"namespace": KEY[0], "name": KEY[1]},
                "spec": tier_spec,
            }
        )

    def at(self) -> str:
        """Now, as an annotation would say it."""
        return self.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")

    def collect_after(self, seconds: float) -> None:
        """The garbage collector does not get to it before so many seconds have passed."""
        self.collect_at = self.clock.seconds + seconds

    async def resync(self) -> None:
        """The time of the resync passes."""
        self.clock.seconds += 1.2 * RESYNC
        self._quiet_since = self.clock.seconds
        await self.settle()

    async def settle(self) -> None:
        """Let everybody work until nothing but the resync is left to do.

        When the process is stopped another one takes over, which gets a list of what there is and
        no event of before.
        """
        self._quiet_since = self.clock.seconds
        while True:
            try:
                await self._queue.run(8, self._reconciler.reconcile)
            except Settled:
                return
            except Stopped:
                self._start_process()
                if self._downtime:
                    self._finish()
                # A drain goes on from what was written of it, and writes nothing for a while.
                self._quiet_since = self.clock.seconds
                self.gate.stopped = False
                self._list()

    # The operator's process

    def _start_process(self) -> None:
        self._queue: KeyedQueue[Key] = KeyedQueue(
            clock=self.clock, pace=PACE, jitter=lambda: 0.5, on_error=lambda *_: None
        )
        self._reconciler = Reconciler(
            cluster=self.cluster,
            connect=self.stores.connect,
            recorder=Recorder(self.cluster, instance="kvtier-0", clock=self.clock),
            settings=ReconcilerSettings(
                render=RenderSettings(probe_image="example.org/kvtier:1"), resync=RESYNC
            ),
            clock=self.clock,
            metrics=Metrics(),
            leads=lambda: True,
            jitter=lambda: 0.5,
        )
        # Pauses by the wall clock would have the ranks take turns by lot.
        self._reconciler._purger = Purger(
            connect=self.stores.connect, leads=lambda: True, pace=Pace(share=1.0, small_share=1.0)
        )
        self._watcher = Watcher(queue=self._queue, memory=self._reconciler.memory)

    def _list(self) -> None:
        """What the watches of a new process begin with; without children, which must not matter."""
        for tier in self.cluster.all(TIER):
            self._watcher.on_tier({"type": None, "object": tier})

    def _on_change(self, event: str, obj: Object) -> None:
        self._note(event, obj)
        if obj["kind"] == KIND:
            self._watcher.on_tier({"type": event, "object": obj})
        elif obj["kind"] in ("StatefulSet", "Service", "ConfigMap"):
            self._watcher.on_child({"type": event, "object": obj})
        elif obj["kind"] == NODE.kind:
            self._watcher.on_node({"type": event, "object": obj})
        elif obj["kind"] == POD.kind and POOL_LABEL in obj["metadata"].get("labels", {}):
            self._watcher.on_engine({"type": event, "object": obj})

    def _note(self, event: str, obj: Object) -> None:
        if obj["kind"] == EVENT.kind:
            return
        self._changes += 1
        self._quiet_since = self.clock.seconds
        if obj["kind"] == POD.kind and event == "ADDED":
            # A probe may be made again; its pod has another name each time.
            if PROBE_LABEL not in obj["metadata"].get("labels", {}):
                self.incarnations[obj["metadata"]["name"]] += 1
        elif obj["kind"] == SECRET.kind and event != "DELETED":
            self._note_tokens(obj)

    def _note_store(self, address: Address, call: str, when: When) -> None:
        """After what changes a rank more may come: a kubelet brings its file later."""
        del address
        if when == "after" and call in ("acl_setusers", "acl_load", "config_set", "unlink"):
            self._quiet_since = self.clock.seconds

    def _note_tokens(self, secret: Object) -> None:
        metadata = secret["metadata"]
        owner = "".join(each["uid"] for each in metadata.get("ownerReferences", []))
        data = {
            key: base64.b64decode(text).decode(errors="backslashreplace")
            for key, text in secret["data"].items()
        }
        found: dict[str, list[str]] = {}
        if RECORD_KEY in data:
            record = from_json(data[RECORD_KEY])
            found = {
                "operator": [record.operator_token],
                "probe": [record.probe_token] if record.probe_token else [],
                "limiter": [record.limiter_token] if record.limiter_token else [],
                "engine": [entry.token for entry in record.generations],
            }
        elif TOKEN_KEY in data:
            suffix = metadata["name"].rpartition("-")[2]
            role = suffix if suffix in ("operator", "probe", "limiter") else "engine"
            found = {role: [data[TOKEN_KEY]]}
        for role, tokens in found.items():
            self.tokens.setdefault((owner, role), set()).update(tokens)

    # Time, and everybody else

    async def _idle(self, event: asyncio.Event, timeout: float | None) -> None:
        """Called by the queue when it waits: for its handlers, or else for the time to pass."""
        if self._queue.running:
            await event.wait()
        if event.is_set():
            return
        changes = self._changes
        self._work()
        if event.is_set() or self._changes != changes:
            return
        wait = float("inf") if timeout is None else timeout
        if self.collect_at > self.clock.seconds:
            wait = min(wait, self.collect_at - self.clock.seconds)
        if self.clock.seconds + wait > self._quiet_since + QUIET:
            raise Settled
        self.clock.seconds += wait

    def _finish(self) -> None:
        """All others work on while no operator runs."""
        for _ in range(2):
            changes = -1
            while changes != self._changes:
                changes = self._changes
                self._work()
            self.clock.seconds += DOWNTIME

    def _work(self) -> None:
        """One step of the cluster's controllers and kubelets."""
        self.cluster.run_statefulsets()
        self.cluster.run_jobs(self._probe)
        for pod in self.cluster.all(POD):
            if RANK_LABEL in pod["metadata"].get("labels", {}):
                self._serve(pod)
        if self.clock.seconds >= self.collect_at:
            self.cluster.collect_garbage()

    def _probe(self, job: Object) -> str:
        """What a probe leaves; another node gives another figure."""
        node = job["metadata"]["annotations"][NODE_ANNOTATION]
        return probe_message(node, rate=1e9 + 1e8 * ord(node[-1]), at=self.clock.now())

    def _serve(self, pod: Object) -> None:
        """A Valkey for a new pod, with the ACL file that its Secret has now."""
        host = pod["status"].get("podIP", "")
        address = Address(host=host)
        uid, labels = pod["metadata"]["uid"], pod["metadata"]["labels"]
        secret = self.cluster.peek(SECRET, KEY[0], acl_name(labels[TIER_LABEL]))
        if not host or secret is None:
            return
        text = base64.b64decode(secret["data"][acl_key(int(labels[RANK_LABEL]))]).decode()
        if self._served.get(address) == uid:
            # The kubelet brings what is new to the file that a running server may load.
            self.stores.servers[address].acl_file = text
            return
        self._served[address] = uid
        self.stores.servers[address] = FakeServer(
            acl_file=text,
            settings=read_conf(self.cluster, namespace=KEY[0], tier=labels[TIER_LABEL]),
        )
